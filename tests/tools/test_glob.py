import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tools.base import ErrorCode, ToolFailure, ToolResult

pytestmark = pytest.mark.docker
Call = Callable[..., ToolResult]
Put = Callable[[str, str | bytes], Path]


@pytest.fixture
def project(put: Put) -> None:
    for age, name in enumerate(["src/new.ts", "src/view.tsx", "a.py", ".hidden.py", "src/deep/old.py", "x.log"]):
        os.utime(put(name, "x"), (1_700_000_000 - age, 1_700_000_000 - age))
    os.utime(put(".gitignore", "*.log\n"), (1_600_000_000, 1_600_000_000))
    put(".git/config.py", "x")


def failure(call: Call, **arguments: object) -> ToolFailure:
    with pytest.raises(ToolFailure) as caught:
        call("Glob", **arguments)
    return caught.value


@pytest.mark.usefixtures("project")
@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("**/*.{ts,tsx}", "src/new.ts\nsrc/view.tsx"),
        ("*.py", "a.py\n.hidden.py\nsrc/deep/old.py"),
        ("[a-z]*.py", "a.py\nsrc/deep/old.py"),
        ("src/**/*.py", "src/deep/old.py"),
        ("./src/*.ts", "src/new.ts"),
        ("src/*", "src/new.ts\nsrc/view.tsx"),
        ("**/deep/*", "src/deep/old.py"),
        ("**/*", "src/new.ts\nsrc/view.tsx\na.py\n.hidden.py\nsrc/deep/old.py"),
        ("/etc/hostnam*", "/etc/hostname"),
    ],
)
def test_a_pattern_finds_files_newest_first(call: Call, pattern: str, expected: str) -> None:
    assert call("Glob", pattern=pattern).text.startswith(expected)


@pytest.mark.usefixtures("project")
def test_an_absolute_pattern_carries_its_directory(call: Call, inside: str) -> None:
    assert call("Glob", pattern=f"{inside}/src/*.ts").text == "src/new.ts"
    assert call("Glob", pattern=f"{inside}/a.py").text == "a.py"


@pytest.mark.usefixtures("project")
def test_a_directory_is_where_the_pattern_starts(call: Call, inside: str) -> None:
    assert call("Glob", pattern="*.ts", path="src").text == "src/new.ts"
    call("Bash", command="cd src/deep")
    assert call("Glob", pattern="*.ts", path="..").text == f"{inside}/src/new.ts"


@pytest.mark.usefixtures("project")
def test_nothing_found_is_said_with_what_was_not_searched(call: Call) -> None:
    result = call("Glob", pattern="*.log")
    assert result.data == {"total": 0, "shown": 0, "left_out": ".git; what .gitignore, .ignore, .rgignore exclude"}
    assert "what .gitignore" in result.text


def test_the_total_beyond_the_limit_is_known(call: Call) -> None:
    call("Bash", command="for i in $(seq 3000); do : > f$i.txt; done")
    result = call("Glob", pattern="*.txt", limit=5)
    assert result.status == "partial"
    assert (result.data["total"], result.data["shown"]) == (3000, 5)
    assert result.text.splitlines()[-1].startswith("[the 5 newest of 3000 files;")


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ({"pattern": "["}, ErrorCode.INVALID_PARAM),
        ({"pattern": "../*.py"}, ErrorCode.INVALID_PARAM),
        ({"pattern": "!*.py"}, ErrorCode.INVALID_PARAM),
        ({"pattern": "*", "path": "nope"}, ErrorCode.NOT_FOUND),
        ({"pattern": "nope/*"}, ErrorCode.NOT_FOUND),
        ({"pattern": "*", "path": "/etc/passwd"}, ErrorCode.INVALID_PARAM),
    ],
)
def test_a_bad_search_is_refused(call: Call, arguments: dict[str, object], code: ErrorCode) -> None:
    assert failure(call, **arguments).code is code
