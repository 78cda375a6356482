"""Go on with a session that another process began: volume → **resume** → runner.

`find` tells whether that can be done; `resume` takes the session over and returns its runner. From then on whoever had
it before is fenced, and what it still writes does not count.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from pydantic import TypeAdapter, ValidationError

from coordinator.cluster.parts import Cluster
from coordinator.cluster.patience import patiently
from coordinator.endpoint.model import ModelClient
from coordinator.errors import ConfigError, RedisLost, TranscriptError
from coordinator.session.approvals import Approver
from coordinator.session.box_options import BoxOptions
from coordinator.session.catching_up import Continued
from coordinator.session.conversation import NextMessage
from coordinator.session.events import EventSink
from coordinator.session.loop import SessionLoop
from coordinator.session.reading import SessionReading, is_being_written, read_session
from coordinator.session.rebuild import Rebuilt, rebuild
from coordinator.session.request import SessionRequest
from coordinator.session.runner import SessionRunner
from coordinator.session.saved import SavedSession, read_saved
from worker.contract.extras import ENV_FILE
from worker.contract.orders import WorkspaceMode
from worker.contract.places import has_private_copy

_T = TypeVar("_T")

REDIS_S = 60.0
"""How long Redis is waited for."""
KEPT_HOURS = 24
"""How long a private copy of a session that did not complete is kept."""
BY_COMMAND = "sandhog resume"

_ENV = TypeAdapter(dict[str, str])


@dataclass(frozen=True)
class Resumable:
    """A session as it lies on the volume."""

    session_id: str
    session_dir: Path
    saved: SavedSession
    reading: SessionReading
    rebuilt: Rebuilt

    @property
    def is_complete(self) -> bool:
        """Whether only a new message can bring it on."""
        ended = self.rebuilt.ended
        return ended is not None and ended.status == "completed"


def find(state_dir: Path, session_id: str) -> Resumable:
    """Return a session of the volume, however far it is.

    Raises:
        TranscriptError: it is not there, or cannot be read.
    """
    session_dir = state_dir / "sessions" / session_id
    reading = read_session(session_dir)
    return Resumable(session_id, session_dir, read_saved(session_dir), reading, rebuild(reading.entries))


def check(
    found: Resumable, request: SessionRequest, *, message: str = "", env: Mapping[str, str] | None = None
) -> None:
    """Say why a session cannot go on, if it cannot.

    Args:
        found: The session.
        request: Its request.
        message: What a person says to it.
        env: Values of the box's variables, where they are given anew.

    Raises:
        ConfigError: it cannot; says what to do.
    """
    name, session_dir = found.session_id, found.session_dir
    if found.is_complete and not message:
        raise ConfigError(f"Session {name} has completed. Give it a message to go on: sandhog resume {name} MESSAGE.")
    is_copy = request.workspace.mode is WorkspaceMode.COPY
    if is_copy and found.rebuilt.placed is not None and not has_private_copy(session_dir):
        raise ConfigError(
            f"Session {name} worked on a private copy that is gone: it is kept for {KEPT_HOURS} h where a session did "
            "not complete. Start a new session; `sandhog apply` puts the old one's patch into place first."
        )
    if not is_copy and not request.workspace.directory.is_dir():
        raise ConfigError(f"Session {name} works on {request.workspace.directory}, which is not there.")
    names = set(request.box.extras.env_names)
    if names and not (session_dir / ENV_FILE).is_file() and not names <= set(env or {}):
        missing = ", ".join(sorted(names - set(env or {})))
        raise ConfigError(f"The values of these variables were forgotten with the session: {missing}. Give --env.")


async def resume(
    found: Resumable,
    request: SessionRequest,
    *,
    cluster: Cluster,
    model: ModelClient,
    approver: Approver,
    sinks: Iterable[EventSink],
    message: str = "",
    secrets: Iterable[str] = (),
    next_message: NextMessage | None = None,
    env: Mapping[str, str] | None = None,
    by: str = BY_COMMAND,
    is_forced: bool = False,
    make_loop: Callable[..., SessionLoop] = SessionLoop,
) -> SessionRunner:
    """Take a session over and return the runner that goes on with it.

    Args:
        found: The session, see `find`.
        request: As `found.saved.to_request` gives it, or as the caller would have it now.
        cluster: Where it goes on; also one that it was not on before.
        model: The endpoint.
        approver: Who says yes to its calls.
        sinks: Whoever watches.
        message: What a person says to it; "" lets it go on where it was.
        secrets: Values that must never be kept.
        next_message: Asks for further messages; None for none.
        env: Values of the box's variables, where they are given anew.
        by: Who goes on, for the transcript.
        is_forced: Also take it from an owner that lives.
        make_loop: See `SessionRunner`.

    Raises:
        ConfigError: it cannot go on, or it runs.
        TranscriptError: it cannot be read, or another process was faster.
    """
    check(found, request, message=message, env=env)
    if not is_forced:
        await _demand_free(found, cluster)
    generation = await _opened(found, cluster)
    return continuing(
        found.session_id,
        request,
        generation=generation,
        cluster=cluster,
        model=model,
        approver=approver,
        sinks=sinks,
        message=message,
        secrets=secrets,
        next_message=next_message,
        env=env,
        by=by,
        make_loop=make_loop,
    )


def continuing(
    session_id: str,
    request: SessionRequest,
    *,
    generation: int,
    cluster: Cluster,
    model: ModelClient,
    approver: Approver,
    sinks: Iterable[EventSink],
    message: str = "",
    secrets: Iterable[str] = (),
    next_message: NextMessage | None = None,
    env: Mapping[str, str] | None = None,
    by: str,
    is_ending: bool = False,
    make_loop: Callable[..., SessionLoop] = SessionLoop,
) -> SessionRunner:
    """Return the runner of a session that is ours in Redis under this generation; else as `resume`.

    With `is_ending` it was cancelled, and goes on only to say so: it needs little room on the disk.

    Raises:
        TranscriptError: it cannot be read, or another process was faster.
    """
    session_dir = cluster.state_dir / "sessions" / session_id
    # Read only now: what the owner before wrote until it lost the session counts.
    reading = read_session(session_dir)
    rebuilt = rebuild(reading.entries)
    if reading.entries and rebuilt.started is None:
        raise TranscriptError(f"The transcript of session {session_id} does not say how it began.")
    box = BoxOptions(extras=request.box.extras, env=env or request.box.env or kept_env(session_dir))
    if env:
        try:
            box.forget(session_dir)
            box.lay_out(session_dir)
        except OSError as exc:
            raise TranscriptError(f"{session_dir} cannot be written: {exc}") from exc
    return SessionRunner(
        replace(request, box=box),
        cluster=cluster,
        model=model,
        approver=approver,
        sinks=sinks,
        secrets=secrets,
        session_id=session_id,
        next_message=next_message,
        continued=Continued(reading, rebuilt, generation, by, message, is_ending),
        make_loop=make_loop,
    )


def kept_env(session_dir: Path) -> dict[str, str]:
    """Return the values of a session's variables as they are kept for its box; none where they are not.

    Raises:
        TranscriptError: they cannot be read.
    """
    try:
        return dict(_ENV.validate_json((session_dir / ENV_FILE).read_bytes()))
    except FileNotFoundError:
        return {}
    except (OSError, ValidationError) as exc:
        raise TranscriptError(f"{session_dir / ENV_FILE} cannot be read.") from exc


async def _demand_free(found: Resumable, cluster: Cluster) -> None:
    """Raise where the session has an owner that lives.

    Raises:
        ConfigError: it has.
    """
    owner = await _ask(partial(cluster.store.owner_of, found.session_id))
    if owner is not None and owner != cluster.ownership.coordinator:
        raise ConfigError(f"Session {found.session_id} runs: coordinator {owner} has it.")
    if is_being_written(found.session_dir):
        raise ConfigError(f"Session {found.session_id} runs: another process has its transcript open.")


async def _opened(found: Resumable, cluster: Cluster) -> int:
    least = found.reading.newest_generation + 1
    return await _ask(partial(cluster.store.open_session, found.session_id, least, cluster.ownership.coordinator))


async def _ask(ask: Callable[[], Awaitable[_T]]) -> _T:
    try:
        return await patiently(ask, asyncio.Event(), REDIS_S)
    except RedisLost as exc:
        raise ConfigError(f"{exc} Start it, or correct SANDHOG_REDIS_URL.") from exc
