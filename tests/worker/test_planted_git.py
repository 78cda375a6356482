"""What a model plants for a git that others run: on our own ways git is never run in its directory."""

import os
import subprocess
from pathlib import Path

import pytest

from worker.contract.orders import BoxOrder, WorkspaceMode
from worker.results import finish_copy
from worker.workspace import prepare


def plant(directory: Path, ran: Path) -> None:
    """Let every git that looks at the directory's files leave a mark."""
    subprocess.run(["git", "init", "--quiet", str(directory)], check=True)
    trap = f"touch {ran}; cat"
    hooks = directory / ".git" / "hooks"
    with (directory / ".git" / "config").open("a") as config:
        config.write(f'[core]\n\tfsmonitor = "{trap}"\n\tpager = "{trap}"\n\thooksPath = {hooks}\n')
        config.write(f'[filter "x"]\n\tclean = "{trap}"\n\tsmudge = "{trap}"\n[diff "x"]\n\ttextconv = "{trap}"\n')
    (directory / ".gitattributes").write_text("* filter=x diff=x\n")
    for name in ("post-checkout", "post-index-change", "pre-applypatch", "reference-transaction"):
        hook = hooks / name
        hook.parent.mkdir(exist_ok=True)
        hook.write_text(f"#!/bin/sh\ntouch {ran}\n")
        hook.chmod(0o755)


def test_a_trap_for_git_does_not_spring_when_a_session_is_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, ran = tmp_path / "project", tmp_path / "ran"
    source.mkdir()
    (source / "a.txt").write_text("one\n")
    order = BoxOrder(
        session="s1",
        generation=1,
        session_dir=str(tmp_path / "sessions" / "s1"),
        image="box",
        workspace=str(source),
        workspace_mode=WorkspaceMode.COPY,
    )
    work = prepare(order).directory
    (work / "a.txt").write_text("two\n")
    plant(work, ran)
    subprocess.run(["git", "-c", "safe.directory=*", "add", "-A"], cwd=work, check=True, capture_output=True)
    assert ran.exists(), "the trap springs for others"
    ran.unlink()
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "git").write_text(f"#!/bin/sh\ntouch {ran}\n")
    (programs / "git").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")

    outcome = finish_copy(order, apply=True)

    assert (outcome.applied, outcome.error) == (True, None)
    assert (source / "a.txt").read_text() == "two\n"
    assert not (source / ".git").exists()
    assert not ran.exists()
