"""The last gate: whatever a tool does, there is one typed result, and it is sound."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from pydantic import JsonValue

from sandbox.box import Box
from sandbox.engine import DockerEngine
from sandbox.errors import BoxLost, LossReason
from tests.orders import box_order, call_order
from tools.base import AnyTool, ErrorCode, Parameters, RunContext, Tool, ToolFailure, ToolResult
from tools.loading import load_tools
from worker.boxes import Boxes
from worker.contract.orders import BoxOrder, CallKey, WorkspaceMode
from worker.errors import NoPlace
from worker.gates.deadline import Overdue, within
from worker.gates.gate import GateCall
from worker.gates.run import RunGate
from worker.mcp.entry import Mcp
from worker.own_secrets import Secrets
from worker.own_tools import OwnTools
from worker.spill import SpillFile

KEY = CallKey(session="s1", generation=1, step=1, index=0)


class NoParameters(Parameters):
    """No arguments."""


class Odd(Tool[NoParameters]):
    """Does what it is told to in place of running."""

    name = "Odd"
    description = "Do something odd."
    parameters = NoParameters

    def __init__(self, body: Callable[[RunContext], Any], limit_s: float = 60) -> None:
        self._body = body
        self._limit_s = limit_s

    def timeout_s(self, arguments: NoParameters) -> float:
        return self._limit_s

    def run(self, arguments: NoParameters, context: RunContext) -> ToolResult:
        return cast(ToolResult, self._body(context))


class Standing(Boxes):
    """Seats with a box that nothing is asked of: these tools do not use theirs."""

    def __init__(self) -> None:
        super().__init__(cast(DockerEngine, None), 20)
        self.lost_with: list[str] = []

    def box_for(self, order: BoxOrder, place_wait_s: float = 0.0) -> Box:
        return cast(Box, object())

    def lost(self, session: str, box: Box, why: BoxLost) -> None:
        self.lost_with.append(str(why))


@pytest.fixture
def run(state_dir: Path, tmp_path: Path) -> Iterator[Callable[..., ToolResult]]:
    own = OwnTools(load_tools(), Secrets(None), state_dir / "scratch")

    def run(
        body: Callable[[RunContext], Any],
        limit_s: float = 60,
        boxes: Boxes | None = None,
        is_cancelled: Callable[[], bool] = lambda: False,
    ) -> ToolResult:
        standing = boxes or Standing()
        gate = RunGate(standing, own, Mcp(standing, state_dir / "scratch"), grace_s=0.0)
        tool: AnyTool = Odd(body, limit_s)
        box = box_order(session_dir=tmp_path, workspace_mode=WorkspaceMode.COPY)
        order = call_order("Odd", key=KEY, box=box, principal="alice", attributes={"team": "red"})
        return gate(GateCall(order, tool, NoParameters(), SpillFile(tmp_path, KEY), False, is_cancelled=is_cancelled))

    yield run
    own.close()


class Full(Standing):
    """A node whose places are all taken."""

    def box_for(self, order: BoxOrder, place_wait_s: float = 0.0) -> Box:
        raise NoPlace


class Starting(Standing):
    """A node on which a call is cancelled while its box is being started."""

    is_asked = False

    def box_for(self, order: BoxOrder, place_wait_s: float = 0.0) -> Box:
        self.is_asked = True
        return super().box_for(order)


def failing(exc: BaseException) -> Callable[[RunContext], ToolResult]:
    def body(_: RunContext) -> ToolResult:
        raise exc

    return body


def test_a_full_node_is_neither_a_fault_nor_a_lost_box(run: Callable[..., ToolResult]) -> None:
    result = run(failing(AssertionError("it ran")), boxes=Full())

    assert result.error_code is ErrorCode.LIMIT_REACHED
    assert not result.error_code.counts_as_fault
    assert "Odd did not run" in (result.error_message or "")
    assert "every place of this node is taken" in (result.error_message or "")


def test_a_call_that_is_cancelled_while_its_box_is_started_does_not_run(run: Callable[..., ToolResult]) -> None:
    boxes = Starting()

    result = run(failing(AssertionError("it ran")), boxes=boxes, is_cancelled=lambda: boxes.is_asked)

    assert (result.error_code, result.error_message) == (ErrorCode.CANCELLED, "Odd was cancelled before it ran.")


@pytest.mark.parametrize(
    "body",
    [
        failing(KeyError("x")),
        failing(SystemExit(3)),
        failing(TimeoutError("not ours")),
        failing(RecursionError()),
        failing(ToolFailure(cast(ErrorCode, "NO_CODE"), "words")),
        failing(ToolFailure(ErrorCode.NOT_FOUND, "\ud800")),
        failing(ToolFailure(ErrorCode.NOT_FOUND, cast(str, None))),
        lambda _: None,
        lambda _: "text",
        lambda _: {"status": "success", "text": "x"},
        lambda _: ToolResult(status="success", text="x", data={"a": float("nan")}),
        lambda _: ToolResult(status="success", text="\ud800"),
        lambda _: ToolResult.model_construct(status="success", text="x", data={"a": cast(JsonValue, {1})}),
        lambda _: ToolResult.model_construct(status=cast(Any, "great"), text="x"),
        lambda _: ToolResult.model_construct(status="success", text=cast(str, None)),
        lambda _: ToolResult.model_construct(status="error", text="x"),
    ],
)
def test_what_is_no_result_becomes_one_internal_error(
    run: Callable[..., ToolResult], body: Callable[[RunContext], Any]
) -> None:
    result = run(body)

    assert result.error_code is ErrorCode.INTERNAL_ERROR
    assert result.error_message
    assert result.to_answer().encode()


def test_a_tool_that_never_returns_is_left_at_its_limit(run: Callable[..., ToolResult]) -> None:
    release = threading.Event()
    result = run(lambda _: release.wait(60), limit_s=0.05)
    release.set()

    assert result.error_code is ErrorCode.TIMEOUT
    assert "did not end within 0.05 s" in str(result.error_message)


def test_a_failure_keeps_its_code_and_words(run: Callable[..., ToolResult]) -> None:
    result = run(failing(ToolFailure(ErrorCode.CONFLICT, "look again")))

    assert (result.error_code, result.error_message) == (ErrorCode.CONFLICT, "look again")


def test_a_lost_box_is_told_as_such(run: Callable[..., ToolResult]) -> None:
    assert run(failing(BoxLost(LossReason.ENDED, "gone"))).error_code is ErrorCode.BOX_LOST


def test_a_box_lost_to_its_bound_is_a_limit_and_no_fault(run: Callable[..., ToolResult]) -> None:
    result = run(failing(BoxLost(LossReason.DISK, "/workspace holds 5 GiB")))

    assert result.error_code is ErrorCode.LIMIT_REACHED
    assert not result.error_code.counts_as_fault
    assert "/workspace holds 5 GiB" in str(result.error_message)


def test_a_result_is_the_tools_no_more(run: Callable[..., ToolResult]) -> None:
    kept: dict[str, JsonValue] = {"list": [1]}
    result = run(lambda _: ToolResult(status="success", text="x", data=kept))
    cast(list[int], kept["list"]).append(2)

    assert result.data == {"list": [1]}


def test_data_and_words_are_capped(run: Callable[..., ToolResult]) -> None:
    large = run(lambda _: ToolResult(status="success", text="x", data={"a": 1, "b": "y" * 50_000}))
    wordy = run(failing(ToolFailure(ErrorCode.NOT_FOUND, "y" * 50_000)))

    assert large.data["a"] == 1
    assert "b" not in large.data
    assert len(str(wordy.error_message)) < 5_000
    assert wordy.error_code is ErrorCode.NOT_FOUND


def test_a_tool_learns_for_whom_it_runs(run: Callable[..., ToolResult]) -> None:
    result = run(
        lambda context: ToolResult(status="success", text=f"{context.principal} of {context.attributes['team']}")
    )
    assert result.text == "alice of red"


def test_work_within_its_limit_is_returned_or_raised() -> None:
    assert within(10, lambda: 7, "w") == 7
    with pytest.raises(ZeroDivisionError):
        within(10, lambda: 1 // 0, "w")
    # A TimeoutError of the work's own is not taken for the limit.
    with pytest.raises(TimeoutError, match="its own"):
        within(10, lambda: cast(int, failing(TimeoutError("its own"))(cast(RunContext, None))), "w")
    hold = threading.Event()
    with pytest.raises(Overdue):
        within(0.01, lambda: hold.wait(60), "w")
    hold.set()
