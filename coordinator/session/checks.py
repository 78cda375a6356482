"""The check of a session on the coordinator's side: request → **checks** → finish order, outcome → reward."""

import json
import math
import shutil
from dataclasses import dataclass
from pathlib import Path

from worker.contract.checks import CHECK_FILES_DIR, Check, CheckOutcome


@dataclass(frozen=True)
class CheckOptions:
    """What judges a session's workspace, and what goes with it through the session's directory."""

    order: Check
    sources: tuple[Path, ...] = ()
    """The content of the order's files, in their order."""

    def lay_out(self, session_dir: Path) -> None:
        """Put the files where the node finds them; once the model is done, so that nothing can show them to it.

        Raises:
            OSError: they cannot be read or written.
        """
        if self.sources:
            (session_dir / CHECK_FILES_DIR).mkdir(mode=0o700, exist_ok=True)
        for number, source in enumerate(self.sources):
            shutil.copyfile(source, session_dir / CHECK_FILES_DIR / str(number))


def reward_of(outcome: CheckOutcome) -> float | None:
    """Return the `reward` of the JSON object in the last line that a check printed; None where there is none."""
    lines = outcome.stdout.rstrip().splitlines()
    if not lines or outcome.error is not None:
        return None
    try:
        said = json.loads(lines[-1])
    except (ValueError, RecursionError):
        return None
    reward = said.get("reward") if isinstance(said, dict) else None
    if isinstance(reward, bool) or not isinstance(reward, int | float):
        return None
    return float(reward) if abs(reward) <= 1e300 and math.isfinite(reward) else None
