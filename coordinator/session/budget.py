"""The budget of one step: collect → **budget** → history.

Each result is within its own bound already (the worker's doing). Where a step's results together are over theirs,
the largest ones, first of those that were not cut yet, are cut until they fit; what is cut names the file that holds
all of it.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from pydantic import ValidationError

from coordinator.session.bounds import BUDGETS
from coordinator.session.event_fields import CutInfo
from coordinator.session.plan import PlannedCall
from tools.base import ErrorCode, ToolResult
from tools.cutting import cut_text
from worker.contract.orders import CallOutcome, Fate

LEAST_BYTES = 2_000
"""No result that was not cut yet is cut below this while cutting others helps."""


@dataclass(frozen=True)
class Answered:
    """A call with its one result."""

    call: PlannedCall
    result: ToolResult
    time_ms: float = 0.0
    """From dispatch to outcome."""
    spill_path: str = ""
    """Where a large text lies, as the box sees it; "" for a short one."""
    spill_hint: str = ""
    """What is missing there, or why it lies nowhere, to end a sentence with; "" when all of it is there."""
    cut: CutInfo | None = None
    attempt: int = 1
    note: str | None = None
    """What was special about this answer, for people."""
    box_note: str = ""
    """What the model must know about its box before it reads on."""

    @property
    def content(self) -> str:
        """The `tool` message's content."""
        result = self.result
        if self.box_note:
            result = result.with_text(f"[{self.box_note}]\n{result.text}")
        return result.to_answer()


def refused(call: PlannedCall) -> Answered:
    """Return the answer of a call that could not be planned."""
    assert call.refusal is not None
    return Answered(call, ToolResult.failure(call.refusal.code, call.refusal.message))


def answered(call: PlannedCall, outcome: CallOutcome, time_ms: float) -> Answered:
    """Return the answer that an outcome gives to its call."""
    match outcome.fate:
        case Fate.DID_NOT_RUN:
            result = ToolResult.failure(ErrorCode.EXECUTION_ERROR, outcome.reason)
        case Fate.UNKNOWN if outcome.result is None:
            result = ToolResult.failure(ErrorCode.OUTCOME_UNKNOWN, outcome.reason)
        case _:
            result = _result(outcome)
    cut = None
    if outcome.cut is not None:
        cut = CutInfo(
            total_bytes=outcome.cut.total_bytes,
            shown_bytes=outcome.cut.shown_bytes,
            path=outcome.spill_path or None,
        )
    note = outcome.reason or None
    return Answered(
        call, result, time_ms, outcome.spill_path, outcome.spill_hint, cut, outcome.key.attempt, note, outcome.box_note
    )


def _result(outcome: CallOutcome) -> ToolResult:
    try:
        # A node of a later release may say more.
        return ToolResult.model_validate(outcome.result, extra="ignore")
    except ValidationError as exc:
        fault = exc.errors(include_url=False, include_context=False, include_input=False)[0]["msg"]
        words = f"The call ran, but its node's result cannot be read ({fault}); look at what it did."
        return ToolResult.failure(ErrorCode.INTERNAL_ERROR, words)


def within_step(answers: Sequence[Answered], bound_bytes: int = BUDGETS.step_bytes) -> list[Answered]:
    """Return the answers, in their order, with texts that fit the step's bound together.

    Those that were cut at the worker are cut once more only where cutting the others is not enough.
    """
    fresh = [at for at, one in enumerate(answers) if one.cut is None]
    kept = _fitted(answers, fresh, bound_bytes, LEAST_BYTES)
    return _fitted(kept, range(len(kept)), bound_bytes, 0)


def _fitted(
    answers: Sequence[Answered], cuttable: Collection[int], bound_bytes: int, least_bytes: int
) -> list[Answered]:
    """Return the answers with the largest of the cuttable ones brought down to one common size."""
    sizes = [len(one.result.text.encode()) for one in answers]
    room = bound_bytes - sum(size for at, size in enumerate(sizes) if at not in cuttable)
    level = _level([sizes[at] for at in cuttable], room, least_bytes)
    return [_cut(one, level) if at in cuttable and sizes[at] > level else one for at, one in enumerate(answers)]


def _level(sizes: Sequence[int], room_bytes: int, least_bytes: int) -> int:
    """Return the size above which texts must be cut to it, so that all of them fit the room."""
    left = len(sizes)
    for size in sorted(sizes):
        if size * left > room_bytes:
            return max(least_bytes, room_bytes // left)
        room_bytes -= size
        left -= 1
    return max(sizes, default=0)


def _cut(answer: Answered, bound_bytes: int) -> Answered:
    where = answer.spill_hint or (f"all of it: {answer.spill_path}" if answer.spill_path else "")
    cut = cut_text(answer.result.text, bound_bytes, hint=f"; {where}" if where else "")
    if not cut.is_cut:
        return answer
    total_bytes = answer.cut.total_bytes if answer.cut else cut.total_bytes
    info = CutInfo(total_bytes=total_bytes, shown_bytes=cut.shown_bytes, path=answer.spill_path or None)
    return replace(answer, result=answer.result.with_text(cut.text), cut=info)
