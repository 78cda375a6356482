"""Bytes kept on the box's disk, not in the guest's memory: the ring of a background command, the shelf of answers.

The files have no name, so commands can neither open nor remove them; they count against the box's disk.
"""

from __future__ import annotations

import os

from sandbox.wire import HOME, WORKSPACE

PLACES = ("/var/tmp", "/tmp", HOME, WORKSPACE)
"""The first that takes a file is used."""

LEAST_RING_BYTES = 4096
"""A ring with less room keeps nothing."""


def open_nameless() -> int:
    """A descriptor of a new file without a name.

    Raises:
        OSError: no place takes one.
    """
    failure = OSError("there is no place for it")
    for place in PLACES:
        try:
            return os.open(place, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
        except OSError as error:
            failure = error
        # Not every file system (and not gVisor) can make a file without a name.
        path = f"{place}/.sandhog-{os.urandom(8).hex()}"
        try:
            fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            os.unlink(path)
            return fd
        except OSError as error:
            failure = error
    raise failure


class Ring:
    """The last bytes of a stream. Where the disk takes no more, it becomes smaller; it never fails."""

    def __init__(self, capacity_bytes: int) -> None:
        self._capacity = capacity_bytes
        self._fd = -1
        self.first = 0
        """Offset in the stream of the oldest byte that is kept."""
        self.total = 0
        """How much the stream had so far."""

    def add(self, data: bytes) -> None:
        """Take the next bytes of the stream."""
        left = memoryview(data)
        while left and self._capacity:
            taken = self._put(left)
            self.total += taken
            left = left[taken:]
            if not taken:
                # In the first round the ring ends where the disk did; later ones write where there was room before.
                self._capacity = self.total if LEAST_RING_BYTES < self.total < self._capacity else 0
        self.total += len(left)
        self.first = max(self.first, self.total - self._capacity)

    def _put(self, data: memoryview) -> int:
        place = self.total % self._capacity
        try:
            if self._fd < 0:
                self._fd = open_nameless()
            return os.pwrite(self._fd, data[: self._capacity - place], place)
        except OSError:
            return 0

    def read(self, offset: int, size: int) -> tuple[int, bytes]:
        """At most `size` bytes from the offset on, and where they really begin: later when the older ones are gone."""
        start = min(max(offset, self.first), self.total)
        size = min(size, self.total - start)
        parts = []
        at = start
        while size > 0:
            place = at % self._capacity
            try:
                part = os.pread(self._fd, min(size, self._capacity - place), place)
            except OSError:
                part = b""
            if not part:
                break
            parts.append(part)
            at += len(part)
            size -= len(part)
        return start, b"".join(parts)

    def close(self) -> None:
        """Give the disk back; nothing is kept any more."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        self._capacity = 0
        self.first = self.total


class Shelf:
    """Bytes put aside one after another and taken back by their place; bounded."""

    def __init__(self, bound_bytes: int) -> None:
        self._bound = bound_bytes
        self._fd = -1
        self._end = 0
        self._pieces = 0

    def put(self, data: bytes) -> int:
        """The place of the bytes, -1 when there is no room for them."""
        if self._end + len(data) > self._bound:
            return -1
        try:
            if self._fd < 0:
                self._fd = open_nameless()
            if os.pwrite(self._fd, data, self._end) != len(data):
                os.ftruncate(self._fd, self._end)
                return -1
        except OSError:
            return -1
        place = self._end
        self._end += len(data)
        self._pieces += 1
        return place

    def get(self, place: int, size: int) -> bytes:
        """The bytes that were put there.

        Raises:
            OSError: the disk does not give them.
        """
        data = os.pread(self._fd, size, place)
        if len(data) != size:
            raise OSError("the shelf is shorter than what was put there")
        return data

    def drop(self) -> None:
        """One of the pieces is wanted no more; with the last one the room is given back."""
        self._pieces -= 1
        if not self._pieces:
            self._end = 0
            os.ftruncate(self._fd, 0)
