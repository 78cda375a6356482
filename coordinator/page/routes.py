"""Routes of the page about no single session: login, fleet, list, static files."""

import math
import secrets
from typing import Annotated, Literal

from fastapi import APIRouter, Form, Path, Query, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from coordinator.api.auth import MAX_TOKEN_BYTES
from coordinator.errors import ConfigError
from coordinator.page import listing, rendering
from coordinator.page.fleet import fleet_for
from coordinator.page.login import LASTS_S, csrf_of
from coordinator.page.routing import (
    FORM_FIELD,
    Acting,
    PageRoute,
    Seen,
    ThePage,
    address_of,
    cookie_name,
    demand_own_form,
    keep_action,
    set_cookie,
)
from coordinator.service.refusals import Code, Refused
from coordinator.service.volume import on_volume

ASKED_LASTS_S = 3600
"""A login page that was left open for longer must be loaded anew."""

router = APIRouter(route_class=PageRoute, include_in_schema=False)


@router.get("/")
async def front(visitor: Seen) -> Response:
    """Lead to the fleet."""
    return RedirectResponse("/fleet", 303)


@router.get("/static/{name}")
async def static(name: str) -> Response:
    """Serve a style sheet, a script or an icon."""
    content = rendering.static_files().get(name)
    if content is None:
        raise Refused(Code.NOT_FOUND, "There is no such file.")
    # Its address changes with its content.
    headers = {"Cache-Control": "public, max-age=31536000, immutable"}
    return Response(content, media_type=rendering.MEDIA_TYPES[name], headers=headers)


@router.get("/login")
async def login_form(request: Request, to: Annotated[str, Query(max_length=2_000)] = "") -> Response:
    """Ask for a token."""
    return _login_page(request, to)


@router.post("/login")
async def login(
    request: Request,
    page: ThePage,
    token: Annotated[str, Form(max_length=MAX_TOKEN_BYTES)] = "",
    csrf: FORM_FIELD = "",
    to: Annotated[str, Form(max_length=2_000)] = "",
) -> Response:
    """Log in with a token of the API."""
    demand_own_form(request, "asked", csrf)
    address = address_of(request)
    wait_s = page.patience.wait_s(address)
    if wait_s > 0:
        words = f"Too many wrong tokens came. Try again in {math.ceil(wait_s)} s."
        return _login_page(request, to, words, status=429, headers={"Retry-After": str(math.ceil(wait_s))})
    try:
        begun = await on_volume(page.logins.begin, token.strip())
    except ConfigError as exc:
        raise Refused(Code.UNAVAILABLE, "The server cannot read who may use it.", retry_after_s=10) from exc
    if begun is None:
        page.patience.failed(address)
        await on_volume(page.audit.write, "login_refused", actor="", address=address, via="page")
        words = "This token is nobody's. `sandhog token create NAME` makes one; one that was revoked stays so."
        return _login_page(request, to, words, status=401)
    secret, principal = begun
    await on_volume(page.audit.write, "login", actor=principal.name, address=address, via="page")
    response = RedirectResponse(_own_path(to), 303)
    set_cookie(request, response, "login", secret, int(LASTS_S))
    response.delete_cookie(cookie_name(request, "asked"), secure=request.url.scheme == "https")
    return response


@router.post("/logout")
async def logout(request: Request, visitor: Acting, page: ThePage) -> Response:
    """End the login."""
    await keep_action(request, visitor, "logout")
    name = cookie_name(request, "login")
    await on_volume(page.logins.end, request.cookies[name])
    response = RedirectResponse("/login", 303)
    response.delete_cookie(name, secure=request.url.scheme == "https", httponly=True, samesite="strict")
    return response


@router.get("/fleet")
async def fleet(request: Request, visitor: Seen, page: ThePage) -> Response:
    """Show what runs on what."""
    found = await fleet_for(page.sessions, visitor.principal)
    return rendering.page(_whole_or_part(request, "fleet"), request, fleet=found)


@router.post("/nodes/{name}/{action}")
async def drain(
    request: Request,
    visitor: Acting,
    page: ThePage,
    name: Annotated[str, Path(max_length=200)],
    action: Literal["drain", "undrain"],
) -> Response:
    """Let a node have no new sessions, or some again."""
    if not visitor.principal.allowance.is_operator:
        raise Refused(Code.FORBIDDEN, "Only an operator may drain a node.")
    store = page.sessions.cluster.store
    if name not in [view.life.node for view in await store.nodes()]:
        raise Refused(Code.NOT_FOUND, f"There is no node {name!r}.")
    await keep_action(request, visitor, action, detail=name)
    await store.drain_node(name, undo=action == "undrain")
    return RedirectResponse("/fleet", 303)


@router.get("/approvals")
async def approvals(request: Request, visitor: Seen, page: ThePage) -> Response:
    """Show what waits for a yes, in all sessions that the visitor may know of."""
    asks, total = await page.asking.every(visitor.principal)
    return rendering.page(_whole_or_part(request, "approvals"), request, asks=asks, total=total)


@router.get("/sessions")
async def sessions(
    request: Request,
    visitor: Seen,
    page: ThePage,
    status: Annotated[str, Query(max_length=20)] = "",
    label: Annotated[str, Query(max_length=listing.TERM_CHARS)] = "",
    principal: Annotated[str, Query(max_length=63)] = "",
    text: Annotated[str, Query(max_length=listing.TERM_CHARS)] = "",
    sort: listing.Sort = "age",
    up: bool = False,
    number: Annotated[int, Query(alias="page", ge=1, le=100_000)] = 1,
) -> Response:
    """Show the sessions that the visitor may know of."""
    wanted = listing.Wanted(status, label.strip(), principal.strip(), text.strip(), sort, up, number)
    found = await listing.listed(page.sessions, visitor.principal, wanted)
    return rendering.page(
        _whole_or_part(request, "sessions"),
        request,
        found=found,
        wanted=wanted,
        statuses=listing.STATUSES,
        sorts=listing.SORTS,
        here=rendering.address("/sessions", **dict(request.query_params)),
    )


def _whole_or_part(request: Request, name: str) -> str:
    return f"{name}_part.html" if request.headers.get("x-fragment") else f"{name}.html"


def _login_page(
    request: Request, to: str, words: str = "", *, status: int = 200, headers: dict[str, str] | None = None
) -> HTMLResponse:
    asked = request.cookies.get(cookie_name(request, "asked"), "") or secrets.token_urlsafe(32)
    response = rendering.page("login.html", request, status=status, csrf=csrf_of(asked), to=_own_path(to), words=words)
    response.headers.update(headers or {})
    set_cookie(request, response, "asked", asked, ASKED_LASTS_S)
    return response


def _own_path(text: str) -> str:
    """Return where to go after the login: a path of this page, whatever was asked for."""
    is_own = text.startswith(("/fleet", "/sessions", "/approvals")) and not any(char in text for char in "\\\r\n\t\0")
    return text if is_own else "/fleet"
