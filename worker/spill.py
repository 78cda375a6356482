"""Spill: the full text of a large result, one file a call, on the shared volume and readable in the box.

run → **spill** → budget. Files are plain text, appended in place, 0644, and bounded; the box sees their directory
read-only at `/spill`.
"""

from pathlib import Path

from worker.contract.orders import CallKey

BOX_DIR = "/spill"
CALL_BOUND_BYTES = 64 * 1024 * 1024


class SpillFile:
    """Appends one call's output; makes the file at the first byte. Used by one thread at a time."""

    def __init__(self, directory: Path, key: CallKey, bound_bytes: int = CALL_BOUND_BYTES) -> None:
        name = f"{key.generation}-{key.step}-{key.index}-{key.attempt}.txt"
        self.box_path = f"{BOX_DIR}/{name}"
        self.written_bytes = 0
        self.bound_hit = False
        self._path = directory / name
        self._bound_bytes = bound_bytes
        self._open = False

    def write(self, chunk: bytes) -> None:
        """Append a chunk, or as much of it as the bound leaves room for.

        Raises:
            OSError: the volume is full or gone; what was written stays.
        """
        room = self._bound_bytes - self.written_bytes
        if len(chunk) > room:
            self.bound_hit = True
            chunk = chunk[:room]
        if not chunk:
            return
        # Truncating at the first byte makes a repeated write of the same call (a join) start over, not append twice.
        with self._path.open("ab" if self._open else "wb") as file:
            file.write(chunk)
        if not self._open:
            self._path.chmod(0o644)
            self._open = True
        self.written_bytes += len(chunk)

    @property
    def is_written(self) -> bool:
        """Whether the file exists."""
        return self._open
