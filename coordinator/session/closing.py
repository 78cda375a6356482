"""How a session ends: the last event, and the result that says the same."""

from contextlib import suppress

from coordinator.errors import TranscriptError
from coordinator.session.emitting import Emitter
from coordinator.session.loop import Ending, SessionLoop
from coordinator.session.request import SessionRequest
from coordinator.session.result import SessionResult
from coordinator.session.session_events import SessionEnded, SessionEnding
from worker.contract.orders import FinishOutcome


async def decide(ending: Ending, emit: Emitter) -> None:
    """Keep how a session ends: that may take minutes to come, and whoever has it by then must not go on with it."""
    if not ending.is_lost:
        # What cannot be kept now is told with the last event.
        with suppress(TranscriptError):
            await emit.last([SessionEnding(status=ending.status, stop_reason=ending.stop_reason)])


def ended(
    ending: Ending, loop: SessionLoop, *, cost_usd: float | None = None, patch_path: str | None = None
) -> SessionEnded:
    """Return the last event of a session, or of a sub-agent."""
    spend = loop.spend
    return SessionEnded(
        status=ending.status,
        stop_reason=ending.stop_reason,
        text=ending.text,
        steps=spend.steps,
        calls=spend.calls,
        usage=spend.usage,
        cost_usd=cost_usd,
        patch_path=patch_path,
        tool_list_changes=loop.shown.changes,
    )


def result_of(
    last: SessionEnded,
    request: SessionRequest,
    finished: FinishOutcome,
    *,
    session_id: str,
    transcript: str,
    patch: str | None,
    notes: list[str],
) -> SessionResult:
    """Return what the caller gets of a session with this last event, request and end of its workspace."""
    return SessionResult(
        session_id=session_id,
        status=last.status,
        stop_reason=last.stop_reason,
        text=last.text,
        steps=last.steps,
        calls=last.calls,
        usage=last.usage,
        cost_usd=last.cost_usd,
        transcript=transcript,
        patch=patch,
        patch_path=last.patch_path,
        applied=finished.applied,
        workspace=request.origin,
        workspace_mode=request.workspace.mode.value,
        workspace_reason=request.workspace.reason,
        notes=notes,
        check=finished.check,
    )
