"""Orders and outcomes: what two processes, and two releases, agree on."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import JsonValue, ValidationError

from worker.contract.orders import (
    CONTRACT_VERSION,
    BoxOrder,
    CallKey,
    CallOrder,
    CallOutcome,
    CutNote,
    Fate,
    NodeLife,
    Policy,
    WorkspaceMode,
    call_digest,
)

NUMBERS = st.integers(min_value=0, max_value=2**40)
SESSIONS = st.text(alphabet=st.characters(exclude_characters=":", exclude_categories=["Cs"]))
KEYS = st.builds(CallKey, session=SESSIONS, generation=NUMBERS, step=NUMBERS, index=NUMBERS, attempt=NUMBERS)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=10,
)
ARGUMENTS = st.dictionaries(st.text(), JSON, max_size=6)

BOX = BoxOrder(
    session="s1",
    generation=1,
    session_dir="/state/sessions/s1",
    image="box:1",
    workspace="/home/me/project",
    workspace_mode=WorkspaceMode.BIND,
)
ORDER = CallOrder(
    key=CallKey(session="s1", generation=1, step=2, index=0),
    call_id="call_7",
    node="a",
    incarnation="a-1",
    tool="Read",
    arguments={"path": "x", "limit": 3},
    policy=Policy.GUARDED,
    principal="me",
    sent_at=1.5,
    box=BOX,
)


@given(KEYS)
def test_a_key_is_read_back_from_its_text(key: CallKey) -> None:
    assert CallKey.parse(str(key)) == key


@given(KEYS, KEYS)
def test_two_keys_share_their_text_only_if_they_are_one_call(one: CallKey, other: CallKey) -> None:
    assert (str(one) == str(other)) == (one == other)


@pytest.mark.parametrize("text", ["", "s", "s:1:2:3", "s:1:2:3:4:5", "s:1:2:x:4", "s:1:2:3:", "a:b:1:2:3:4"])
def test_a_text_that_is_no_key_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        CallKey.parse(text)


def test_the_next_attempt_is_another_call_of_the_same_place() -> None:
    key = CallKey(session="s", generation=3, step=2, index=1)

    assert key.next_attempt() == CallKey(session="s", generation=3, step=2, index=1, attempt=2)
    assert key.attempt == 1


@given(ARGUMENTS)
def test_the_digest_does_not_change_with_the_order_of_arguments(arguments: dict[str, object]) -> None:
    turned = dict(reversed(arguments.items()))

    assert call_digest("Bash", turned) == call_digest("Bash", arguments)  # type: ignore[arg-type]


def test_the_digest_does_not_change_with_the_order_inside_an_argument() -> None:
    assert call_digest("T", {"a": {"x": 1, "y": 2}}) == call_digest("T", {"a": {"y": 2, "x": 1}})


@given(ARGUMENTS, ARGUMENTS)
def test_other_arguments_have_another_digest(one: dict[str, object], other: dict[str, object]) -> None:
    # JSON tells 1 from 1.0 and from true, which Python's own comparison does not.
    is_same = json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)

    assert (call_digest("Bash", one) == call_digest("Bash", other)) == is_same  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("one", "other"),
    [({"a": 1}, {"a": "1"}), ({"a": 1}, {"a": True}), ({"a": None}, {}), ({"a": ["b"]}, {"a": "b"})],
)
def test_arguments_that_look_alike_have_distinct_digests(one: dict[str, object], other: dict[str, object]) -> None:
    assert call_digest("T", one) != call_digest("T", other)  # type: ignore[arg-type]


def test_another_tool_with_the_same_arguments_has_another_digest() -> None:
    assert call_digest("Read", {"path": "x"}) != call_digest("Write", {"path": "x"})


def test_an_order_is_the_same_after_its_way_over_the_wire() -> None:
    received = CallOrder.from_text(ORDER.to_text())

    assert received == ORDER
    assert received.digest == call_digest("Read", {"limit": 3, "path": "x"})


@pytest.mark.parametrize(
    "value", ["\ud800", "\udfff x", "\x00\u2028", 1e308, float("inf"), 2**70, {"": [None, True, 0.1]}, "ü" * 5_000]
)
def test_what_a_model_may_write_travels_as_it_is(value: JsonValue) -> None:
    order = ORDER.model_copy(update={"arguments": {"a": value}})

    assert CallOrder.from_text(order.to_text()) == order


def test_what_is_nested_deeply_travels() -> None:
    value: JsonValue = 1
    for _ in range(200):
        value = [value]
    order = ORDER.model_copy(update={"arguments": {"a": value}})

    assert CallOrder.from_text(order.to_text()) == order


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "{}", "[" * 100_000])
def test_what_is_no_order_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        CallOrder.from_text(text)


def test_fields_of_a_later_release_are_ignored_at_every_level() -> None:
    sent = ORDER.model_dump(mode="json")
    sent["new"] = 1
    sent["key"]["new"] = 1
    sent["box"]["new"] = {"deep": [1]}

    assert CallOrder.model_validate(sent) == ORDER


def test_an_outcome_of_a_later_release_is_read() -> None:
    cut = CutNote(total_bytes=9, shown_bytes=3, total_lines=1)
    outcome = CallOutcome(key=ORDER.key, fate=Fate.RAN, result={"status": "success"}, cut=cut)
    sent = outcome.model_dump(mode="json")
    sent["new"] = sent["cut"]["new"] = "x"

    assert CallOutcome.model_validate(sent) == outcome


def test_a_node_that_says_less_is_still_read() -> None:
    life = NodeLife.model_validate_json('{"node":"a","incarnation":"a-1","places":2,"lanes":8,"zone":"eu"}')

    assert life == NodeLife(node="a", incarnation="a-1", places=2, lanes=8, state="ready", v=CONTRACT_VERSION)


def test_a_fate_nobody_knows_is_refused() -> None:
    with pytest.raises(ValidationError):
        CallOutcome.model_validate({"key": ORDER.key, "fate": "perhaps"})


def test_an_order_cannot_be_changed() -> None:
    with pytest.raises(ValidationError):
        ORDER.tool = "Bash"  # type: ignore[misc]
