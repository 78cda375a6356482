"""A file system of its own for the shared volume, which can be full."""

import os
import subprocess
from pathlib import Path

SIZE_BYTES = 2 << 30


class Volume:
    """A file system in memory, mounted until it is closed, where that is possible."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.is_mounted = False

    def mount(self) -> None:
        """Mount it if this may be done here."""
        argv = ["mount", "-t", "tmpfs", "-o", f"size={SIZE_BYTES},mode=755", "tmpfs", str(self._path)]
        self.is_mounted = subprocess.run(argv, capture_output=True, check=False).returncode == 0

    def used_bytes(self) -> int | None:
        """Return what is used of it; None where it cannot be made full."""
        if not self.is_mounted:
            return None
        stat = os.statvfs(self._path)
        return (stat.f_blocks - stat.f_bfree) * stat.f_frsize

    def resize(self, size: int = SIZE_BYTES) -> bool:
        """Give it a size; return whether it can have it."""
        argv = ["mount", "-o", f"remount,size={size}", str(self._path)]
        return subprocess.run(argv, check=False, capture_output=True).returncode == 0

    def close(self) -> None:
        """Unmount it."""
        if self.is_mounted:
            subprocess.run(["umount", "-l", str(self._path)], check=False)
