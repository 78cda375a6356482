"""A small project of a user, and what a session on it orders."""

import os
from pathlib import Path

import pytest

from worker.contract.orders import BoxOrder, WorkspaceMode

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs to be root")


def project(root: Path) -> Path:
    (root / "src").mkdir(parents=True)
    (root / "src" / "a.py").write_text("one\n")
    (root / "run").write_text("#!/bin/sh\n")
    (root / "run").chmod(0o750)
    (root / "link").symlink_to("src/a.py")
    (root / "dangling").symlink_to("/nowhere")
    (root / ".git").mkdir()
    (root / ".git" / "HEAD").write_text("ref: refs/heads/main\n")
    for name in ("src/a.py", "src"):
        os.utime(root / name, ns=(1_000_000_007, 1_000_000_009))
    return root


def order_for(
    source: Path, mode: WorkspaceMode = WorkspaceMode.COPY, session_dir: Path | None = None, as_root: bool = False
) -> BoxOrder:
    return BoxOrder(
        session="s1",
        generation=1,
        session_dir=str(session_dir or source.parent / "sessions" / "s1"),
        image="box",
        workspace=str(source),
        workspace_mode=mode,
        as_root=as_root,
    )
