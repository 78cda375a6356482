"""A session's workspace as it is now, for a fork of the session: order → **forking** → the fork's private copy.

The fork finds its copy made, as a session does that goes on: `work`, and `base`, with which it is compared at its end.
That is what the first session began with, so that the fork's patch fits the same directory.
"""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from sandbox.box import Box
from sandbox.errors import SandboxError
from worker import loop_device
from worker.beneath import remove_tree
from worker.contract.orders import BoxOrder, CopyOrder, CopyOutcome, WorkspaceMode
from worker.contract.places import has_private_copy
from worker.copying import Copier, TooDeep
from worker.errors import WorkspaceRefused
from worker.files_in import DONE
from worker.own_disk import MOUNT, OwnDisks
from worker.workspace import agent_uid, locked, make_copy, make_session_dir, opened, source_of

log = logging.getLogger(__name__)

GONE = "The session's private copy is gone: it is kept for a while where the session did not complete, or with `keep`."


def copy_for_fork(order: CopyOrder, disks: OwnDisks | None, size_bytes: int | None) -> CopyOutcome:
    """Make the fork's private copy, with the session's spilled output. Idempotent.

    Args:
        order: Which session's, and whose it becomes. Nothing else works in the session's workspace meanwhile.
        disks: Gives the copy a file system of its own.
        size_bytes: What the copy may hold, if `disks` can enforce it.
    """
    source_dir, target_dir = Path(order.box.session_dir), Path(order.target_dir)
    try:
        make_session_dir(target_dir)
        with locked(target_dir):
            if not has_private_copy(target_dir):
                with _workspace(order.box, source_dir, disks) as (work, base):
                    make_copy(work, target_dir, _copier(order), None, disks, size_bytes, begun_as=base)
                _copy_beside(source_dir, target_dir)
                if disks is not None:
                    # Whichever node the fork goes to mounts it again.
                    disks.let_go(target_dir)
    except (OSError, TooDeep, WorkspaceRefused) as error:
        _remove(target_dir, disks)
        return CopyOutcome(session=order.target, error=f"The workspace cannot be copied: {error}")
    return CopyOutcome(session=order.target)


@contextmanager
def standing_still(box: Box | None) -> Iterator[None]:
    """Let a box's commands stand still, if it has any; one that is lost has none."""
    if box is None or not box.is_alive() or box.is_frozen:
        yield
        return
    try:
        box.freeze()
    except SandboxError as error:
        log.info("a box could not be frozen", extra={"box_id": box.box_id, "error": str(error)})
    try:
        yield
    finally:
        # What the node wants of all its boxes is told to this one again with the next heartbeat.
        with suppress(SandboxError):
            box.thaw()


@contextmanager
def _workspace(order: BoxOrder, session_dir: Path, disks: OwnDisks | None) -> Iterator[tuple[Path, Path | None]]:
    """Yield where the session's workspace lies, and what it began with; None where that is not known."""
    if order.workspace_mode is WorkspaceMode.BIND:
        yield source_of(order, session_dir), None
        return
    if not has_private_copy(session_dir):
        raise WorkspaceRefused(GONE)
    with locked(session_dir):
        was_open = loop_device.is_mounted(session_dir / MOUNT)
        try:
            yield opened(session_dir, disks), session_dir / "base"
        finally:
            if disks is not None and not was_open:
                disks.let_go(session_dir)


def _copier(order: CopyOrder) -> Copier:
    if os.geteuid() != 0:
        return Copier()
    # A user of its own: those of the session that is copied must not reach what it runs.
    uid = 0 if order.box.as_root else agent_uid(order.target)
    return Copier(uid, uid)


def _copy_beside(source_dir: Path, target_dir: Path) -> None:
    """Copy what lies beside the workspace and belongs to it: spilled output, and that files were brought along."""
    if (source_dir / "spill").is_dir():
        Copier().fill(source_dir / "spill", target_dir / "spill")
    if (source_dir / DONE).exists():
        (target_dir / DONE).touch()


def _remove(target_dir: Path, disks: OwnDisks | None) -> None:
    try:
        if disks is not None:
            disks.remove(target_dir)
        for name in ("work", "base", "work.part", "base.part", "spill"):
            remove_tree(target_dir / name)
    except OSError as error:
        log.warning("a copy is left behind", extra={"directory": str(target_dir), "error": str(error)})
