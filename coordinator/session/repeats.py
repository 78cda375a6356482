"""Calls that fail again and again in the same way: plan → **repeats** → step, loop.

The same call with the same arguments and the same error: the second answer says so, the third time it is refused
without being run, and with the fourth the session ends. Within one reply it counts once.

A failure is forgotten when a call that may have changed something succeeded, since then it may come out otherwise; a
conflict also when a Read succeeded, which is what cures it. Another error of the same call begins the count anew.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from coordinator.session.budget import Answered
from coordinator.session.plan import PlannedCall
from tools.base import ErrorCode, ToolFailure, ToolResult
from worker.contract.orders import call_digest

TOLD_AT, REFUSED_FROM, ENDED_AT = 2, 3, 4

UNCOUNTED = frozenset({ErrorCode.CANCELLED, ErrorCode.CIRCUIT_OPEN, ErrorCode.OUTCOME_UNKNOWN, ErrorCode.LIMIT_REACHED})
"""Errors that are no answer to the call itself."""

TOLD = (
    "This very call failed before with the same error, and nothing has changed since. It will fail again: do something "
    "else. Made once more, it is not run."
)
REFUSED = (
    "{name} was not run: with these arguments it failed twice with the same error ({error}), and nothing has changed "
    "since. Do something else; asked for once more, it ends the session."
)


class RefusedAgain(ToolFailure):
    """A call that failed too often to be run again."""


@dataclass
class _Failure:
    code: ErrorCode
    words: str
    count: int
    step: int


class Repeats:
    """Knows what failed in one conversation."""

    def __init__(self) -> None:
        self._failures: dict[str, _Failure] = {}
        self.stop_reason = ""
        """Why the session must end; "" while it need not."""

    def begin_anew(self) -> None:
        """Forget all: somebody has spoken to the model since."""
        self._failures.clear()
        self.stop_reason = ""

    def checked(self, calls: Sequence[PlannedCall]) -> tuple[PlannedCall, ...]:
        """Return the calls of a reply, refusals at those that failed too often."""
        return tuple(self._checked(call) for call in calls)

    def _checked(self, call: PlannedCall) -> PlannedCall:
        failure = self._failures.get(_name_of(call))
        if failure is None or failure.count + 1 < REFUSED_FROM:
            return call
        error = failure.words if len(failure.words) <= 200 else failure.words[:200] + "…"
        refusal = RefusedAgain(failure.code, REFUSED.format(name=call.name, error=error))
        return replace(call, refusal=refusal)

    def noted(self, step: int, answer: Answered) -> Answered:
        """Take note of an answer, and return it with what must be said of it."""
        call, result = answer.call, answer.result
        if result.status != "error":
            self._forget(call)
            return answer
        if result.error_code is None or result.error_code in UNCOUNTED:
            return answer
        name, words = _name_of(call), result.error_message or ""
        failure = self._failures.get(name)
        is_refused = isinstance(call.refusal, RefusedAgain)
        if failure is None or not (is_refused or (failure.code, failure.words) == (result.error_code, words)):
            self._failures[name] = _Failure(result.error_code, words, 1, step)
            return answer
        if failure.step == step:
            return answer
        failure.count, failure.step = failure.count + 1, step
        if failure.count >= ENDED_AT:
            self.stop_reason = f"repeated_call: {call.name} was asked for again and again and fails in the same way"
        return replace(answer, result=_told(result)) if failure.count == TOLD_AT else answer

    def _forget(self, call: PlannedCall) -> None:
        if call.tool is None:
            return
        if call.tool.effect != "reads":
            self._failures.clear()
        elif call.name == "Read":
            cured = [name for name, failure in self._failures.items() if failure.code is ErrorCode.CONFLICT]
            for name in cured:
                del self._failures[name]


def _told(result: ToolResult) -> ToolResult:
    return result.model_copy(update={"error_message": f"{result.error_message} {TOLD}"})


def _name_of(call: PlannedCall) -> str:
    # Arguments that cannot be used are told apart by their beginning and by what is wrong with them.
    if call.parameters is None:
        return f"{call.name}\n{call.summary}"
    return f"{call.name}\n{call_digest(call.name, call.arguments)}"
