"""What a node runs calls with: machine, engine → **versions** → its life, transcripts, manifests of batches."""

import importlib.metadata
import platform

from sandbox.engine_report import read_report
from sandbox.errors import SandboxError


def versions() -> dict[str, str]:
    """Return the versions of this program, Python, the kernel and the engine's parts; without these if it is silent."""
    found = {
        "sandhog": importlib.metadata.version("sandhog"),
        "python": platform.python_version(),
        "kernel": platform.release(),
    }
    try:
        report = read_report()
    except (SandboxError, OSError):
        return found
    return found | {"engine": report.version, **report.parts}
