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
    assert result.data == {
        "total": 3,
        "shown": 3,
        "files": 3,
        "left_out": ".git; what .gitignore, .ignore, .rgignore exclude",
    }
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
def test_a_type_chooses_files_and_a_glob_may_leave_some_out(call: Call, put: Put) -> None:
    put("sub/note.md", "def run\n")
    put("sub/out.py", "def run\n")
    put("sub/.gitignore", "out.py\n")
    assert call("Grep", pattern="run", mode="files", type="md").text == "sub/note.md"
    assert call("Grep", pattern="run", mode="files", type="py").text == ".hidden/h.py\nb.py\nsub/a.py"
    assert "either type or glob" in failure(call, pattern="run", type="py", glob="sub/*").message
    # A glob with a directory in it that names an ignored file asks for it, and the answer says so.
    named = call("Grep", pattern="run", mode="files", glob="sub/*.py")
    assert named.text == "sub/a.py\nsub/out.py"
    assert str(named.data["left_out"]).endswith("unless the glob names it")
    assert call("Grep", pattern="run", mode="files", type="py", glob="!sub").text == ".hidden/h.py\nb.py"
    assert failure(call, pattern="x", type="nope").code is ErrorCode.INVALID_PARAM
    assert "unrecognized file type" in failure(call, pattern="x", type="nope").message
    assert failure(call, pattern="x", type="--files").code is ErrorCode.INVALID_PARAM


@pytest.mark.usefixtures("project")
def test_a_match_over_several_lines_is_shown_line_by_line(call: Call) -> None:
    result = call("Grep", pattern=r"run\(\):.*?pass", path="sub", multiline=True)
    assert result.text == "sub/a.py\n1:def run():\n2:    pass"
    assert (result.data["total"], result.data["shown"]) == (2, 2)
    cut = call("Grep", pattern=r"run\(\):.*?pass", path="sub", multiline=True, limit=1)
    assert cut.text.startswith("sub/a.py\n1:def run():\n[1 of 2 matching lines shown;")
    counted = call("Grep", pattern=r"run\(\):\s+pass", multiline=True, mode="count")
    assert (counted.text, counted.data["matches"]) == ("sub/a.py:1", 1)
    assert call("Grep", pattern=r"run\(\):\s+return", multiline=True, context=1).text == (
        "b.py\n1-import os\n2:def run():\n3:    return os"
    )


def test_a_line_that_is_too_long_to_be_fetched_is_told(call: Call, put: Put) -> None:
    put("a.js", "y" * 3_000_000 + "needle\n")
    result = call("Grep", pattern="needle")
    assert result.status == "partial"
    assert "[0 of 1 matching lines shown; the lines are too long to be fetched; mode `files`" in result.text
    assert call("Grep", pattern="needle", mode="files").text == "a.js"
    assert call("Bash", command="grep -o '.\\{0,3\\}needle.\\{0,80\\}' a.js").text == "yyyneedle"


def test_fifty_thousand_files_are_counted_and_the_first_shown(call: Call) -> None:
    # Links: so many inodes take a disk half a minute to make and to free.
    made = "mkdir -p m/d00 && cd m/d00 && seq 500 | split -l 1 - f; cd ..; for n in {01..99}; do cp -rl d00 d$n; done"
    assert call("Bash", command=made, timeout_ms=120_000).status == "success"
    counts = call("Grep", pattern="^", path=".", mode="files", limit=2)
    assert counts.text.startswith("d00/faa\nd00/fab\n[2 of 50000 files shown;")
    lines = call("Grep", pattern="7$", path=".", limit=1)
    assert lines.text.startswith("d00/fag\n1:7\n[1 of 5000 matching lines shown;")
    assert lines.data["files"] == 5_000
    assert call("Glob", pattern="f*", limit=1).data["total"] == 50_000
    call("Bash", command="cd .. && rm -r m", timeout_ms=120_000)


@pytest.mark.usefixtures("project")
def test_git_and_ignored_files_can_be_searched_by_name(call: Call) -> None:
    assert call("Grep", pattern="run", path="x.log").data == {"total": 1, "shown": 1, "files": 1}
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
    assert (result.data["total"], result.data["shown"], result.data["files"]) == (40_000, 3, 2)


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
        ({"pattern": "é" * 60_000}, ErrorCode.INVALID_PARAM, "100000 bytes at most"),
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
