"""The directories that a warm box is born with, before any session has it: **newborn** → pool → workspace."""

import os
import tempfile
from pathlib import Path

from sandbox.pool import Newborn
from worker.beneath import remove_tree
from worker.workspace import agent_uid


def bear(nursery: Path) -> Newborn:
    """Make the directories of a box that no session has yet, below a directory on the sessions' file system.

    Raises:
        OSError: they cannot be made.
    """
    nursery.mkdir(mode=0o711, parents=True, exist_ok=True)
    return newborn_in(Path(tempfile.mkdtemp(prefix="box-", dir=nursery)), make=True)


def newborn_in(folder: Path, make: bool = False) -> Newborn:
    """Return what `bear` made, or makes, in a folder; its user follows from its name."""
    is_root = os.geteuid() == 0
    uid, gid = (agent_uid(folder.name),) * 2 if is_root else (os.geteuid(), os.getegid())
    newborn = Newborn(folder, folder / "work", folder / "spill", uid, gid)
    if make:
        newborn.workspace_dir.mkdir(mode=0o700)
        newborn.spill_dir.mkdir(mode=0o755)
        newborn.spill_dir.chmod(0o755)
        if is_root:
            os.chown(newborn.workspace_dir, uid, gid)
    return newborn


def is_unused(newborn: Newborn) -> bool:
    """Whether a newborn's directories are still where they were made, and empty."""
    try:
        return not any(newborn.workspace_dir.iterdir()) and not any(newborn.spill_dir.iterdir())
    except OSError:
        return False


def bury(newborn: Newborn) -> None:
    """Remove what is left of a newborn's directories.

    Raises:
        OSError: something cannot be removed.
    """
    remove_tree(newborn.folder)
