"""What earlier releases left here: a directory each, as `record` makes it."""

import json
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
RELEASES = sorted(path.name for path in HERE.iterdir() if (path / "schemas.json").exists())


def recorded(release: str, what: str) -> dict[str, Any]:
    """Return an earlier release's `schemas`, `messages`, `names` or `scripts`."""
    found: dict[str, Any] = json.loads((HERE / release / f"{what}.json").read_text())
    return found
