"""Approvals on a real Redis: who is asked, whose answer counts, and what a yes for the session covers."""

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest
import redis

from coordinator.cluster.approval_requests import Requests
from coordinator.cluster.store import connect
from coordinator.endpoint.reply import RawCall
from coordinator.session.approvals import Always, Approvals, Approver, Decided, Elsewhere, Lasting, Never, full_text
from coordinator.session.call_events import ApprovalAnswered, ApprovalAsked
from coordinator.session.events import Event
from coordinator.session.plan import PlannedCall, plan
from tools.permission import GUARDED, Terms, decide
from tools.registry import builtin_registry
from worker.contract import keys
from worker.contract.approvals import ApprovalAnswer, ApprovalRequest, Taken

YES = ApprovalAnswer(answer_id="1", decision="allow", by="ann")
NO = ApprovalAnswer(answer_id="2", decision="deny", by="bob", note="not now")


class Person:
    """Answers here what the test says, when the test says so."""

    waits = True

    def __init__(self, *answers: Decided) -> None:
        self.seen: list[ApprovalRequest] = []
        self.asked = asyncio.Event()
        self.speaks = asyncio.Event()
        self.was_sent_away = False
        self._answers = list(answers)

    async def ask(self, request: ApprovalRequest) -> Decided | None:
        self.seen.append(request)
        self.asked.set()
        try:
            await self.speaks.wait()
        except asyncio.CancelledError:
            self.was_sent_away = True
            raise
        return self._answers.pop(0)


def bash(command: str, **more: object) -> PlannedCall:
    return planned("Bash", command=command, **more)


def planned(tool: str, **arguments: object) -> PlannedCall:
    (call,) = plan([RawCall(index=0, id="c", name=tool, arguments=arguments)], ["c"], builtin_registry())
    assert call.refusal is None, call.refusal
    return call


@pytest.fixture
async def requests(redis_url: str) -> AsyncIterator[Requests]:
    client = connect(redis_url)
    yield Requests(client)
    await client.aclose()


@pytest.fixture
def events() -> list[Event]:
    return []


@pytest.fixture
def approvals(requests: Requests, events: list[Event]) -> Callable[..., Approvals]:
    def make(approver: Approver, deadline_s: float = 60.0) -> Approvals:
        return Approvals(requests, approver, events.append, deadline_s)

    return make


def ask(
    approvals: Approvals, call: PlannedCall, *, terms: Terms = GUARDED, cancelled: asyncio.Event | None = None
) -> "asyncio.Task[Decided]":
    verdict = decide(call.name, call.arguments, terms)
    return asyncio.create_task(approvals.decide("s", 3, call, verdict, terms, cancelled or asyncio.Event()))


async def stands(requests: Requests) -> ApprovalRequest:
    """Wait until something waits for an answer."""
    async with asyncio.timeout(60):
        while True:
            found = await requests.waiting()
            if found:
                return found[0]
            await asyncio.sleep(0.01)


class TestRules:
    async def test_without_anybody_it_is_no_at_once_and_nothing_stands_in_redis(
        self, approvals: Callable[..., Approvals], redis_client: redis.Redis, events: list[Event]
    ) -> None:
        decided = await ask(approvals(Never()), bash("make"))
        assert not decided.is_allowed
        assert "nobody is there" in decided.note
        assert redis_client.dbsize() == 0
        asked, answered = events
        assert isinstance(asked, ApprovalAsked)
        assert isinstance(answered, ApprovalAnswered)
        assert (asked.summary, asked.within_s) == ("make", None)
        assert (answered.decision, answered.note) == ("deny", "--approve never")

    async def test_always_is_yes_at_once(self, approvals: Callable[..., Approvals]) -> None:
        assert (await ask(approvals(Always()), bash("make"))).is_allowed


class TestHere:
    async def test_the_answer_of_the_person_here_counts_and_is_kept(
        self, approvals: Callable[..., Approvals], requests: Requests, events: list[Event]
    ) -> None:
        person = Person(Decided(True, by="me"))
        task = ask(approvals(person), bash("cd a; make all"))
        request = await stands(requests)
        assert (request.session, request.name, request.tool, request.text) == ("s", "3.0", "Bash", "cd a; make all")
        assert request.part == (6, 14)
        assert request.lasting == [["make", "all"]]
        person.speaks.set()
        decided = await task
        assert decided == Decided(True, by="me")
        assert await requests.waiting() == []
        assert [event.type for event in events] == ["approval_asked", "approval_answered"]
        taken, counting = await requests.answer("s", "3.0", NO)
        assert taken is Taken.ANSWERED
        assert counting is not None
        assert counting.by == "me"

    async def test_a_cancelled_session_is_a_no(self, approvals: Callable[..., Approvals], requests: Requests) -> None:
        cancelled = asyncio.Event()
        person = Person()
        task = ask(approvals(person), bash("make"), cancelled=cancelled)
        await person.asked.wait()
        cancelled.set()
        assert (await task).by == "nobody answered"
        assert person.was_sent_away
        assert await requests.waiting() == []


class TestElsewhere:
    @pytest.mark.parametrize("answer", [YES, NO])
    async def test_an_answer_from_elsewhere_counts_and_sends_the_person_here_away(
        self, approvals: Callable[..., Approvals], requests: Requests, answer: ApprovalAnswer
    ) -> None:
        person = Person(Decided(True, by="me"))
        task = ask(approvals(person), bash("make"))
        await stands(requests)
        await person.asked.wait()
        assert await requests.answer("s", "3.0", answer) == (Taken.TAKEN, answer)
        decided = await task
        assert decided == Decided(answer.decision == "allow", answer.by, answer.note)
        assert person.was_sent_away

    async def test_of_many_answers_at_once_the_first_counts(
        self, approvals: Callable[..., Approvals], requests: Requests
    ) -> None:
        task = ask(approvals(Elsewhere()), bash("make"))
        await stands(requests)
        answers = [
            ApprovalAnswer(answer_id=str(at), decision="allow" if at % 2 else "deny", by=str(at)) for at in range(20)
        ]
        taken = await asyncio.gather(*[requests.answer("s", "3.0", answer) for answer in answers])
        winners = [answer for answer, (what, _) in zip(answers, taken, strict=True) if what is Taken.TAKEN]
        assert len(winners) == 1
        assert (await task).by == winners[0].by
        assert {counting.by for _, counting in taken if counting} == {winners[0].by}

    async def test_a_repeated_answer_is_still_the_one_that_was_taken(
        self, approvals: Callable[..., Approvals], requests: Requests
    ) -> None:
        task = ask(approvals(Elsewhere()), bash("make"))
        await stands(requests)
        assert (await requests.answer("s", "3.0", YES))[0] is Taken.TAKEN
        assert (await requests.answer("s", "3.0", YES))[0] is Taken.TAKEN
        await task

    async def test_nobody_within_the_deadline_is_a_no_and_later_answers_are_told_so(
        self, approvals: Callable[..., Approvals], requests: Requests
    ) -> None:
        decided = await ask(approvals(Elsewhere(), deadline_s=0.05), bash("make"))
        assert (decided.is_allowed, decided.by) == (False, "the deadline")
        taken, counting = await requests.answer("s", "3.0", YES)
        assert taken is Taken.ANSWERED
        assert counting is not None
        assert counting.by == "the deadline"

    async def test_an_answer_behind_the_deadline_is_none(self, requests: Requests) -> None:
        request = ApprovalRequest(session="s", step=1, index=0, tool="Bash", digest="d", text="make", reason="why")
        await requests.ask(request, 0.01)
        while await requests.waiting():
            await asyncio.sleep(0.005)
        assert await requests.answer("s", "1.0", YES) == (Taken.LATE, None)
        assert await requests.answer("s", "1.0", NO, is_final=True) == (Taken.TAKEN, NO)

    async def test_what_nobody_asks_cannot_be_answered(self, requests: Requests) -> None:
        assert await requests.answer("s", "9.0", YES) == (Taken.GONE, None)

    async def test_a_successor_goes_on_with_the_same_request_and_its_remaining_time(
        self, approvals: Callable[..., Approvals], requests: Requests
    ) -> None:
        first = ask(approvals(Elsewhere()), bash("make"))
        await stands(requests)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        asked = await requests.ask(await stands(requests), 1_000)
        assert 0 < asked.left_s <= 60
        await requests.answer("s", "3.0", YES)
        assert (await ask(approvals(Elsewhere()), bash("make"))).by == "ann"

    async def test_another_call_at_the_same_place_needs_an_answer_of_its_own(
        self, approvals: Callable[..., Approvals], requests: Requests
    ) -> None:
        first = ask(approvals(Elsewhere()), bash("make"))
        await stands(requests)
        await requests.answer("s", "3.0", YES)
        await first
        for call in (bash("make"), bash("make install")):
            again = ask(approvals(Elsewhere(), deadline_s=0.05), call)
            assert (await again).by == "the deadline"

    async def test_an_answer_that_a_dead_coordinator_left_is_for_its_own_call_only(
        self, approvals: Callable[..., Approvals], requests: Requests
    ) -> None:
        first = ask(approvals(Elsewhere()), bash("make"))
        await stands(requests)
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        await requests.answer("s", "3.0", YES)
        assert (await ask(approvals(Elsewhere(), deadline_s=0.05), bash("make install"))).by == "the deadline"

    async def test_requests_expire(
        self, approvals: Callable[..., Approvals], requests: Requests, redis_client: redis.Redis
    ) -> None:
        await ask(approvals(Elsewhere(), deadline_s=0.05), bash("make"))
        assert 0 < redis_client.ttl(keys.approval("s", "3.0")) <= 600
        assert redis_client.zcard(keys.APPROVALS) == 0


class TestLasting:
    @pytest.fixture
    def allowed(self, approvals: Callable[..., Approvals]) -> Callable[..., "asyncio.Task[Decided]"]:
        """Says yes to everything, for the session; `by` tells whether it was asked."""

        class Generous:
            waits = False

            async def ask(self, request: ApprovalRequest) -> Decided | None:
                return Decided(True, by="asked", is_lasting=True)

        kept = approvals(Generous())
        return lambda call: ask(kept, call)

    @pytest.mark.parametrize("later", ["make all", "cd sub && make all | tail -3", "/bin/ls; make all"])
    async def test_the_same_commands_are_not_asked_again(
        self, allowed: Callable[..., "asyncio.Task[Decided]"], later: str, events: list[Event]
    ) -> None:
        assert (await allowed(bash("make all"))).by == "asked"
        assert (await allowed(bash(later, timeout_ms=1_000))).by == "a rule of this session"
        assert len(events) == 2, "what is covered is no question"

    @pytest.mark.parametrize(
        "later",
        ["make", "make all install", "make all; make x", "echo x | make all", "make all > f", "A=b make all",
         "env make all", "./make all", "make $x", "make all; for i in 1; do ls; done"],
    )  # fmt: skip
    async def test_all_others_are(self, allowed: Callable[..., "asyncio.Task[Decided]"], later: str) -> None:
        await allowed(bash("make all"))
        assert (await allowed(bash(later))).by == "asked"

    async def test_what_words_do_not_tell_is_allowed_as_this_very_call_only(
        self, allowed: Callable[..., "asyncio.Task[Decided]"]
    ) -> None:
        for call in (bash("make all > f"), planned("Write", path="a", content="x")):
            assert (await allowed(call)).by == "asked"
            assert (await allowed(call)).by == "a rule of this session"
        for call in (bash("make all"), bash("make all > g"), planned("Write", path="a", content="y")):
            assert (await allowed(call)).by == "asked"

    def test_nothing_is_covered_by_nothing(self) -> None:
        assert not Lasting().covers("d", None)
        assert not Lasting().covers("d", frozenset({("make",)}))


def test_a_call_is_shown_whole_and_cannot_forge_an_argument() -> None:
    call = planned("Write", path="a", content="x\npath: b")
    assert full_text(call) == "path: a\ncontent: x\n    path: b"
    edit = planned("Edit", path="a", edits=[{"old_string": "x", "new_string": "y", "replace_all": True}])
    assert full_text(edit) == ("path: a\nedits[0].old_string: x\nedits[0].new_string: y\nedits[0].replace_all: true")
