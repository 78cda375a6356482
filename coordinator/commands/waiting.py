"""How sessions end, waited for at a server or on the volume: **waiting** ← `sandhog wait`."""

import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from coordinator.commands.kept import session_named
from coordinator.errors import ConfigError
from coordinator.service.entries import Index
from coordinator.service.facts import ENDED
from coordinator.settings import read_settings

if TYPE_CHECKING:
    from coordinator.client import Client

POLL_S = 0.5
OVER = "not ended within the time"


def statuses(session_ids: Sequence[str], url: str | None, timeout_s: float | None) -> Iterator[tuple[str, str]]:
    """Yield each session with how it ended, in the order they were given, once it has.

    Raises:
        ConfigError: there is no such session.
        ApiError: the server cannot be asked.
    """
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    address = url or os.environ.get("SANDHOG_URL")
    if address:
        # The HTTP client takes a while to import, and only this needs it.
        from coordinator.client import Client

        with Client(address) as client:
            for session_id in session_ids:
                yield session_id, _at_server(client, session_id, deadline)
    else:
        state_dir = read_settings().state_dir
        index = Index(state_dir)
        for name in session_ids:
            session_id = session_named(state_dir, name)
            yield session_id, _on_volume(index, session_id, deadline)


def _at_server(client: "Client", session_id: str, deadline: float | None) -> str:
    from coordinator.client import ApiError

    while True:
        left_s = None if deadline is None else max(deadline - time.monotonic(), 0.0)
        try:
            session = client.wait(session_id, left_s)
        except ApiError as exc:
            if exc.code == "TIMEOUT":
                return OVER
            if exc.code == "NOT_FOUND":
                raise ConfigError(str(exc)) from exc
            raise
        if session["status"] in ENDED:
            return str(session["status"])
        # Idle: it has not ended.
        time.sleep(POLL_S)


def _on_volume(index: Index, session_id: str, deadline: float | None) -> str:
    while True:
        entry = index.get(session_id)
        if entry is None:
            where = Path("sessions") / session_id
            raise ConfigError(f"There is no session {session_id}: SANDHOG_STATE_DIR has no {where}.")
        if entry.facts.has_ended:
            return entry.facts.status
        if deadline is not None and time.monotonic() >= deadline:
            return OVER
        time.sleep(POLL_S)
