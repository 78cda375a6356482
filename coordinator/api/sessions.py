"""Routes that make, find, watch and end sessions."""

from datetime import UTC, datetime
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Header, Query, Response
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, ConfigDict

from coordinator.api.asked import Named, Service, shown
from coordinator.api.auth import Asker, AskerNow
from coordinator.api.errors import faults
from coordinator.api.sse import stream
from coordinator.service.entries import Entry
from coordinator.service.facts import Status
from coordinator.service.journal import BEGINNING, EventId
from coordinator.service.refusals import Code, Refused
from coordinator.service.sessions import Filter, Sessions
from coordinator.service.views import SessionView
from coordinator.service.wanted import IdempotencyKey, NewFork, NewSession

MAX_WAIT_S = 300.0
MAX_PAGE = 500

router = APIRouter(
    prefix="/v1/sessions",
    tags=["sessions"],
    responses=faults(401, 422, 503),
)

Wait = Annotated[float, Query(ge=0, le=MAX_WAIT_S, description="Seconds to wait for its end.")]


class Created(SessionView):
    """A session that was made, or found again by its key."""

    webhook_secret: str | None = None
    """Signs what the webhook is sent; told here alone, and again to who repeats the request with its key: the first
    answer may have been lost."""


FOUND_AGAIN: dict[int | str, dict[str, Any]] = {
    200: {"model": Created, "description": "Its idempotency key stands for this session already."},
    **faults(403, 409, 413, 415, 429),
}


class Page(BaseModel):
    """Some sessions, the newest first."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    sessions: list[SessionView]
    next: str | None
    """Give it as `after` to get the next page; null on the last one."""


@router.post("", status_code=201, response_model=Created, responses=FOUND_AGAIN)
async def create(
    wanted: NewSession,
    service: Service,
    asker: Asker,
    response: Response,
    idempotency_key: Annotated[IdempotencyKey | None, Header()] = None,
) -> Created:
    """Make a session; it is answered at once, and begins when its turn comes.

    The same idempotency key with the same body is the same session (200 instead of 201); with another body it is 409.
    """
    entry, is_new = await service.create(_keyed(wanted, idempotency_key), asker)
    return await _created(service, response, entry, is_new=is_new)


@router.post("/{session_id}/fork", status_code=201, response_model=Created, responses={**FOUND_AGAIN, **faults(404)})
async def fork(
    entry: Named,
    wanted: NewFork,
    service: Service,
    asker: Asker,
    response: Response,
    idempotency_key: Annotated[IdempotencyKey | None, Header()] = None,
) -> Created:
    """Make a session that goes on from another one's last step, in a copy of its workspace as it is now.

    Answered once the copy is made: of a session that runs, between two steps, while its commands stand still. Of one
    that has ended there must still be the private copy. A session that is forked goes on as if nothing had been.
    """
    made, is_new = await service.fork(entry, _keyed(wanted, idempotency_key), asker)
    return await _created(service, response, made, is_new=is_new)


@router.get("", response_model=Page)
async def find(
    service: Service,
    asker: Asker,
    status: Annotated[list[Status] | None, Query(description="One of these; may be repeated.")] = None,
    label: Annotated[list[str] | None, Query(description="`key=value`; all of them; may be repeated.")] = None,
    principal: Annotated[str | None, Query(description="Whose; `*` is everybody's. For operators.")] = None,
    since: Annotated[datetime | None, Query(description="Created then or later.")] = None,
    limit: Annotated[int, Query(ge=1, le=MAX_PAGE)] = 50,
    after: Annotated[str | None, Query(min_length=1, max_length=100, description="`next` of the page before.")] = None,
) -> Page:
    """List your sessions, the newest first."""
    labels = frozenset(_label(text) for text in label or [])
    moment = since.replace(tzinfo=UTC) if since is not None and since.tzinfo is None else since
    wanted = Filter(frozenset(status) if status else None, labels, principal, moment)
    found, following = await service.page(asker, wanted, limit=limit, after=after)
    return Page(sessions=await service.views(found), next=following)


@router.get("/{session_id}", response_model=SessionView, responses=faults(404))
async def show(entry: Named, service: Service, wait: Wait = 0.0) -> SessionView:
    """Show a session; with `wait`, once it has ended or the time is over."""
    if wait:
        await service.wait(entry, wait)
    return await shown(service, entry)


@router.get(
    "/{session_id}/events",
    response_class=StreamingResponse,
    responses={
        200: {"content": {"text/event-stream": {}}, "description": "Server-sent events."},
        204: {"description": "The session has ended, and you have all of it."},
        **faults(404),
    },
)
async def events(
    entry: Named,
    service: Service,
    asker_now: AskerNow,
    last_event_id: Annotated[str | None, Header(description="Go on behind this event.")] = None,
    after: Annotated[str | None, Query(description="The same, for those that cannot set a header.")] = None,
) -> Response:
    """Stream a session's events, from the first or from any one on; the stream ends with the session.

    Kept events carry an id; pieces of the model's text, which come before its whole reply, carry none. An id that is
    beyond the session's last event is 422: it is none of its.
    """
    given = last_event_id or after
    try:
        start = EventId.parse(given) if given else BEGINNING
    except ValueError as exc:
        raise Refused(Code.INVALID, f"Last-Event-ID: {exc}.") from exc
    if given and await service.has_read_all(entry, start):
        # Source: HTML Living Standard, 9.2.3: 204 tells an EventSource not to connect again.
        return Response(status_code=204)
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    messages = stream(service, entry, start, asker_now)
    return StreamingResponse(messages, media_type="text/event-stream", headers=headers)


@router.post("/{session_id}/cancel", status_code=202, response_model=SessionView, responses=faults(404, 409, 413))
async def cancel(entry: Named, service: Service) -> SessionView:
    """End a session, once each of its calls has its answer. One that has ended stays as it is."""
    await service.cancel(entry)
    return await shown(service, entry)


_Wanted = TypeVar("_Wanted", NewSession, NewFork)


def _keyed(wanted: _Wanted, header: str | None) -> _Wanted:
    """Return what is wanted with the key of the header.

    Raises:
        Refused: it has another one itself.
    """
    if header is None:
        return wanted
    if wanted.idempotency_key not in (None, header):
        raise Refused(Code.INVALID, "The header and the body have different idempotency keys.", "Send one.")
    return wanted.model_copy(update={"idempotency_key": header})


async def _created(service: Sessions, response: Response, entry: Entry, *, is_new: bool) -> Created:
    response.status_code = 201 if is_new else 200
    response.headers["Location"] = f"/v1/sessions/{entry.session_id}"
    webhook = entry.record.webhook
    secret = webhook.secret if webhook is not None else None
    view = await shown(service, entry)
    return Created(**view.model_dump(), webhook_secret=secret)


def _label(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals:
        raise Refused(Code.INVALID, "label: it must be key=value.")
    return key, value
