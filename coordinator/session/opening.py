"""How a session begins: its directory, and the first event of what its owner writes."""

from collections.abc import Iterable
from pathlib import Path

from coordinator.endpoint.model import ModelSettings
from coordinator.errors import ConfigError, TranscriptError
from coordinator.session.catching_up import Continued
from coordinator.session.redact import Redactor
from coordinator.session.request import SessionRequest
from coordinator.session.saved import save_session
from coordinator.session.session_events import SessionResumed, SessionStarted
from tools.rules import rules_to_text


def make_session_dir(
    session_dir: Path, request: SessionRequest, settings: ModelSettings, secrets: Iterable[str]
) -> None:
    """Make a new session's directory, with all in it that its owner needs to go on one day.

    Raises:
        ConfigError: no node could ever give its source; nothing of it is kept, for its URL may hold a password.
        TranscriptError: it cannot be made.
    """
    try:
        if request.source is not None:
            request.source.check()
    except ValueError as exc:
        raise ConfigError(str(exc)) from exc
    try:
        # A service keeps its record there first; who owns the session is decided by its transcript.
        session_dir.mkdir(parents=True, exist_ok=True)
        (session_dir / "spill").mkdir(mode=0o755)
        request.box.lay_out(session_dir)
        save_session(session_dir, session_dir.name, request, settings, Redactor(secrets))
    except OSError as exc:
        words = f"{session_dir} cannot be made: {exc}. SANDHOG_STATE_DIR names its root."
        raise TranscriptError(words) from exc


def started(
    request: SessionRequest, *, session_id: str, generation: int, settings: ModelSettings, system: str
) -> SessionStarted:
    """Return the event that says what was decided before the first request; `system` is the system message."""
    return SessionStarted(
        session_id=session_id,
        generation=generation,
        prompt=request.prompt,
        model=settings.model,
        policy=request.workspace.policy.value,
        workspace_mode=request.workspace.mode.value,
        workspace_reason=request.workspace.reason,
        workspace=request.origin,
        image=request.image,
        max_steps=request.limits.steps,
        limits=request.limits,
        allow_hosts=list(request.box.extras.allow_hosts),
        system=system,
        rules=rules_to_text(request.rules),
    )


def resumed(continued: Continued, *, session_id: str, settings: ModelSettings) -> SessionResumed:
    """Return the first event of a later owner."""
    return SessionResumed(
        session_id=session_id,
        generation=continued.generation,
        previous=continued.reading.generation,
        accepted_bytes=continued.reading.valid_bytes,
        by=continued.by,
        model=settings.model,
    )
