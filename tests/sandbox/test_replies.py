"""Whatever a guest answers, the host gets a value of the right type or says that the guest broke the rules."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandbox import replies
from sandbox.errors import GuestRefused
from sandbox.wire import Frame

NAMES = [
    "path", "version", "first_line", "last_line", "total_lines", "partial", "line_cut", "exit_code", "signal",
    "timed_out", "cancelled", "oom_kills", "duration_ms", "cwd", "left_running", "background_id", "killed_leftovers",
    "streamed", "spill_complete", "stdout", "stderr", "head", "tail", "bytes", "lines", "dropped", "dev", "ino", "size",
    "mtime_ns", "ctime_ns", "sha256", "kind", "created", "replacements", "diff_cut", "refused", "message", "facts",
    "protocol", "python", "machine", "shell", "uid", "gid", "frozen", "pids", "name", "session", "command",
    "running", "leftover", "failed", "killed", "first", "total", "age_ms", "start", "backgrounds", "stream_cut",
    "encoding", "other_names",
]  # fmt: skip

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.just("NOT_FOUND") | st.just("0" * 64),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=6),
)
heads = st.dictionaries(st.sampled_from(NAMES), values, max_size=len(NAMES))

PARSERS: list[Callable[[Frame], Any]] = [
    replies.check_refusal,
    lambda frame: replies.parse_run(frame, 10),
    lambda frame: replies.parse_read(frame, 10),
    replies.parse_stat,
    replies.parse_edit,
    replies.parse_write,
    replies.parse_info,
    replies.parse_backgrounds,
    lambda frame: replies.parse_background_output(frame, 10),
]


@given(st.sampled_from(PARSERS), heads, st.binary(max_size=30))
def test_a_parser_ends_in_one_of_three_ways(parser: Callable[[Frame], Any], head: dict[str, Any], body: bytes) -> None:
    try:
        parser(Frame(head, body))
    except (replies.BadReply, GuestRefused):
        return


def test_a_path_with_undecodable_bytes_becomes_text_that_can_be_sent_on() -> None:
    head = {"path": "/n\udcff\u00e9", "kind": "missing", "size": 0, "version": None}
    path = replies.parse_stat(Frame(head, b"")).path
    assert path == "/n\\xff\u00e9"
    path.encode()


def test_a_path_of_lone_surrogates_is_against_the_rules() -> None:
    head = {"path": "/\ud800", "kind": "missing", "size": 0, "version": None}
    with pytest.raises(replies.BadReply):
        replies.parse_stat(Frame(head, b""))


BACKGROUND: dict[str, Any] = {
    "name": "bg1", "session": "s", "command": "sleep", "running": True, "leftover": False, "failed": False,
    "killed": False, "exit_code": None, "signal": None, "pids": [7], "first": 0, "total": 5, "age_ms": 1.5, "start": 2,
}  # fmt: skip


def test_a_part_of_background_output_is_what_the_guest_says() -> None:
    output = replies.parse_background_output(Frame(BACKGROUND, b"abc"), 10)
    assert (output.start, output.data, output.state.background_id, output.state.pids) == (2, b"abc", "bg1", (7,))


@pytest.mark.parametrize(
    ("changes", "body"),
    [
        ({"name": "x" * 65}, b""),
        ({"name": None}, b""),
        ({"pids": ["7"]}, b""),
        ({"pids": list(range(101))}, b""),
        ({"start": 6}, b""),
        ({"start": -1}, b""),
        ({"total": "5"}, b""),
        ({"age_ms": float("nan")}, b""),
        ({"running": 1}, b""),
        ({}, b"abcd"),
        ({"total": 100}, b"x" * 11),
    ],
)
def test_background_output_against_the_rules_is_refused(changes: dict[str, Any], body: bytes) -> None:
    with pytest.raises(replies.BadReply):
        replies.parse_background_output(Frame({**BACKGROUND, **changes}, body), 10)


@pytest.mark.parametrize("states", [None, {}, [1], [{**BACKGROUND, "first": -1}], [BACKGROUND] * 10_001])
def test_a_list_of_background_commands_against_the_rules_is_refused(states: Any) -> None:
    with pytest.raises(replies.BadReply):
        replies.parse_backgrounds(Frame({"backgrounds": states}, b""))
