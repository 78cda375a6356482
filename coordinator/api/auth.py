"""Who asks: the request's bearer token → **auth** → principal, before anything of its body is read."""

from collections.abc import Callable
from functools import partial
from typing import Annotated
from urllib.parse import parse_qsl

from fastapi import Depends, Request
from fastapi.security import HTTPBearer
from starlette.types import ASGIApp, Receive, Scope, Send

from coordinator.api.errors import error_response
from coordinator.errors import ConfigError
from coordinator.service.principals import Principal, token_digest
from coordinator.service.refusals import Code, Refused
from coordinator.service.tokens import Tokens
from coordinator.service.volume import on_volume

IN_QUERY = frozenset({"token", "access_token", "api_token", "api_key", "authorization"})
MAX_TOKEN_BYTES = 1_000
GUARDED = "/v1"
"""Every path below it needs a token."""

_bearer = HTTPBearer(auto_error=False, description="A token made by `sandhog token create`.")


class Authenticated:
    """Lets nobody without a token through to the API.

    Args:
        app: The API.
        tokens: Whose tokens count.
    """

    def __init__(self, app: ASGIApp, *, tokens: Tokens) -> None:
        self._app = app
        self._tokens = tokens

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        path = scope.get("path", "")
        if scope["type"] == "http" and (path == GUARDED or path.startswith(f"{GUARDED}/")):
            try:
                digest = self._digest(scope)
                principal = await self._principal(digest)
            except Refused as refused:
                await error_response(refused)(scope, receive, send)
                return
            state = scope.setdefault("state", {})
            state["principal"], state["asker_now"] = principal, partial(self._tokens.owner_of, digest)
        await self._app(scope, receive, send)

    def _digest(self, scope: Scope) -> str:
        """Return the digest of the token that the request carries.

        Raises:
            Refused: it carries none.
        """
        names = {name.lower() for name, _ in parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)}
        if names & IN_QUERY:
            # Addresses are written to logs and histories.
            fix = "Send `Authorization: Bearer TOKEN`."
            raise Refused(Code.INVALID, "A token does not belong into the address.", fix)
        given = [value for name, value in scope["headers"] if name == b"authorization"]
        scheme, _, token = given[0].partition(b" ") if len(given) == 1 else (b"", b"", b"")
        token = token.strip()
        if scheme.lower() != b"bearer" or not 0 < len(token) <= MAX_TOKEN_BYTES:
            fix = "Send `Authorization: Bearer TOKEN`."
            raise Refused(Code.UNAUTHENTICATED, "The request has no bearer token.", fix)
        return token_digest(token.decode("latin-1"))

    async def _principal(self, digest: str) -> Principal:
        """Return whose token has that digest.

        Raises:
            Refused: it is nobody's.
        """
        try:
            principal = await on_volume(self._tokens.owner_of, digest)
        except ConfigError as exc:
            raise Refused(Code.UNAVAILABLE, "The server cannot read who may use it.", retry_after_s=10) from exc
        if principal is None:
            fix = "`sandhog token create NAME` makes one; one that was revoked stays so."
            raise Refused(Code.UNAUTHENTICATED, "The token is nobody's.", fix)
        return principal


async def _asker(request: Request, declared: Annotated[object, Depends(_bearer)]) -> Principal:
    principal: Principal = request.state.principal
    return principal


Asker = Annotated[Principal, Depends(_asker)]
"""The principal that a request acts for; `Authenticated` has proven it."""


async def _asker_now(request: Request) -> Callable[[], Principal | None]:
    now: Callable[[], Principal | None] = request.state.asker_now
    return now


AskerNow = Annotated[Callable[[], Principal | None], Depends(_asker_now)]
"""Tells whose the request's token is now, None once it was revoked: for answers that go on and on. Reads a file."""
