"""What routes share: the service of the app, and the session that a path names."""

from typing import Annotated, get_args, get_origin

from fastapi import Depends, Path, Request
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute

from coordinator.api.auth import Asker
from coordinator.service.entries import Entry
from coordinator.service.refusals import Code, Refused
from coordinator.service.sessions import Sessions
from coordinator.service.views import SessionView


def _sessions(request: Request) -> Sessions:
    sessions: Sessions = request.app.state.sessions
    return sessions


Service = Annotated[Sessions, Depends(_sessions)]
"""The service."""


async def only_described(request: Request) -> None:
    """Let a request through whose address asks for nothing but what its route takes, and each header of it once.

    Raises:
        Refused: it asks for something else, or for one thing twice: a misspelt filter is not silently none.
    """
    if not request.url.path.startswith("/v1/"):
        # Probes and scrapers add what they like to their addresses, against caches.
        return
    route: APIRoute = request.scope["route"]
    taken = _query_of(route.dependant)
    for name in dict.fromkeys(request.query_params):
        shown = repr(name[:60])
        if name not in taken:
            fix = f"It takes {', '.join(sorted(taken))}." if taken else "It takes none."
            raise Refused(Code.INVALID, f"There is no query parameter {shown} here.", fix)
        if not taken[name] and len(request.query_params.getlist(name)) > 1:
            raise Refused(Code.INVALID, f"The query parameter {shown} is given more than once.", "Give it once.")
    for header in route.dependant.header_params:
        if len(request.headers.getlist(header.alias)) > 1:
            # Which one was meant, nobody can tell: an idempotency key decides whether anything is done at all.
            words = f"The header {header.alias.title()} is given more than once."
            raise Refused(Code.INVALID, words, "Give it once; is there a proxy that adds one of its own?")


def _query_of(dependant: Dependant) -> dict[str, bool]:
    """Return the query parameters that a route takes, each with whether it takes several values."""
    taken: dict[str, bool] = {}
    for field in dependant.query_params:
        kind = field.field_info.annotation
        taken[field.alias] = any(get_origin(one) is list for one in (kind, *get_args(kind)))
    for inner in dependant.dependencies:
        taken.update(_query_of(inner))
    return taken


SessionId = Annotated[str, Path(max_length=100, examples=["20300131-120000-1a2b3c4d"])]


async def _named(session_id: SessionId, service: Service, asker: Asker) -> Entry:
    return await service.get(session_id, asker)


Named = Annotated[Entry, Depends(_named)]
"""The session of the path, if the asker may know of it; else the answer is 404, whatever the reason."""


async def shown(service: Sessions, entry: Entry) -> SessionView:
    """Return what the API shows of a session."""
    (view,) = await service.views([entry])
    return view
