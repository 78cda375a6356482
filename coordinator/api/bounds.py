"""How large a request may be: server → **bounds** → app. Plain ASGI, so that nothing is read that is not wanted."""

import asyncio
from contextlib import suppress

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from coordinator.api.errors import error_response
from coordinator.service.refusals import Code, Refused

MAX_PATH_BYTES = 8_000
MAX_DROPPED_BYTES = 16 * 1024 * 1024
DROP_S = 5.0
"""How much of a body that is too large is read, and how long, only so that its sender comes to read the answer: a
connection that is closed on what was sent is reset, and the answer with it."""


class _TooLarge(HTTPException):
    """Passes through the framework's reading of a body as what it is."""

    def __init__(self, most: int) -> None:
        super().__init__(413, f"The body is larger than {most} bytes.")


class Bounds:
    """Answers 413 to a body above its bound, told or counted, and 422 to an overlong address.

    Args:
        app: What is asked within the bounds.
        max_bytes: Of a body.
        max_upload_bytes: Of a body below `upload_path`.
        upload_path: Where archives are sent to.
    """

    def __init__(self, app: ASGIApp, *, max_bytes: int, max_upload_bytes: int, upload_path: str) -> None:
        self._app = app
        self._max_bytes = max_bytes
        self._max_upload_bytes = max_upload_bytes
        self._upload_path = upload_path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if len(scope.get("raw_path", b"")) + len(scope.get("query_string", b"")) > MAX_PATH_BYTES:
            await error_response(Refused(Code.INVALID, "The address is too long."))(scope, receive, send)
            return
        is_upload = scope["method"] == "PUT" and scope["path"].startswith(self._upload_path)
        most = self._max_upload_bytes if is_upload else self._max_bytes
        refusal = error_response(
            Refused(Code.TOO_LARGE, f"The body is larger than {most} bytes."), {"Connection": "close"}
        )
        told = dict(scope["headers"]).get(b"content-length", b"0")
        if told.isdigit() and int(told) > most:
            await _drop(scope, receive)
            await refusal(scope, receive, send)
            return
        received, has_answered = 0, False

        async def counted() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > most:
                raise _TooLarge(most)
            return message

        async def noted(message: Message) -> None:
            nonlocal has_answered
            has_answered = True
            await send(message)

        try:
            await self._app(scope, counted, noted)
        except _TooLarge:
            if not has_answered:
                await _drop(scope, receive)
                await refusal(scope, receive, send)


async def _drop(scope: Scope, receive: Receive) -> None:
    """Read what is left of a body, within bounds; nothing where its sender asked first whether it is wanted."""
    if b"expect" in dict(scope["headers"]):
        return
    dropped, is_more = 0, True
    with suppress(TimeoutError):
        async with asyncio.timeout(DROP_S):
            while is_more and dropped < MAX_DROPPED_BYTES:
                message = await receive()
                dropped += len(message.get("body", b""))
                is_more = message.get("more_body", False)
