"""Places that both sides of the contract know: on a node's machine, and in a session's directory on the volume."""

import os
import tempfile
from pathlib import Path


def own_tools_dir(node: str) -> Path:
    """Return where the calls of a node's own tools have their homes: every user of the machine gets to it."""
    return Path(tempfile.gettempdir()) / f"sandhog-{os.geteuid()}-{node}-tools"


COPY_DIR, DISK_FILE = "work", "disk.img"
"""In a session's directory: its private copy, or the file system that holds it."""


def has_private_copy(session_dir: Path) -> bool:
    """Return whether a session's private copy is there."""
    return (session_dir / COPY_DIR).is_dir() or (session_dir / DISK_FILE).is_file()


def node_mark(state_dir: Path, node: str) -> Path:
    """Return the file by which a node shows that it sees this very volume, see `worker.contract.marks`."""
    return state_dir / "nodes" / f"{node}.json"
