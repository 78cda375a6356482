"""The model loop: limits, repeated calls, windows and odd replies, against the scripted endpoint and a real Redis."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

import pytest

from coordinator.cluster.approval_requests import Requests
from coordinator.cluster.collect import ReplyReader
from coordinator.cluster.dispatch import Dispatcher
from coordinator.cluster.execute import Executor
from coordinator.cluster.seat import Seat
from coordinator.cluster.settle import Settler
from coordinator.cluster.store import Store, connect
from coordinator.cluster.watch import Watch
from coordinator.endpoint.model import ModelClient, ModelSettings
from coordinator.endpoint.scripted import Script, ScriptedCall, ScriptedEndpoint, Turn
from coordinator.session.approvals import Approvals, Never
from coordinator.session.breakers import Breakers, ShownTools
from coordinator.session.context import Context
from coordinator.session.events import Event
from coordinator.session.history import History, validate
from coordinator.session.home_tools import HOME_TOOLS, HomeCall
from coordinator.session.limits import Limits, LiveLimits
from coordinator.session.loop import Ending, SessionLoop
from coordinator.session.model_table import ModelFacts
from coordinator.session.session_events import LimitsChanged, Notice
from coordinator.session.spend import Spend, WallClock
from coordinator.session.step import StepRunner
from coordinator.session.step_events import ContextCompacted, ModelReplied, TokensSpent
from tools.base import ErrorCode, Parameters, RunContext, Tool, ToolFailure, ToolResult
from tools.registry import Registry, builtin_registry
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
SEAT = Seat(BOX, NodeLife(node="a", incarnation="a-1", places=1, lanes=4), Policy.BOXED, "local")


class LookParameters(Parameters):
    """What is looked at."""

    at: str
    """Its name."""


class Look(Tool[LookParameters]):
    """Stands for a tool that needs no box."""

    name = "Look"
    description = "Looks."
    parameters = LookParameters
    runs_on = "coordinator"
    effect: ClassVar[Literal["reads", "changes", "runs_commands"]] = "reads"

    def run(self, arguments: LookParameters, context: RunContext) -> ToolResult:
        raise ToolFailure(ErrorCode.INTERNAL_ERROR, "not here")


REGISTRY = Registry([*builtin_registry().tools(), Look()])
SUMMED_UP = Turn("what was done")


def look(at: str = "x") -> Turn:
    return Turn(calls=(ScriptedCall("Look", {"at": at}),))


def steps(*turns: Turn) -> Callable[[list[dict[str, Any]]], Turn]:
    """Turns in order, whatever is said between; the wish to sum up is answered."""
    left = list(turns)

    def script(messages: list[dict[str, Any]]) -> Turn:
        if "Sum up for the user" in str(messages[-1]["content"]):
            return SUMMED_UP
        return left.pop(0) if len(left) > 1 else left[0]

    return script


@dataclass
class Played:
    """A loop that came to its end."""

    ending: Ending
    loop: SessionLoop
    requests: list[dict[str, Any]]
    events: list[Event] = field(default_factory=list)

    def of(self, kind: type[Event]) -> Sequence[Any]:
        return [event for event in self.events if isinstance(event, kind)]

    @property
    def answers(self) -> list[dict[str, Any]]:
        return [json.loads(one["content"]) for one in self.loop.history.messages if one["role"] == "tool"]


Play = Callable[..., Awaitable[Played]]


async def nothing() -> None:
    """Nothing is kept."""


@pytest.fixture
async def play(redis_url: str) -> AsyncIterator[Play]:
    client, reading = connect(redis_url), connect(redis_url, blocking_s=5)
    store, dispatcher = Store(client), Dispatcher(create_app(redis_url), "me")
    async with ReplyReader(reading, "me") as reader, Watch(store) as watch:
        settler = Settler(store=store, reader=reader, dispatcher=dispatcher, watch=watch)
        executor = Executor(store=store, dispatcher=dispatcher, settler=settler, watch=watch)

        async def run(
            script: Script,
            limits: Limits = Limits(steps=20),  # noqa: B008 - frozen
            *,
            looked: Callable[[HomeCall], Awaitable[ToolResult]] | None = None,
            facts: ModelFacts = ModelFacts(),  # noqa: B008 - frozen
            window_tokens: int | None = None,
            cancelled: asyncio.Event | None = None,
            on_event: Callable[[Event, LiveLimits], None] = lambda event, live: None,
        ) -> Played:
            events: list[Event] = []
            live = LiveLimits(limits, facts=facts)
            clock = WallClock()

            def emit(event: Event) -> None:
                events.append(event)
                clock(event)
                on_event(event, live)

            async def see(call: HomeCall) -> ToolResult:
                return ToolResult(status="success", text="seen")

            generation = await store.open_session("s1")
            history = History("Be good.")
            history.add_user("look around", "user")
            with ScriptedEndpoint(script) as endpoint:
                model = ModelClient(ModelSettings("m", base_url=endpoint.base_url), sleep=lambda _: asyncio.sleep(0))
                loop = SessionLoop(
                    model=model,
                    registry=REGISTRY,
                    shown=ShownTools(Breakers(client), REGISTRY, "s1", emit, strict=False),
                    steps=StepRunner(
                        executor,
                        store,
                        Approvals(Requests(client), Never(), emit),
                        emit,
                        REGISTRY,
                        home_tools={**HOME_TOOLS, "Look": looked or see},
                    ),
                    emit=emit,
                    sync=nothing,
                    limits=live,
                    spend=Spend(facts),
                    clock=clock,
                    history=history,
                    context=Context(window_tokens, lambda text: "/spill/kept.txt"),
                )
                seat = asyncio.create_task(_seat(generation))
                try:
                    ending = await loop.run(seat, cancelled or asyncio.Event())
                finally:
                    await model.close()
                    seat.cancel()
                for request in endpoint.requests:
                    validate(request["messages"], for_request=True)
                return Played(ending, loop, list(endpoint.requests), events)

        yield run
    dispatcher.close()
    await client.aclose()
    await reading.aclose()


async def _seat(generation: int) -> Seat:
    return replace(SEAT, box=BOX.model_copy(update={"generation": generation}))


async def test_at_its_last_step_the_model_sums_up_without_tools(play: Play) -> None:
    played = await play(steps(look()), Limits(steps=3))
    assert played.ending == Ending("stopped", "limit: steps: 3 replies were used up", "what was done")
    assert ["tools" in request for request in played.requests] == [True, True, True, False]


async def test_calls_beyond_the_limit_are_answered_and_not_run(play: Play) -> None:
    many = Turn(calls=tuple(ScriptedCall("Look", {"at": str(at)}) for at in range(4)))
    played = await play(steps(look(), many), Limits(calls=3))
    assert played.ending.stop_reason == "limit: calls: 5 of 3 were answered"
    assert [one.get("error", {}).get("code") for one in played.answers] == [None] * 3 + ["LIMIT_REACHED"] * 2


async def test_calls_made_when_summing_up_are_answered_and_not_run(play: Play) -> None:
    played = await play(lambda _: look(), Limits(steps=1))
    assert played.ending == Ending("stopped", "limit: steps: 1 replies were used up", "")
    assert [one["status"] for one in played.answers] == ["success", "error"]
    validate(played.loop.history.messages)


async def test_far_beyond_a_limit_nothing_more_is_asked(play: Play) -> None:
    played = await play(steps(look()), Limits(tokens_in=10))
    assert played.ending.stop_reason.startswith("limit: tokens in: ")
    assert (played.ending.text, len(played.requests)) == ("", 1)
    cost = ModelFacts(input_usd=1000, output_usd=1000)
    played = await play(steps(look()), Limits(cost_usd=0.001), facts=cost)
    assert played.ending.stop_reason.startswith("limit: cost: $")
    assert len(played.requests) == 1


async def test_an_endpoint_that_is_away_does_not_hide_why_a_session_stopped(play: Play) -> None:
    def script(messages: list[dict[str, Any]]) -> Turn:
        return look() if len(messages) < 4 else Turn(status=400, error="no")

    played = await play(script, Limits(steps=1))
    assert played.ending == Ending("stopped", "limit: steps: 1 replies were used up", "")


async def test_limits_that_change_hold_from_the_next_step(play: Play) -> None:
    def change(event: Event, live: LiveLimits) -> None:
        if isinstance(event, ModelReplied) and event.step == 2:
            live.change(Limits(steps=3))

    played = await play(steps(look()), on_event=change)
    assert played.ending.stop_reason == "limit: steps: 3 replies were used up"
    assert [event.limits for event in played.of(LimitsChanged)] == [Limits(steps=3)]


async def test_a_time_that_is_over_ends_what_runs_and_a_longer_one_lets_it_run(play: Play) -> None:
    begun = asyncio.Event()

    async def wait(call: HomeCall) -> ToolResult:
        begun.set()
        await call.cancelled.wait()
        raise ToolFailure(ErrorCode.CANCELLED, "cancelled")

    def shorten(event: Event, live: LiveLimits) -> None:
        if event.type == "call_started":
            live.change(Limits(time_s=0.001))

    played = await play(steps(look()), Limits(time_s=600), looked=wait, on_event=shorten)
    assert begun.is_set()
    assert played.ending.status == "stopped"
    assert played.ending.stop_reason.startswith("limit: time: ")
    assert played.ending.text == "what was done"
    assert [one["error"]["code"] for one in played.answers] == ["CANCELLED"]


async def test_a_time_that_is_over_while_the_model_talks_ends_the_request(play: Play) -> None:
    slow = Turn("word " * 100, chunk_delay_s=0.05, chunk_chars=5)

    def shorten(event: Event, live: LiveLimits) -> None:
        if event.type == "text_delta":
            live.change(Limits(time_s=0.001))

    played = await play(steps(slow), on_event=shorten)
    assert played.ending.stop_reason.startswith("limit: time: ")


async def test_the_same_failing_call_is_told_refused_and_ends_the_session(play: Play) -> None:
    ran: list[str] = []

    async def fail(call: HomeCall) -> ToolResult:
        ran.append(str(call.planned.arguments["at"]))
        raise ToolFailure(ErrorCode.NOT_FOUND, "nothing there")

    played = await play(steps(look()), looked=fail)
    assert ran == ["x", "x"]
    messages = [one["error"]["message"] for one in played.answers]
    assert messages[0] == "nothing there"
    assert messages[1].startswith("nothing there This very call failed before")
    assert [message.startswith("Look was not run: ") for message in messages[2:]] == [True, True]
    assert played.ending.stop_reason.startswith("repeated_call: Look ")
    assert played.ending.text == "what was done"


async def test_usage_that_no_endpoint_says_is_estimated_and_says_so(play: Play) -> None:
    chunk = {"choices": [{"index": 0, "delta": {"content": "hello"}, "finish_reason": "stop"}]}
    played = await play([Turn(raw_sse=b"data: " + json.dumps(chunk).encode() + b"\n\ndata: [DONE]\n\n")])
    usage = played.loop.spend.usage
    assert usage.is_estimated
    assert usage.prompt_tokens > 1_000
    (replied,) = played.of(ModelReplied)
    assert replied.usage == usage


async def test_a_try_that_broke_off_is_counted(play: Play) -> None:
    played = await play([Turn("hello " * 30, first=(Turn("hello " * 30, is_cut=True),))])
    assert played.ending.status == "completed"
    (spent,) = played.of(TokensSpent)
    assert spent.on == "retry"
    (replied,) = played.of(ModelReplied)
    assert played.loop.spend.usage == replied.usage.plus(spent.usage)


async def test_an_endpoint_that_finds_the_messages_too_long_is_asked_once_more(play: Play) -> None:
    error = {"message": "maximum context length is 9000 tokens", "code": "context_length_exceeded"}
    refusing = Turn(status=400, error=error)

    async def see(call: HomeCall) -> ToolResult:
        return ToolResult(status="success", text="y" * 6_000)

    def script(messages: list[dict[str, Any]]) -> Turn:
        if "Answer with the summary alone" in str(messages[-1]["content"]):
            return Turn("Looked around.")
        if len(json.dumps(messages)) > 30_000:
            return refusing
        script.made += 1  # type: ignore[attr-defined]
        return look(str(script.made)) if script.made < 12 else Turn("done")  # type: ignore[attr-defined]

    script.made = 0  # type: ignore[attr-defined]
    played = await play(script, looked=see)
    assert played.ending == Ending("completed", "done", "done")
    assert played.of(ContextCompacted)
    assert played.loop.context.window_tokens == 9_000
    assert "look around" in str(played.requests[-1]["messages"][1]["content"])

    always = await play([refusing])
    assert always.ending.status == "failed"
    assert always.ending.stop_reason.startswith("model: ")
    assert "maximum context length" in always.ending.stop_reason
    assert len(always.requests) == 1, "there was nothing to make shorter"


@pytest.mark.parametrize(
    ("turns", "ending"),
    [
        ([Turn("half a", finish_reason="length"), Turn("the rest")], Ending("completed", "done", "the rest")),
        ([Turn("", finish_reason="length")], Ending("stopped", "length: the reply was cut before it said anything")),
        (
            [Turn("so far", finish_reason="content_filter")],
            Ending("stopped", "content_filter: the endpoint withheld the reply", "so far"),
        ),
        ([Turn(""), Turn("yes")], Ending("completed", "done", "yes")),
        ([Turn("")], Ending("failed", "empty reply")),
    ],
)
async def test_odd_replies_end_or_go_on_as_their_reason_says(play: Play, turns: list[Turn], ending: Ending) -> None:
    played = await play(steps(*turns))
    assert played.ending == ending


async def test_a_reply_cut_in_a_call_runs_nothing(play: Play) -> None:
    ran: list[HomeCall] = []

    async def see(call: HomeCall) -> ToolResult:
        ran.append(call)
        return ToolResult(status="success", text="seen")

    cut = Turn("", calls=(ScriptedCall("Look", '{"at": "x'),), finish_reason="length")
    played = await play(steps(cut, Turn("done")), looked=see)
    assert played.ending.status == "completed"
    assert not ran
    assert "cut off by the length limit" in str(played.requests[-1]["messages"][-1]["content"])


async def test_a_refusal_ends_with_the_models_words(play: Play) -> None:
    chunk = {"choices": [{"index": 0, "delta": {"refusal": "I will not."}, "finish_reason": "stop"}]}
    played = await play([Turn(raw_sse=b"data: " + json.dumps(chunk).encode() + b"\n\ndata: [DONE]\n\n")])
    assert played.ending == Ending("stopped", "refusal: the model declined", "I will not.")


async def test_an_empty_reply_is_asked_for_once_more_in_each_step(play: Play) -> None:
    played = await play(steps(Turn(""), look(), Turn(""), Turn("done")))
    assert played.ending.status == "completed"
    assert len([event for event in played.of(Notice) if "empty" in event.text]) == 2
    assert played.loop.spend.steps == 2


async def test_a_cancelled_session_is_not_asked_to_sum_up(play: Play) -> None:
    cancelled = asyncio.Event()

    async def cancel(call: HomeCall) -> ToolResult:
        cancelled.set()
        with suppress(TimeoutError):
            await asyncio.wait_for(call.cancelled.wait(), 60)
        return ToolResult(status="success", text="seen")

    played = await play(steps(look()), looked=cancel, cancelled=cancelled)
    assert played.ending == Ending("cancelled", "cancelled")
    assert len(played.requests) == 1
