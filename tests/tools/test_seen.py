"""What Read, Edit and Write tell and ask of their session's read metadata, in a real box with a real Redis."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import redis

from tests.orders import call_order
from tools.base import ErrorCode, RunContext, ToolFailure, ToolResult
from tools.read import lines_left
from tools.registry import builtin_registry
from tools.schema import parse_arguments
from worker.contract import keys
from worker.contract.orders import CallKey
from worker.gates.lock import CallFiles, ReadMetadata

Call = Callable[..., ToolResult]
Put = Callable[[str, str | bytes], Path]
Context = Callable[..., RunContext]


@pytest.fixture
def call(context: Context, redis_client: redis.Redis) -> Call:
    """Runs a tool as its worker does, with the metadata of its session."""
    seen = ReadMetadata(redis_client)

    def run(tool: str, *, join: bool = False, step: int | None = None, **arguments: object) -> ToolResult:
        plain = context(join=join, step=step)
        order = call_order(tool, key=CallKey.parse(plain.mark.key))
        found = builtin_registry().get(tool)
        assert found is not None
        return found.run(parse_arguments(found, arguments), replace(plain, seen=CallFiles(seen, order)))

    return run


def failure(call: Call, tool: str, **arguments: object) -> ToolFailure:
    with pytest.raises(ToolFailure) as caught:
        call(tool, **arguments)
    return caught.value


@pytest.mark.docker
class TestBox:
    def test_only_the_lines_that_a_page_had_room_for_were_shown(self, call: Call, put: Put) -> None:
        put("a.txt", "".join(f"{number:0>99}\n" for number in range(1, 1001)))
        page = call("Read", path="a.txt")
        last = page.data["last_line"]
        assert isinstance(last, int)
        assert 1 < last < 1000
        assert f"not shown: {last + 1}-1000." in failure(call, "Write", path="a.txt", content="x").message
        call("Read", path="a.txt", offset=last + 1, limit=400)
        call("Read", path="a.txt", offset=last + 401, limit=400)
        assert call("Write", path="a.txt", content="x").data["created"] is False

    def test_an_empty_file_that_was_read_may_be_written(self, call: Call, put: Put) -> None:
        path = put("a.txt", "")
        assert failure(call, "Write", path="a.txt", content="x").code is ErrorCode.CONFLICT
        call("Read", path="a.txt")
        call("Write", path="a.txt", content="x")
        assert path.read_text() == "x"

    def test_what_is_no_file_is_refused_in_the_guests_words(self, call: Call, put: Put) -> None:
        put("dir/a.txt", "")
        assert failure(call, "Write", path="dir", content="x").code is ErrorCode.IS_DIRECTORY
        assert failure(call, "Edit", path="dir", old_string="a", new_string="b").code is ErrorCode.IS_DIRECTORY
        assert failure(call, "Edit", path="nowhere", old_string="a", new_string="b").code is ErrorCode.NOT_FOUND

    def test_joining_an_edit_answers_as_it_did_and_goes_on_from_its_version(
        self, call: Call, put: Put, redis_client: redis.Redis
    ) -> None:
        path = put("a.txt", "one\n")
        call("Read", path="a.txt", step=11)
        first = call("Edit", path="a.txt", old_string="one", new_string="two", step=12)
        # As after the death of a worker that had not noted what the guest had done.
        redis_client.delete(*redis_client.keys(keys.seen("*")))

        again = call("Edit", path="a.txt", old_string="one", new_string="two", step=12, join=True)

        assert again == first
        assert path.read_text() == "two\n"
        call("Edit", path="a.txt", old_string="two", new_string="three", step=13)
        assert path.read_text() == "three\n"
        assert redis_client.keys(keys.path_lock("*")) == []

    def test_joining_what_never_started_starts_nothing(self, call: Call, put: Put) -> None:
        path = put("a.txt", "one\n")
        call("Read", path="a.txt", step=11)
        edit = {"path": "a.txt", "old_string": "one", "new_string": "two"}
        assert failure(call, "Edit", **edit, step=12, join=True).code is ErrorCode.OUTCOME_UNKNOWN
        assert path.read_text() == "one\n"


def test_lines_left_are_those_that_are_whole() -> None:
    text = "".join(f"{number:>6}\tline {number}\n" for number in range(8, 13))
    cut = text[:40] + "\n[… 3 lines left out\there …]\n" + text[-20:]
    assert text[:40].endswith("10\tline ")
    assert lines_left(text, cut) == [(8, 8), (9, 9), (12, 12)]
    assert lines_left(text, text) == [(number, number) for number in range(8, 13)]
    assert lines_left("no numbers\there\n", "no numbers\there\n") == []
