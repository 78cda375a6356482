"""A step's calls that never leave the coordinator, and what is denied, on a real Redis."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import redis

from coordinator.cluster.approval_requests import Requests
from coordinator.cluster.collect import ReplyReader
from coordinator.cluster.dispatch import Dispatcher
from coordinator.cluster.execute import Executor
from coordinator.cluster.seat import Seat
from coordinator.cluster.settle import Settler
from coordinator.cluster.store import Store, connect
from coordinator.cluster.watch import Watch
from coordinator.endpoint.reply import RawCall
from coordinator.errors import LostSession
from coordinator.session.approvals import Approvals, Approver, Elsewhere, Never
from coordinator.session.call_events import ApprovalAsked, CallFinished, CallStarted, TodosWritten
from coordinator.session.events import Event
from coordinator.session.home_tools import HomeCall, HomeTool
from coordinator.session.partition import Travel, batches, stretches
from coordinator.session.plan import PlannedCall, plan
from coordinator.session.step import StepRunner
from coordinator.session.transcript import segment_path
from tools.base import ErrorCode, Parameters, RunContext, Tool, ToolFailure, ToolResult
from tools.policy_file import read_policy
from tools.registry import Registry, builtin_registry
from tools.rules import Rules
from worker.app import create_app
from worker.contract.orders import BoxOrder, NodeLife, Policy, WorkspaceMode

BOX = BoxOrder(
    session="s1",
    generation=1,
    session_dir="/state/s1",
    image="box:1",
    workspace="/p",
    workspace_mode=WorkspaceMode.BIND,
)
NODE = NodeLife(node="a", incarnation="a-1", places=1, lanes=4)


class AskOthers(Tool[Parameters]):
    """Stands for a tool that runs sessions of its own."""

    name = "AskOthers"
    description = "Asks."
    parameters = Parameters
    runs_on = "coordinator"
    effect = "reads"

    def is_concurrency_safe(self, arguments: Parameters) -> bool:
        return True

    def run(self, arguments: Parameters, context: RunContext) -> ToolResult:
        raise ToolFailure(ErrorCode.INTERNAL_ERROR, "not here")


REGISTRY = Registry([*builtin_registry().tools(), AskOthers()])
TODOS = {"todos": [{"content": "mend it", "status": "in_progress"}]}

Run = Callable[..., Awaitable[list[dict[str, Any]]]]


def calls(*wanted: tuple[str, dict[str, Any]]) -> tuple[PlannedCall, ...]:
    raw = [RawCall(index=at, id=str(at), name=name, arguments=arguments) for at, (name, arguments) in enumerate(wanted)]
    return plan(raw, [one.id or "" for one in raw], REGISTRY)


@pytest.fixture
def events() -> list[Event]:
    return []


@pytest.fixture
async def run(redis_url: str, events: list[Event]) -> AsyncIterator[Run]:
    client, reading = connect(redis_url), connect(redis_url, blocking_s=5)
    store, dispatcher = Store(client), Dispatcher(create_app(redis_url), "me")
    async with ReplyReader(reading, "me") as reader, Watch(store) as watch:
        settler = Settler(store=store, reader=reader, dispatcher=dispatcher, watch=watch)
        executor = Executor(store=store, dispatcher=dispatcher, settler=settler, watch=watch)

        async def answer(
            planned: tuple[PlannedCall, ...],
            home_tools: dict[str, HomeTool] | None = None,
            cancelled: asyncio.Event | None = None,
            policy: Policy = Policy.BOXED,
            rules: Rules | None = None,
            box: BoxOrder = BOX,
            is_known: bool = True,
            meanwhile: Callable[[StepRunner], Awaitable[None]] | None = None,
            approver: Approver | None = None,
            **seat: Any,
        ) -> list[dict[str, Any]]:
            more = {} if home_tools is None else {"home_tools": home_tools}
            approvals = Approvals(Requests(client), approver or Never(), events.append)
            steps = StepRunner(executor, store, approvals, events.append, REGISTRY, **more)  # type: ignore[arg-type]
            if is_known:
                await store.open_session("s1")
            seated = Seat(box, NODE, policy, "local", rules=rules, **seat)
            beside = asyncio.ensure_future(meanwhile(steps)) if meanwhile else None
            found = await steps.run(1, planned, seated, cancelled or asyncio.Event())
            if beside is not None:
                await beside
            return [json.loads(one) for one in found]

        yield answer
    dispatcher.close()
    await client.aclose()
    await reading.aclose()


def test_coordinator_calls_are_a_stretch_of_their_own() -> None:
    planned = calls(
        ("Read", {"path": "a"}), ("TodoWrite", TODOS), ("Read", {"path": "b"}), ("Bash", {"command": "a"}),
        ("TodoWrite", TODOS), ("Bash", {"command": "b"}), ("AskOthers", {}), ("AskOthers", {}),
    )  # fmt: skip
    found = [(stretch.travel, [call.index for call in stretch.calls]) for stretch in stretches(planned)]
    assert found == [
        (Travel.GROUP, [0]),
        (Travel.HERE, [1]),
        (Travel.GROUP, [2]),
        (Travel.CHAIN, [3]),
        (Travel.HERE, [4]),
        (Travel.CHAIN, [5]),
        (Travel.HERE, [6, 7]),
    ]
    assert [len(batch) for batch in batches(planned)] == [1, 1, 1, 1, 1, 1, 2]


async def test_a_list_of_things_to_do_is_kept_and_answered(run: Run, events: list[Event]) -> None:
    (answer,) = await run(calls(("TodoWrite", TODOS)), policy=Policy.GUARDED)
    assert answer["status"] == "success"
    assert answer["text"].endswith("Now: mend it")
    assert answer["context"]["arguments"]["todos"]
    assert [event.type for event in events] == ["call_started", "todos_written", "call_finished"]
    written = events[1]
    assert isinstance(written, TodosWritten)
    assert [(todo.content, todo.status) for todo in written.todos] == [("mend it", "in_progress")]


async def test_a_call_that_starts_says_in_which_life_of_redis(run: Run, events: list[Event], redis_url: str) -> None:
    client = connect(redis_url)
    life, step = await Store(client).run_id(), calls(("TodoWrite", TODOS))
    await client.aclose()

    async def said(steps: StepRunner) -> None:
        while not steps.executor.run_id:
            await asyncio.sleep(0.05)

    # Unknown until Redis was asked for the first time.
    async with asyncio.timeout(30):
        await run(step, meanwhile=said)
        await run(step, is_known=False)
    first, second = [event for event in events if isinstance(event, CallStarted)]
    assert first.run_id in ("", life)
    assert second.run_id == life


async def test_safe_neighbours_run_at_once_and_answers_keep_their_order(run: Run, events: list[Event]) -> None:
    both, answered = asyncio.Barrier(2), asyncio.Event()

    async def meet(call: HomeCall) -> ToolResult:
        await both.wait()
        if call.planned.index == 0:
            await answered.wait()
        answered.set()
        return ToolResult(status="success", text=str(call.planned.index))

    async with asyncio.timeout(60):
        answers = await run(calls(("AskOthers", {}), ("AskOthers", {})), {"AskOthers": meet})
    assert [answer["text"] for answer in answers] == ["0", "1"]
    assert [event.index for event in events if isinstance(event, CallFinished)] == [1, 0]


async def test_whatever_a_coordinator_tool_does_its_call_has_an_answer_and_its_neighbours_run(
    run: Run, events: list[Event]
) -> None:
    async def fail(call: HomeCall) -> ToolResult:
        if call.planned.index == 0:
            raise ToolFailure(ErrorCode.LIMIT_REACHED, "too many")
        if call.planned.index == 1:
            raise RuntimeError("secret")
        return ToolResult(status="success", text="well")

    answers = await run(calls(*[("AskOthers", {})] * 3, ("TodoWrite", TODOS)), {"AskOthers": fail})
    codes = [answer.get("error", {}).get("code") for answer in answers]
    assert codes == ["LIMIT_REACHED", "INTERNAL_ERROR", None, "INTERNAL_ERROR"]
    assert "secret" not in json.dumps(answers)
    assert "nothing here" in answers[3]["error"]["message"]


async def test_a_cancelled_session_runs_nothing_here_either(run: Run, events: list[Event]) -> None:
    cancelled = asyncio.Event()
    cancelled.set()
    (answer,) = await run(calls(("TodoWrite", TODOS)), cancelled=cancelled)
    assert answer["error"]["code"] == "CANCELLED"
    assert not [event for event in events if isinstance(event, CallStarted)]


async def test_what_the_terms_deny_is_answered_and_never_sent(run: Run, events: list[Event]) -> None:
    rules = read_policy("[[rule]]\ntool = 'TodoWrite'\ndecision = 'allow'", REGISTRY)
    planned = calls(("Bash", {"command": "ls"}), ("TodoWrite", TODOS), ("Write", {"path": "a", "content": ""}))
    answers = await run(planned, rules=rules)
    assert [answer.get("error", {}).get("code") for answer in answers] == [
        "PERMISSION_DENIED",
        None,
        "PERMISSION_DENIED",
    ]
    assert "no rule of the policy file allows it" in answers[0]["error"]["message"]
    assert [event.index for event in events if isinstance(event, CallStarted)] == [1]


async def test_no_step_begins_of_a_session_that_a_later_owner_has_ended(
    run: Run, redis_client: redis.Redis, tmp_path: Path
) -> None:
    box = BOX.model_copy(update={"session_dir": str(tmp_path)})
    asked = calls(("TodoWrite", TODOS))
    segment_path(tmp_path, "s1", 1).touch()
    assert len(await run(asked, box=box, is_known=False)) == 1

    redis_client.flushall()
    segment_path(tmp_path, "s1", 2).touch()
    with pytest.raises(LostSession):
        await run(asked, box=box, is_known=False)


async def test_a_seat_that_only_reads_denies_the_rest(run: Run) -> None:
    answers = await run(calls(("Bash", {"command": "make"}), ("TodoWrite", TODOS)), is_read_only=True)
    assert "the session only reads" in answers[0]["error"]["message"]
    assert answers[1]["status"] == "success"


async def test_a_principals_tools_are_all_it_has(run: Run) -> None:
    answers = await run(calls(("Bash", {"command": "ls"}), ("TodoWrite", TODOS)), tools=frozenset({"TodoWrite"}))
    assert "not among the tools" in answers[0]["error"]["message"]
    assert answers[1]["status"] == "success"


async def test_a_question_that_nobody_answers_is_a_denial_with_its_reason(run: Run) -> None:
    (answer,) = await run(calls(("Bash", {"command": "make"})), policy=Policy.GUARDED)
    assert answer["error"]["code"] == "PERMISSION_DENIED"
    assert "`make` is not known to only read" in answer["error"]["message"]
    assert "nobody is there" in answer["error"]["message"]


async def test_calls_that_run_here_are_cancelled_one_by_one(run: Run, events: list[Event]) -> None:
    has_begun, may_end = asyncio.Event(), asyncio.Event()

    async def ask_others(call: HomeCall) -> ToolResult:
        if call.planned.index == 0:
            has_begun.set()
            await call.cancelled.wait()
            return ToolResult.failure(ErrorCode.CANCELLED, "It ended.", text="so far")
        await may_end.wait()
        return ToolResult(status="success", text="unharmed")

    async def cancel(steps: StepRunner) -> None:
        await has_begun.wait()
        assert await steps.cancel(2, 0) == await steps.cancel(1, 7) == {}, "there is no such call"
        assert await steps.cancel(1, 0) == {0: True}
        assert await steps.cancel(1, 2) == {2: False}
        while not any(isinstance(event, CallFinished) and event.index == 0 for event in events):
            await asyncio.sleep(0.01)
        assert await steps.cancel(1, 0) == {}, "it has its answer"
        may_end.set()

    planned = calls(("AskOthers", {}), ("AskOthers", {}), ("TodoWrite", TODOS))
    killed, other, never = await run(planned, {"AskOthers": ask_others}, meanwhile=cancel)
    assert (killed["error"]["message"], killed["text"]) == ("A person cancelled this call. It ended.", "so far")
    assert (other["status"], other["text"]) == ("success", "unharmed")
    assert never["error"] == {"code": "CANCELLED", "message": "A person cancelled this call before it ran."}
    assert [event.index for event in events if isinstance(event, CallStarted)] == [0, 1]
    assert len([event for event in events if isinstance(event, CallFinished)]) == len(planned)


async def test_a_call_about_which_a_human_is_asked_is_cancelled(run: Run, events: list[Event]) -> None:
    async def cancel(steps: StepRunner) -> None:
        while not any(isinstance(event, ApprovalAsked) for event in events):
            await asyncio.sleep(0.01)
        assert await steps.cancel(1, None) == {0: False}

    planned = calls(("Bash", {"command": "mkdir d; mv d e"}))
    (never,) = await run(planned, policy=Policy.GUARDED, approver=Elsewhere(), meanwhile=cancel)
    assert never["error"] == {"code": "CANCELLED", "message": "A person cancelled this call before it ran."}
