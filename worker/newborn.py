"""The directories that a warm box is born with, before any session has it: **newborn** → pool → workspace."""

import os
import tempfile
from pathlib import Path

from sandbox.pool import Newborn
from worker.beneath import remove_tree
from worker.own_disk import MOUNT, OwnDisks, copy_dir, size_bytes
from worker.workspace import agent_uid


def bear(nursery: Path, disks: OwnDisks | None = None, most_bytes: int | None = None) -> Newborn:
    """Make the directories of a box that no session has yet, below a directory on the sessions' file system.

    `most_bytes`: what the workspace may hold, if `disks` can enforce it.

    Raises:
        OSError: they cannot be made.
    """
    nursery.mkdir(mode=0o711, parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="box-", dir=nursery))
    if disks is not None and most_bytes is not None:
        disks.make(folder, most_bytes)
    newborn = newborn_in(folder)
    newborn.workspace_dir.mkdir(mode=0o700)
    newborn.spill_dir.mkdir(mode=0o755)
    newborn.spill_dir.chmod(0o755)
    if os.geteuid() == 0:
        os.chown(newborn.workspace_dir, newborn.uid, newborn.gid)
    return newborn


def newborn_in(folder: Path) -> Newborn:
    """Return what `bear` made in a folder; its user follows from its name."""
    uid, gid = (agent_uid(folder.name),) * 2 if os.geteuid() == 0 else (os.geteuid(), os.getegid())
    return Newborn(folder, copy_dir(folder), folder / "spill", uid, gid, size_bytes(folder))


def folder_of(workspace_dir: Path) -> Path:
    """Return the folder in which `bear` made this workspace."""
    return workspace_dir.parent.parent if workspace_dir.parent.name == MOUNT else workspace_dir.parent


def is_unused(newborn: Newborn) -> bool:
    """Whether a newborn's directories are still where they were made, and empty."""
    try:
        return not any(newborn.workspace_dir.iterdir()) and not any(newborn.spill_dir.iterdir())
    except OSError:
        return False


def bury(newborn: Newborn, disks: OwnDisks | None = None) -> None:
    """Remove what is left of a newborn's directories.

    Raises:
        OSError: something cannot be removed.
    """
    if disks is not None:
        disks.remove(newborn.folder)
    remove_tree(newborn.folder)
