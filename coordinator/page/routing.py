"""What all routes of the page share: cookie → **routing** → visitor; answers that a browser trusts with nothing.

Errors become pages, and every answer carries the same strict headers.
"""

from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Any
from urllib.parse import urlsplit

from fastapi import Depends, Form, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import RedirectResponse, Response
from fastapi.routing import APIRoute
from redis.exceptions import RedisError

from coordinator.api.errors import STATUS, words_of
from coordinator.audit import Action, AuditLog
from coordinator.errors import ConfigError
from coordinator.page import rendering
from coordinator.page.asking import Asking
from coordinator.page.login import Logins, Patience, Visitor, is_csrf_of
from coordinator.service.entries import Entry
from coordinator.service.refusals import Code, Refused
from coordinator.service.sessions import Sessions
from coordinator.service.volume import on_volume

HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Frame-Options": "DENY",
    "X-Content-Type-Options": "nosniff",
    # Not `no-referrer`: a form would then be sent with the origin `null`.
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Cache-Control": "no-store",
}
PLAIN_HEADERS = {"Content-Security-Policy": "default-src 'none'; sandbox; frame-ancestors 'none'"}
"""Of answers that are nothing but text of others."""

FORM_FIELD = Annotated[str, Form(max_length=100)]


@dataclass(frozen=True)
class Page:
    """What the page's routes work on; one a server."""

    sessions: Sessions
    logins: Logins
    patience: Patience
    audit: AuditLog
    asking: Asking


class _NotLoggedIn(Exception):
    """The visitor is shown the login."""


class PageRoute(APIRoute):
    """A route whose errors are pages, and whose answers all have the page's headers."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return what serves a request."""
        serve = super().get_route_handler()

        async def served(request: Request) -> Response:
            try:
                response = await serve(request)
            except _NotLoggedIn:
                response = _to_login(request)
            except Refused as exc:
                response = refusal(request, exc)
            except RequestValidationError as exc:
                response = refusal(request, Refused(Code.INVALID, words_of(exc.errors())))
            except RedisError:
                response = refusal(request, Refused(Code.UNAVAILABLE, "Redis does not answer.", "Try again."))
            for name, value in HEADERS.items():
                response.headers.setdefault(name, value)
            if (asking := getattr(request.state, "asking", None)) is not None:
                # A script that refreshes a part of a page shows it in the header, which is no part of that.
                response.headers["X-Asking"] = str(asking)
            return response

        return served


def refusal(request: Request, refused: Refused) -> Response:
    """Return the page that says why a request was not accepted."""
    return rendering.page("error.html", request, status=STATUS[refused.code], refused=refused)


def _to_login(request: Request) -> Response:
    if request.headers.get("x-fragment"):
        # A script that refreshes a part of a page goes to the login itself.
        return Response(status_code=401)
    wanted = request.url.path + (f"?{request.url.query}" if request.url.query else "")
    return RedirectResponse(rendering.address("/login", to=wanted if request.method == "GET" else "/"), 303)


def page_of(request: Request) -> Page:
    """Return what the routes work on."""
    page: Page = request.app.state.page
    return page


def cookie_name(request: Request, purpose: str) -> str:
    """Return a cookie's name; browsers take `__Host-` from nobody but this very host, over TLS."""
    return f"__Host-sandhog-{purpose}" if request.url.scheme == "https" else f"sandhog-{purpose}"


def set_cookie(request: Request, response: Response, purpose: str, value: str, lasts_s: int) -> None:
    """Let the browser keep a secret that no script can read and no other site can use."""
    response.set_cookie(
        cookie_name(request, purpose),
        value,
        max_age=lasts_s,
        httponly=True,
        samesite="strict",
        secure=request.url.scheme == "https",
    )


def address_of(request: Request) -> str:
    """Return where a request came from, as the server saw it."""
    return request.client.host if request.client is not None else ""


async def _visitor(request: Request) -> Visitor:
    secret = request.cookies.get(cookie_name(request, "login"), "")
    try:
        visitor = await on_volume(page_of(request).logins.visitor, secret)
    except ConfigError as exc:
        raise Refused(Code.UNAVAILABLE, "The server cannot read who may use it.", retry_after_s=10) from exc
    if visitor is None:
        raise _NotLoggedIn
    request.state.visitor = visitor
    # A page that needs no Redis is shown without it, too.
    with suppress(RedisError):
        request.state.asking = await page_of(request).asking.count(visitor.principal)
    return visitor


ThePage = Annotated[Page, Depends(page_of)]
Seen = Annotated[Visitor, Depends(_visitor)]
"""Who looks; whoever has not logged in is sent to the login."""


async def _acting(request: Request, visitor: Seen, csrf: FORM_FIELD = "") -> Visitor:
    demand_own_form(request, "login", csrf)
    return visitor


Acting = Annotated[Visitor, Depends(_acting)]
"""Who does something, with a form of ours."""


def demand_own_form(request: Request, purpose: str, csrf: str) -> None:
    """Return if a form came from a page of ours in this browser.

    Raises:
        Refused: it did not.
    """
    origin = request.headers.get("origin")
    is_ours = origin is None or urlsplit(origin).netloc == request.headers.get("host")
    is_same = request.headers.get("sec-fetch-site", "same-origin") in ("same-origin", "none")
    if not (is_ours and is_same and is_csrf_of(request.cookies.get(cookie_name(request, purpose), ""), csrf)):
        raise Refused(Code.FORBIDDEN, "This form did not come from this page.", "Load the page anew, and try again.")


async def _shown(session_id: str, page: ThePage, visitor: Seen) -> Entry:
    return await page.sessions.get(session_id, visitor.principal)


Shown = Annotated[Entry, Depends(_shown)]
"""The session of the path, if the visitor may know of it."""


async def keep_action(request: Request, visitor: Visitor, action: Action, session: str = "", detail: str = "") -> None:
    """Write into the audit log what is about to be done.

    Raises:
        Refused: it cannot be written, and nothing is to be done.
    """
    await on_volume(
        page_of(request).audit.write,
        action,
        actor=visitor.principal.name,
        address=address_of(request),
        via="page",
        session=session,
        detail=detail,
    )
