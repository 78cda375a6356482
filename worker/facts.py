"""What a node says of itself for placement: engine, volume, settings → **facts** → lease."""

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sandbox.machine import Machine
from sandbox.profiles import BUILT_IN
from worker.boxes import Boxes
from worker.settings import NodeSettings


@dataclass(frozen=True)
class Facts:
    """Looks at the machine anew whenever it is asked."""

    settings: NodeSettings
    boxes: Boxes
    images: Callable[[], tuple[str, ...]]
    """Names the images on the engine."""
    machine: Machine
    """The engine's."""

    def __call__(self) -> dict[str, Any]:
        """Return the fields of `NodeLife` that may change while the node lives.

        Raises:
            EngineUnavailable: the engine does not say which images it has.
            OSError: the volume cannot be looked at.
        """
        return {
            "labels": self.settings.label_map,
            "images": self.images(),
            "warm": self.boxes.warm_images(),
            "profiles": self._profiles(),
            "runtimes": self.machine.runtimes,
            "cpus": self.machine.cpus,
            "host": self.machine.host,
            "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
            "disk_free_bytes": shutil.disk_usage(self.settings.state_dir).free,
        }

    def _profiles(self) -> tuple[str, ...]:
        """Return the names of those that boxes can have here: their runtime is one of the engine's."""
        known = {**BUILT_IN, **self.settings.profiles}
        there = (None, *self.machine.runtimes)
        return tuple(sorted(name for name, profile in known.items() if profile.runtime in there))
