"""Keeps redis from importing OpenTelemetry's metrics, which it does for counts of its own that nobody here asks for.

Where opentelemetry-sdk is installed, redis tries that whenever it is imported, and does without where it fails. Others
may import it at any time.
"""

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

UNASKED = "opentelemetry.sdk.metrics"


class _WithoutMetrics:
    """Finds no metrics while redis is being imported; leaves everything else to those behind it."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None, /
    ) -> ModuleSpec | None:
        """Return None, or refuse."""
        redis = sys.modules.get("redis")
        # Its list of names comes last.
        if fullname == UNASKED and redis is not None and not hasattr(redis, "__all__"):
            raise ModuleNotFoundError(f"{fullname} is not asked for", name=fullname)
        return None


def import_less() -> None:
    """Have redis imported without them from now on in this process; before anything imports it."""
    sys.meta_path.insert(0, _WithoutMetrics())
