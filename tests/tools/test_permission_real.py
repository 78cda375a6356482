"""What the guarded policy allows, run by a real bash: nothing is changed, and no denied program starts."""

import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sandbox.requests import RunRequest
from tools.base import RunContext, ToolResult
from tools.permission import GUARDED, decide
from tools.verdict import Decision

pytestmark = pytest.mark.docker

PROGRAMS = ["cat", "env", "xargs", "timeout", "nice", "find", "ls", "sed", "head", "nohup", "stdbuf", "sort",
            "uniq", "date", "tac"]  # fmt: skip
PIECES = [
    "cat", "rm x", "rm", "f", " ", "\n", ";", "|", "&", "&&", "||", "'", '"', "\\", "$", "(", ")", "{", "}", "`", "<",
    ">",
    "2>&1", ">/dev/null", "2>/dev/null", "<f", "<<<", "#", " #", "=", "-", "--", "-n", "!", "*", "?", "~", "[", "]",
    "ls", "env", "command", "xargs", "timeout 5", "nice", "find . -exec", "{}", "\\;", "+", "time", "exec", "builtin",
    "$x", "${x}",
    "$(", "\t", "$'", ",", "2", "&>", ">&", "<(", "-d", "-e", "-u", "-i", "-S", "-c", "-exec", "sed -n", "1p", "head",
    "<>", "<&", ">&-", "[[", "]]", "((", "))", "$[", "<<E\n", "\nE\n", "{v}>", "coproc", "function", "${!", "@P}",
    "$((",
    "sort", "uniq", "-o", "-of", "date", "printf", "%n", "'%n'", "PATH", "PATH=.", "test", "-v", "'a[$(rm x)]'", "-R",
    "1w g", "s/c/rm x/e", "!f", "if", "then", "fi", "for i in", "do", "done", "case", "esac", "time -p", "tac",
    "\r", "\\\n",
]  # fmt: skip
TEXTS = st.lists(st.sampled_from([*PIECES, *(f"{piece} " for piece in PIECES)]), min_size=2, max_size=9).map("".join)


@pytest.fixture
def trap(call: Callable[..., ToolResult], put: Callable[[str, str | bytes], Path], inside: str) -> Path:
    """A directory with one file, and a PATH whose `rm` leaves a mark there; the directory on the host."""
    links = "".join(f"ln -s $(command -v {program}) bin/{program}\n" for program in PROGRAMS)
    call("Bash", command=f"mkdir bin\n{links}")
    rm = put("bin/rm", f"#!/bin/sh\n: > {inside}/ran\n")
    rm.chmod(stat.S_IRWXU | stat.S_IRGRP | stat.S_IXGRP | stat.S_IROTH | stat.S_IXOTH)
    return put("f", "content\n").parent


STARTS = st.sampled_from(["cat f ", "cat ", "env ", "command ", "find . ", ""])
ENDS = st.sampled_from(["", "rm x", "\nrm x", ";rm"])


@given(start=STARTS, text=TEXTS, end=ENDS)
@settings(max_examples=800, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_what_is_allowed_changes_nothing(
    trap: Path, inside: str, context: Callable[..., RunContext], start: str, text: str, end: str
) -> None:
    command = start + text + end
    if decide("Bash", {"command": command}, GUARDED).decision is not Decision.ALLOW:
        return
    here = context()
    argv = ("/bin/bash", "-c", command)
    request = RunRequest(here.mark, argv=argv, cwd=inside, timeout_ms=5_000, env={"PATH": f"{inside}/bin"})
    here.box.run(request)
    assert sorted(path.name for path in trap.iterdir()) == ["bin", "f"]
    assert (trap / "f").read_text() == "content\n"


def test_the_trap_springs(trap: Path, inside: str, context: Callable[..., RunContext]) -> None:
    here = context()
    here.box.run(RunRequest(here.mark, argv=("/bin/bash", "-c", "rm x"), cwd=inside, env={"PATH": f"{inside}/bin"}))
    assert (trap / "ran").exists()


def test_looking_by_git_leaves_the_index_and_its_hook_alone(
    call: Callable[..., ToolResult], put: Callable[[str, str | bytes], Path]
) -> None:
    put("f", "content\n")
    made = call("Bash", command="git init -q . && git add f && git commit -qm one && touch -d '1 hour ago' f")
    assert made.status == "success", made
    hook = put(".git/hooks/post-index-change", "#!/bin/sh\n: > ran\n")
    hook.chmod(0o755)
    index = hook.parent.parent / "index"
    before = index.read_bytes()
    for command in ("git status", "git log -p --oneline", "git show", "git blame f", "git ls-files -m"):
        assert decide("Bash", {"command": command}, GUARDED).decision is Decision.ALLOW
        assert call("Bash", command=command).status == "success"
    assert index.read_bytes() == before
    assert not (hook.parents[2] / "ran").exists()
