"""What routes share: the service of the app, and the session that a path names."""

from typing import Annotated

from fastapi import Depends, Path, Request

from coordinator.api.auth import Asker
from coordinator.service.entries import Entry
from coordinator.service.sessions import Sessions
from coordinator.service.views import SessionView


def _sessions(request: Request) -> Sessions:
    sessions: Sessions = request.app.state.sessions
    return sessions


Service = Annotated[Sessions, Depends(_sessions)]
"""The service."""

SessionId = Annotated[str, Path(max_length=100, examples=["20300131-120000-1a2b3c4d"])]


async def _named(session_id: SessionId, service: Service, asker: Asker) -> Entry:
    return await service.get(session_id, asker)


Named = Annotated[Entry, Depends(_named)]
"""The session of the path, if the asker may know of it; else the answer is 404, whatever the reason."""


async def shown(service: Sessions, entry: Entry) -> SessionView:
    """Return what the API shows of a session."""
    (view,) = await service.views([entry])
    return view
