"""Every request that changes something has its line in the audit log first: auth → **audited** → routes."""

import asyncio
import re

from starlette.types import ASGIApp, Receive, Scope, Send

from coordinator.api.errors import error_response
from coordinator.audit import AuditLog
from coordinator.errors import TranscriptError
from coordinator.service.principals import Principal
from coordinator.service.refusals import Code, Refused

READING = frozenset({"GET", "HEAD", "OPTIONS"})
_SESSION = re.compile(r"/v1/sessions/([^/]+)")
_CALLS = re.compile(r"/v1/sessions/[^/]+/tool_calls")
"""The calls of a caller's own loop are no actions of a person; the transcript has them."""


class Audited:
    """Writes who asks for what from where; without its line nothing is done.

    Args:
        app: The routes.
        log: Where the lines go.
    """

    def __init__(self, app: ASGIApp, *, log: AuditLog) -> None:
        self._app = app
        self._log = log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        principal: Principal | None = scope.get("state", {}).get("principal") if scope["type"] == "http" else None
        if principal is not None and scope["method"] not in READING and not _CALLS.match(scope["path"]):
            session = _SESSION.match(scope["path"])
            try:
                await asyncio.to_thread(
                    self._log.write,
                    "request",
                    actor=principal.name,
                    address=scope["client"][0] if scope.get("client") else "",
                    via="api",
                    session=session[1][:100] if session else "",
                    detail=f"{scope['method']} {scope['path']}",
                )
            except TranscriptError:
                refused = Refused(Code.UNAVAILABLE, "The audit log cannot be written.", retry_after_s=10)
                await error_response(refused)(scope, receive, send)
                return
        await self._app(scope, receive, send)
