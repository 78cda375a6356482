"""Spill: the full text of a large result, one file a call, on the shared volume and readable in the box.

run → **spill** → budget. Files are plain text, appended in place, 0644, and bounded, each one and all of a session
together; the box sees their directory read-only at `/spill`. What the volume does not take is noted, never an error:
the command is not to blame for it.
"""

import os
import threading
from dataclasses import dataclass
from pathlib import Path
from weakref import WeakValueDictionary

from tools.spilling import SpillFlaw
from worker.contract import keys
from worker.contract.orders import CallKey, CallOrder

BOX_DIR = "/spill"
MIB = 1024 * 1024


def spill_name(order: CallOrder) -> str:
    """Return what a call's file is called: in one directory lie those of a session and of its sub-agents."""
    key = order.key
    child = key.session.removeprefix(order.box.session).removeprefix(keys.CHILD_MARK)
    return f"{child}{keys.CHILD_MARK}{_name_of(key)}" if child else _name_of(key)


def _name_of(key: CallKey) -> str:
    return f"{key.generation}-{key.step}-{key.index}-{key.attempt}"


@dataclass(frozen=True)
class SpillBounds:
    """How much is kept."""

    call_bytes: int = 64 * MIB
    """Of one call."""
    session_bytes: int = 1024 * MIB
    """Of all calls of a session together."""


class SessionRoom:
    """The room that is left in one session's directory. Its lock is held while a file of it grows."""

    def __init__(self, directory: Path, bound_bytes: int) -> None:
        self.lock = threading.Lock()
        self.directory = directory
        self.left_bytes = bound_bytes
        self._bound_bytes = bound_bytes

    def measure(self) -> None:
        """Count what is in the directory now; another node may have written to it before.

        Raises:
            OSError: it cannot be read.
        """
        with os.scandir(self.directory) as entries:
            used = sum(entry.stat(follow_symlinks=False).st_size for entry in entries)
        self.left_bytes = max(0, self._bound_bytes - used)


class SpillFile:
    """Appends one call's output; makes the file at the first byte. Used by one thread at a time."""

    def __init__(
        self,
        directory: Path,
        name: CallKey | str,
        bounds: SpillBounds = SpillBounds(),
        *,
        room: SessionRoom | None = None,
        joining: bool = False,
    ) -> None:
        """Name the file by its call, or as it is to be called.

        Args:
            directory: The session's.
            name: The call, or the file's name without its ending.
            bounds: How much is kept.
            room: Shared by the files of one directory that are written at the same time.
            joining: Go on with the file that an earlier life of the node began.
        """
        if isinstance(name, CallKey):
            name = _name_of(name)
        self.box_path = f"{BOX_DIR}/{name}.txt"
        self.written_bytes = 0
        self.flaw: SpillFlaw | None = None
        self.problem = ""
        self._path = directory / f"{name}.txt"
        self._bound_bytes = bounds.call_bytes
        self._room = room or SessionRoom(directory, bounds.session_bytes)
        self._is_begun = False
        if joining:
            self._go_on()

    @property
    def room_bytes(self) -> int:
        """How much more it would take now; nothing when a part is missing already."""
        with self._room.lock:
            return self._room_now()

    @property
    def is_written(self) -> bool:
        """Whether there is something in the file."""
        return self.written_bytes > 0

    def write(self, chunk: bytes) -> None:
        """Append a chunk, or as much of it as there is room for; after a part that was left out nothing follows."""
        if not chunk:
            return
        with self._room.lock:
            room = self._room_now()
            if self._has_ended:
                return
            if len(chunk) > room:
                is_full = self._bound_bytes - self.written_bytes <= room
                self.flaw = SpillFlaw.CALL_BOUND if is_full else SpillFlaw.SESSION_BOUND
            if room:
                self._append(memoryview(chunk)[:room])

    def spoil(self, flaw: SpillFlaw) -> None:
        """Note that something is missing which was never written."""
        self.flaw = self.flaw or flaw

    def start_over(self) -> None:
        """Forget what was written; the next chunk is the file's first."""
        self.written_bytes, self.flaw, self.problem, self._is_begun = 0, None, "", False

    @property
    def _has_ended(self) -> bool:
        return self.flaw is not None and self.flaw is not SpillFlaw.LINK

    def _room_now(self) -> int:
        """Return the room; the first time, it is measured and what an earlier delivery of the call wrote is removed."""
        try:
            if not self._is_begun and not self._has_ended:
                self._path.unlink(missing_ok=True)
                self._room.measure()
                self._is_begun = True
        except OSError as exc:
            self._fail(exc)
        if self._has_ended:
            return 0
        return max(0, min(self._bound_bytes - self.written_bytes, self._room.left_bytes))

    def _append(self, data: memoryview) -> None:
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
            fd = os.open(self._path, flags, 0o644)
            try:
                if not self.written_bytes:
                    os.fchmod(fd, 0o644)
                while data:
                    written = os.write(fd, data)
                    self.written_bytes += written
                    self._room.left_bytes -= written
                    data = data[written:]
            finally:
                os.close(fd)
        except OSError as exc:
            self._fail(exc)

    def _fail(self, error: OSError) -> None:
        self.flaw = SpillFlaw.VOLUME
        self.problem = error.strerror or str(error)

    def _go_on(self) -> None:
        try:
            self.written_bytes = self._path.stat().st_size
            self._room.measure()
        except FileNotFoundError:
            return
        except OSError as exc:
            self._fail(exc)
        self._is_begun = True
        if self.written_bytes >= self._bound_bytes:
            self.flaw = SpillFlaw.CALL_BOUND


class Spills:
    """Makes a node's spill files; those of one session share its room. Thread-safe."""

    def __init__(self, bounds: SpillBounds = SpillBounds()) -> None:
        self._bounds = bounds
        self._rooms: WeakValueDictionary[Path, SessionRoom] = WeakValueDictionary()
        self._guard = threading.Lock()

    def file(self, session_dir: Path, name: CallKey | str, *, joining: bool = False) -> SpillFile:
        """Return the file of a call, or of that name, below the session's directory; nothing is made yet."""
        directory = session_dir / "spill"
        with self._guard:
            room = self._rooms.get(directory)
            if room is None:
                room = self._rooms[directory] = SessionRoom(directory, self._bounds.session_bytes)
        return SpillFile(directory, name, self._bounds, room=room, joining=joining)
