"""What is known of a step that several owners of a session left open."""

from datetime import UTC, datetime

from coordinator.endpoint.reply import RawCall
from coordinator.session.call_events import CallStarted
from coordinator.session.events import Event
from coordinator.session.rebuild import rebuild
from coordinator.session.session_events import SessionPlaced, SessionResumed
from coordinator.session.step_events import ModelReplied, ReplyTaken
from coordinator.session.transcript import Entry


def placed(node: str, run_id: str) -> SessionPlaced:
    return SessionPlaced(node=node, incarnation=f"{node}-1", run_id=run_id)


def test_a_call_is_asked_about_where_it_was_sent_also_when_a_later_owner_had_another_place() -> None:
    """By the later place's life of Redis, a fence would say of a call whose claim was lost that it did not run."""
    calls = (RawCall(0, "c0", "Bash", "{}"), RawCall(1, "c1", "Bash", "{}"))
    events: list[Event] = [
        placed("a", "life-1"),
        ModelReplied(step=1, text="", calls=calls, finish_reason="tool_calls"),
        ReplyTaken(call_ids=("c0", "c1")),
        CallStarted(step=1, index=0, call_id="c0", tool="Bash"),
        SessionResumed(session_id="s", generation=2, previous=1, accepted_bytes=0, by="takeover"),
        placed("b", "life-2"),
    ]
    times = ["", "", "", "2030-01-31T12:00:00.500Z", "", ""]
    rebuilt = rebuild([Entry(seq, at, {}, event) for seq, (at, event) in enumerate(zip(times, events, strict=True), 1)])

    assert rebuilt.placed == placed("b", "life-2")
    assert rebuilt.open_step is not None
    assert rebuilt.open_step.sent_to == {0: placed("a", "life-1")}
    assert rebuilt.open_step.begun_at == {0: datetime(2030, 1, 31, 12, 0, 0, 500_000, UTC).timestamp()}


def test_a_call_is_of_the_life_of_redis_that_it_was_sent_in_and_not_of_the_one_its_session_was_placed_in() -> None:
    """After one restart of Redis nothing would be known any more of what the session asks for later."""
    calls = (RawCall(0, "c0", "Bash", "{}"), RawCall(1, "c1", "Bash", "{}"))
    events: list[Event] = [
        placed("a", "life-1"),
        ModelReplied(step=1, text="", calls=calls, finish_reason="tool_calls"),
        ReplyTaken(call_ids=("c0", "c1")),
        CallStarted(step=1, index=0, call_id="c0", tool="Bash", run_id="life-2"),
        CallStarted(step=1, index=1, call_id="c1", tool="Bash"),
    ]
    rebuilt = rebuild([Entry(seq, "", {}, event) for seq, event in enumerate(events, 1)])

    assert rebuilt.open_step is not None
    # The second is in a transcript of an earlier release, or was sent before Redis was asked.
    assert rebuilt.open_step.sent_to == {0: placed("a", "life-2"), 1: placed("a", "life-1")}
