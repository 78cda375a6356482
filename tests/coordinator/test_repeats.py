"""Calls that fail again in the same way: told once, refused next, and then the session stops."""

from typing import Any

from coordinator.endpoint.reply import RawCall
from coordinator.session.budget import Answered, refused
from coordinator.session.plan import PlannedCall, plan
from coordinator.session.repeats import TOLD, Repeats
from tools.base import ErrorCode, ToolResult
from tools.registry import builtin_registry

EDIT = ("Edit", {"path": "a", "old_string": "x", "new_string": "y"})
READ = ("Read", {"path": "a"})
BASH = ("Bash", {"command": "make"})


class Session:
    """Answers calls as a step does."""

    def __init__(self) -> None:
        self.repeats = Repeats()
        self.step = 0

    def reply(
        self, *calls: tuple[str, Any], code: ErrorCode | None = ErrorCode.NOT_FOUND, words: str = "no such text"
    ) -> list[Answered]:
        self.step += 1
        raw = [RawCall(at, str(at), name, arguments) for at, (name, arguments) in enumerate(calls)]
        planned = self.repeats.checked(plan(raw, [one.id or "" for one in raw], builtin_registry()))
        return [self.repeats.noted(self.step, self._answer(call, code, words)) for call in planned]

    def _answer(self, call: PlannedCall, code: ErrorCode | None, words: str) -> Answered:
        if call.refusal is not None:
            return refused(call)
        result = ToolResult(status="success", text="ok") if code is None else ToolResult.failure(code, words)
        return Answered(call, result)

    def failed(self, *calls: tuple[str, Any], **how: Any) -> str:
        (answer,) = self.reply(*calls, **how)
        return answer.result.error_message or ""


def test_told_once_then_refused_then_the_session_stops() -> None:
    session = Session()
    assert session.failed(EDIT) == "no such text"
    assert session.failed(EDIT) == f"no such text {TOLD}"
    assert "was not run" in session.failed(EDIT)
    assert session.repeats.stop_reason == ""
    assert "was not run" in session.failed(EDIT)
    assert session.repeats.stop_reason.startswith("repeated_call: Edit ")

    session.repeats.begin_anew()
    assert session.repeats.stop_reason == ""
    assert session.failed(EDIT) == "no such text", "another turn of a conversation"


def test_a_success_that_may_have_changed_something_begins_anew() -> None:
    session = Session()
    for _ in range(2):
        session.failed(EDIT)
    session.reply(READ, code=None)
    assert "was not run" in session.failed(EDIT), "reading does not make a text appear"
    session.reply(BASH, code=None)
    assert session.failed(EDIT) == "no such text"


def test_a_read_cures_a_conflict() -> None:
    session = Session()
    for _ in range(2):
        session.failed(EDIT, code=ErrorCode.CONFLICT)
    session.reply(READ, code=None)
    assert session.failed(EDIT, code=ErrorCode.CONFLICT) == "no such text"


def test_other_errors_other_arguments_and_passing_faults_do_not_count_together() -> None:
    session = Session()
    for words in ("line 1", "line 2", "line 3", "line 4"):
        assert session.failed(EDIT, words=words) == words
    for number in range(4):
        assert TOLD not in session.failed(("Read", {"path": f"f{number}"}))
    for _ in range(5):
        assert session.failed(BASH, code=ErrorCode.CIRCUIT_OPEN) == "no such text"
    assert session.repeats.stop_reason == ""


def test_one_reply_counts_once_and_what_cannot_be_planned_counts_too() -> None:
    session = Session()
    assert [answer.result.error_message for answer in session.reply(*[READ] * 5)] == ["no such text"] * 5
    for _ in range(3):
        session.reply(("Nope", {}))
    assert session.repeats.stop_reason == ""
    session.reply(("Nope", {}))
    assert session.repeats.stop_reason.startswith("repeated_call: Nope ")
