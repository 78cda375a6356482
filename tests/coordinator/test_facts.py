from coordinator.endpoint.reply import Usage
from coordinator.service.facts import Facts
from coordinator.session.call_events import ApprovalAnswered, ApprovalAsked
from coordinator.session.events import ChildEvent, Event
from coordinator.session.session_events import ChildEnded, SessionResumed
from coordinator.session.step_events import StepStarted

AT = "2030-01-31T12:00:00.000Z"
CHILD, GRANDCHILD = "s.1-1-0", "s.1-1-0.1-1-0"


def asked(step: int = 1) -> ApprovalAsked:
    return ApprovalAsked(step=step, index=0, tool="Bash", summary="make", reason="why", within_s=60)


def answered(step: int = 1) -> ApprovalAnswered:
    return ApprovalAnswered(step=step, index=0, tool="Bash", decision="allow")


def of_child(event: Event, child: str = CHILD) -> ChildEvent:
    return ChildEvent(step=1, index=0, child=child, description="some of the work", event=event)


def of_grandchild(event: Event) -> ChildEvent:
    return of_child(of_child(event, GRANDCHILD))


def told(*events: Event) -> Facts:
    facts = Facts()
    for event in (StepStarted(step=1), *events):
        facts.add(event, AT)
    return facts


def test_a_session_waits_with_each_of_its_sub_agents_until_all_are_answered() -> None:
    facts = told(asked(), of_child(asked()), of_grandchild(asked()))
    for answer, left in ((of_grandchild(answered()), 2), (answered(), 1)):
        facts.add(answer, AT)
        assert (facts.status, len(facts.waiting)) == ("waiting", left)
    facts.add(of_child(answered()), AT)
    assert (facts.status, len(facts.waiting)) == ("running", 0)


def test_what_a_rule_answers_is_waited_for_by_nobody() -> None:
    assert told(of_child(asked().model_copy(update={"within_s": None}))).status == "running"


def test_nothing_is_waited_for_of_a_sub_agent_that_is_no_more() -> None:
    ended = ChildEnded(
        step=1, index=0, child=CHILD, description="", status="cancelled", stop_reason="", steps=1, calls=0,
        usage=Usage(), transcript="",
    )  # fmt: skip
    resumed = SessionResumed(session_id="s", generation=2, previous=1, accepted_bytes=0, by="a test")
    for end in (ended, resumed):
        assert told(of_child(asked()), of_grandchild(asked()), end).status == "running"
    assert told(asked(), of_child(asked()), ended).status == "waiting", "its own question stands"
