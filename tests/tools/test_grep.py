from collections.abc import Callable
from pathlib import Path

import pytest

from tools.base import ErrorCode, ToolFailure, ToolResult

pytestmark = pytest.mark.docker
Call = Callable[..., ToolResult]
Put = Callable[[str, str | bytes], Path]


@pytest.fixture
def project(put: Put) -> None:
    put("b.py", "import os\ndef run():\n    return os\n")
    put("sub/a.py", "def run():\n    pass\n")
    put(".hidden/h.py", "def run(): ...\n")
    put(".git/config", "def run(): in git\n")
    put(".gitignore", "*.log\n")
    put("x.log", "def run(): in a log\n")


def failure(call: Call, **arguments: object) -> ToolFailure:
    with pytest.raises(ToolFailure) as caught:
        call("Grep", **arguments)
    return caught.value


@pytest.mark.usefixtures("project")
def test_matching_lines_stand_under_their_files_in_order(call: Call, inside: str) -> None:
    result = call("Grep", pattern=r"def run\(")
    assert result.status == "success"
    assert result.text == ".hidden/h.py\n1:def run(): ...\n\nb.py\n2:def run():\n\nsub/a.py\n1:def run():"
    assert result.data == {"total": 3, "shown": 3, "files": 3}
    assert result.context["cwd"] == inside


@pytest.mark.usefixtures("project")
def test_files_and_counts_are_modes(call: Call) -> None:
    assert call("Grep", pattern="run", mode="files").text == ".hidden/h.py\nb.py\nsub/a.py"
    counted = call("Grep", pattern="os|run", mode="count", glob="*.py")
    assert counted.text == ".hidden/h.py:1\nb.py:3\nsub/a.py:1"
    assert counted.data["matching_lines"] == 5


@pytest.mark.usefixtures("project")
def test_context_lines_are_marked(call: Call) -> None:
    assert (
        call("Grep", pattern="def", path="b.py", context=1).text == "b.py\n1-import os\n2:def run():\n3-    return os"
    )


@pytest.mark.usefixtures("project")
def test_globs_choose_and_leave_out(call: Call) -> None:
    assert call("Grep", pattern="run", mode="files", glob="sub/**/*.py").text == "sub/a.py"
    assert call("Grep", pattern="run", mode="files", glob="*.{py,log}").text == ".hidden/h.py\nb.py\nsub/a.py"
    assert call("Grep", pattern="run", mode="files", glob="!sub").text == ".hidden/h.py\nb.py"


@pytest.mark.usefixtures("project")
def test_git_and_ignored_files_can_be_searched_by_name(call: Call) -> None:
    assert call("Grep", pattern="run", path="x.log").data["total"] == 1
    assert call("Grep", pattern="run", path=".git").data["total"] == 1


@pytest.mark.usefixtures("project")
def test_nothing_found_is_said_with_what_was_not_searched(call: Call) -> None:
    result = call("Grep", pattern="nowhere")
    assert result.status == "success"
    assert result.text.startswith("No line matches 'nowhere' in . (hidden files are searched; .git and what .gitignore")


@pytest.mark.usefixtures("project")
def test_case_counts_unless_told_otherwise(call: Call) -> None:
    assert call("Grep", pattern="DEF").data["total"] == 0
    assert call("Grep", pattern="DEF", ignore_case=True).data["total"] == 3


@pytest.mark.usefixtures("project")
def test_paths_are_usable_from_the_working_directory(call: Call, inside: str) -> None:
    call("Bash", command="cd sub")
    assert call("Grep", pattern="def", path=".", mode="files").text == "a.py"
    assert call("Grep", pattern="import", path="..", mode="files").text == f"{inside}/b.py"
    assert call("Grep", pattern="def", path=inside, mode="files", glob="sub/*").text == "a.py"


def test_the_total_beyond_the_limit_is_known(call: Call, put: Put) -> None:
    for name in ("a.txt", "b.txt"):
        put(name, "".join(f"match {number}\n" for number in range(20_000)))
    result = call("Grep", pattern="match", limit=3)
    assert result.status == "partial"
    assert result.text.startswith("a.txt\n1:match 0\n2:match 1\n3:match 2\n[3 of 40000 matching lines shown;")
    assert result.data == {"total": 40_000, "shown": 3, "files": 2}


def test_long_lines_are_shown_around_their_match(call: Call, put: Put) -> None:
    put("a.js", "é" * 10_000 + "needle" + "y" * 10_000 + "\n")
    result = call("Grep", pattern="needle")
    assert "needle" in result.text
    assert len(result.text) < 600
    assert "[line of 20006 characters]" in result.text


def test_an_answer_stays_within_its_bound(call: Call, put: Put) -> None:
    put("a.txt", ("x" * 300 + "\n") * 2_000)
    result = call("Grep", pattern="^x", limit=2_000)
    assert 40_000 < len(result.text.encode()) < 50_000
    assert result.status == "partial"
    assert result.data["total"] == 2_000


def test_binary_files_and_odd_bytes_do_no_harm(call: Call, put: Put) -> None:
    put("a.bin", b"needle\n" + b"\0" * 10)
    put("b.txt", b"needle \xff\n")
    assert call("Grep", pattern="needle").text == "b.txt\n1:needle \ufffd"
    assert call("Grep", pattern="needle", path="a.bin").text == "a.bin\n1:needle\n(a binary file)"


def test_line_numbers_agree_with_read(call: Call, put: Put) -> None:
    put("a.txt", "a\fb\u2028c\nneedle\n")
    assert "2:needle" in call("Grep", pattern="needle").text
    assert "     2\tneedle" in call("Read", path="a.txt").text


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        ({"pattern": "("}, ErrorCode.INVALID_PARAM, "unclosed group"),
        ({"pattern": "a\nb"}, ErrorCode.INVALID_PARAM, "not allowed"),
        ({"pattern": "(?=x)"}, ErrorCode.INVALID_PARAM, "look-around"),
        ({"pattern": "x", "glob": "["}, ErrorCode.INVALID_PARAM, "glob"),
        ({"pattern": "x\0"}, ErrorCode.INVALID_PARAM, "NUL"),
        ({"pattern": "x", "path": "nope"}, ErrorCode.NOT_FOUND, "nope"),
        ({"pattern": "x", "path": "/dev/null"}, ErrorCode.NOT_REGULAR_FILE, "device"),
    ],
)
def test_a_bad_search_is_refused_in_rgs_words(
    call: Call, arguments: dict[str, object], code: ErrorCode, words: str
) -> None:
    refused = failure(call, **arguments)
    assert refused.code is code
    assert words in refused.message


def test_a_pattern_that_looks_like_an_option_is_a_pattern(call: Call, put: Put) -> None:
    put("a.txt", "--files\n")
    assert call("Grep", pattern="--files").data["total"] == 1


def test_what_could_not_be_searched_is_told(call: Call, put: Put) -> None:
    put("a.txt", "needle\n")
    call("Bash", command="mkdir closed; chmod 0 closed")
    result = call("Grep", pattern="needle")
    assert result.status == "partial"
    assert "not searched: " in result.text
    assert "1:needle" in result.text
