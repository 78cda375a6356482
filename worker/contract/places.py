"""Places on a node's machine that whoever started the node cleans up when it could not."""

import os
import tempfile
from pathlib import Path


def own_tools_dir(node: str) -> Path:
    """Return where the calls of a node's own tools have their homes: every user of the machine gets to it."""
    return Path(tempfile.gettempdir()) / f"sandhog-{os.geteuid()}-{node}-tools"
