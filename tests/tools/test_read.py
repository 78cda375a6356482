from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tools.base import ErrorCode, RunContext, ToolFailure, ToolResult
from tools.grep import Grep, GrepParameters
from tools.read import Read, ReadParameters

pytestmark = pytest.mark.docker
Call = Callable[..., ToolResult]
Put = Callable[[str, str | bytes], Path]


def failure(call: Call, **arguments: object) -> ToolFailure:
    with pytest.raises(ToolFailure) as caught:
        call("Read", **arguments)
    return caught.value


def test_lines_come_with_their_numbers(call: Call, put: Put, inside: str) -> None:
    put("a.txt", "one\n\ttwo\n")
    result = call("Read", path="a.txt")
    assert (result.status, result.text) == ("success", "     1\tone\n     2\t\ttwo\n")
    assert result.data == {"path": f"{inside}/a.txt", "first_line": 1, "last_line": 2, "total_lines": 2}


def test_a_part_says_what_remains_and_how_to_go_on(call: Call, put: Put) -> None:
    put("a.txt", "".join(f"line {number}\n" for number in range(1, 11)))
    result = call("Read", path="a.txt", offset=3, limit=2)
    assert result.status == "partial"
    assert result.text == "     3\tline 3\n     4\tline 4\n[lines 3 to 4 of 10; go on with offset 5]\n"
    assert call("Read", path="a.txt", offset=5).status == "success"


def test_a_long_file_comes_in_parts_that_join_up(call: Call, put: Put) -> None:
    lines = [f"{'x' * 90} {number}" for number in range(2_000)]
    put("a.txt", "\n".join(lines))
    seen: list[str] = []
    while len(seen) < len(lines):
        result = call("Read", path="a.txt", offset=len(seen) + 1)
        assert len(result.text.encode()) < 50_000
        seen += [line.partition("\t")[2] for line in result.text.splitlines() if "\t" in line]
    assert seen == lines


def test_a_long_line_is_cut_with_a_note(call: Call, put: Put) -> None:
    put("a.txt", "x" * 5_000 + "\nnext\n")
    result = call("Read", path="a.txt")
    assert result.text == f"     1\t{'x' * 2000} [… line cut: 5000 characters in all]\n     2\tnext\n"


def test_a_line_larger_than_any_answer_is_cut(call: Call, put: Put) -> None:
    put("a.txt", "x" * 3_000_000 + "\nnext\n")
    result = call("Read", path="a.txt")
    assert result.status == "partial"
    assert "longer still" in result.text
    assert result.text.endswith("go on with offset 2]\n")


def test_crlf_bom_and_odd_bytes_are_readable(call: Call, put: Put) -> None:
    put("a.txt", b"\xef\xbb\xbfone\r\ntw\xff\r\n")
    result = call("Read", path="a.txt")
    note = "[not UTF-8: \ufffd stands for other bytes, which Edit keeps; it takes ASCII text there]\n"
    assert result.text == f"     1\tone\n     2\ttw\ufffd\n{note}"
    assert result.data["encoding"] == "unknown"
    assert call("Read", path="a.txt", limit=1).data["encoding"] == "utf-8-sig"


def test_utf16_with_its_mark_is_text(call: Call, put: Put) -> None:
    put("a.txt", "\ufeffeins\nzwölf\n".encode("utf-16-be"))
    result = call("Read", path="a.txt")
    assert (result.text, result.data["encoding"]) == ("     1\teins\n     2\tzwölf\n", "utf-16-be")
    put("b.txt", b"\xff\xfea")
    assert "begins as UTF-16 text, but is none" in failure(call, path="b.txt").message
    put("c.txt", "\ufeffa".encode("utf-32-le"))
    assert "UTF-32" in failure(call, path="c.txt").message


def test_what_only_has_the_name_of_an_image_is_text(call: Call, put: Put) -> None:
    put("a.png", "version https://git-lfs.github.com/spec/v1\n")
    assert call("Read", path="a.png").status == "success"
    put("b.GIF", b"GIF89a\xff\xff\xff")
    refused = failure(call, path="b.GIF")
    assert refused.code is ErrorCode.BINARY_FILE
    assert "is an image, and only text can be shown. Use Bash" in refused.message


def test_the_results_budget_says_how_much_is_shown(put: Put, context: Callable[..., RunContext]) -> None:
    put("a.txt", "".join(f"line {number} {'x' * 50}\n" for number in range(3_000)))
    for budget in (4_000, 20_000, 120_000):
        result = Read().run(ReadParameters(path="a.txt", limit=3_000), replace(context(), result_bytes=budget))
        assert budget - 2_200 < len(result.text.encode()) <= budget
        assert f"go on with offset {int(str(result.data['last_line'])) + 1}]" in result.text


def test_form_feed_and_line_separator_do_not_break_lines(call: Call, put: Put) -> None:
    put("a.txt", "a\fb\u2028c\x85d\n")
    assert call("Read", path="a.txt").data["total_lines"] == 1


def test_an_empty_file_is_said_in_words(call: Call, put: Put) -> None:
    put("a.txt", "")
    assert call("Read", path="a.txt").text == "(the file is empty)"


@pytest.mark.parametrize("arguments", [{"offset": 10**30}, {"limit": 10**30}, {"offset": 0}, {"limit": -1}])
def test_numbers_out_of_all_bounds_are_refused_and_cost_no_box(call: Call, put: Put, arguments: dict[str, int]) -> None:
    put("a.txt", "one\n")
    assert failure(call, path="a.txt", **arguments).code is ErrorCode.INVALID_PARAM
    assert call("Read", path="a.txt").status == "success"


def test_an_offset_beyond_the_end_names_the_end(call: Call, put: Put) -> None:
    put("a.txt", "one\n")
    refused = failure(call, path="a.txt", offset=2)
    assert refused.code is ErrorCode.INVALID_PARAM
    assert "has 1 lines" in refused.message


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("missing", ErrorCode.NOT_FOUND),
        ("missing.png", ErrorCode.NOT_FOUND),
        (".", ErrorCode.IS_DIRECTORY),
        ("a.bin", ErrorCode.BINARY_FILE),
        ("a.png", ErrorCode.BINARY_FILE),
        ("a.ipynb", ErrorCode.INVALID_PARAM),
        ("fifo", ErrorCode.NOT_REGULAR_FILE),
        ("/dev/null", ErrorCode.NOT_REGULAR_FILE),
        ("loop", ErrorCode.INVALID_PARAM),
        ("broken", ErrorCode.NOT_FOUND),
        ("closed", ErrorCode.ACCESS_DENIED),
        ("a\0b", ErrorCode.INVALID_PARAM),
    ],
)
def test_what_cannot_be_read_has_its_own_error(call: Call, put: Put, path: str, code: ErrorCode) -> None:
    put("a.bin", b"\0\1")
    put("a.png", b"\x89PNG\0")
    put("a.ipynb", "{}")
    call("Bash", command="mkfifo fifo; ln -s loop loop; ln -s nowhere broken; touch closed; chmod 0 closed")
    assert failure(call, path=path).code is code


def test_dots_and_links_lead_to_one_canonical_path(call: Call, put: Put, inside: str) -> None:
    put("a.txt", "x")
    put("sub/b.txt", "x")
    call("Bash", command="ln -s a.txt link")
    paths = {
        call("Read", path=path).data["path"] for path in ("a.txt", "./a.txt", "sub/../a.txt", "link", f"{inside}/a.txt")
    }
    assert paths == {f"{inside}/a.txt"}


def test_a_joined_read_is_read_again(put: Put, context: Callable[..., RunContext]) -> None:
    put("a.txt", "one\n")
    assert Read().run(ReadParameters(path="a.txt"), context(join=True)).text == "     1\tone\n"
    assert Grep().run(GrepParameters(pattern="one"), context(join=True)).data["total"] == 1
