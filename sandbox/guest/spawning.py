"""The guest's end of the pair to the spawner."""

from __future__ import annotations

import marshal
import os
import select
import socket
import sys
from collections.abc import Callable

from sandbox.guest.loop import Loop

TYPE_CHECKING = False
if TYPE_CHECKING:
    # The typing module alone would be a tenth of the guest's memory.
    from typing import Any

MAX_MESSAGE_BYTES = 4096
"""Of what the spawner says. The room for much more would be mapped for each message."""
QUEUE_WAIT_MS = 2000
FDS_SPACE = socket.CMSG_SPACE(4)


class Ended:
    """How a spawn came out: a wait status, or the number of the error that prevented it and what it concerns."""

    __slots__ = ("error", "status", "what")

    def __init__(self, status: int, error: int, what: str) -> None:
        self.status = status
        self.error = error
        self.what = what


class SpawnerLink:
    """Asks the spawner for processes; the guest ends when it is gone."""

    def __init__(self, loop: Loop, fd: int) -> None:
        self._socket = socket.socket(fileno=fd)
        self._socket.setblocking(False)
        self._writable = select.poll()
        self._writable.register(fd, select.POLLOUT)
        self._loop = loop
        self._on_end: dict[int, Callable[[Ended], None]] = {}
        self._on_knocked: Callable[[int | None], None] = lambda _: None
        self._last_id = 0
        loop.watch(fd, self._readable)

    def spawn(self, command: tuple[Any, ...], fds: tuple[int, ...], on_end: Callable[[Ended], None]) -> None:
        """Start argv, executables, env, cwd, marker; call back once, when it ended or failed."""
        self._last_id += 1
        message = marshal.dumps(("spawn", self._last_id, *command))
        packed = b"".join(fd.to_bytes(4, sys.byteorder) for fd in fds)
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, packed)]
        try:
            self._socket.sendmsg([message], rights)
        except BlockingIOError:
            # The spawner has more to do than its queue holds; it takes a message a millisecond.
            self._writable.poll(QUEUE_WAIT_MS)
            self._socket.sendmsg([message], rights)
        self._on_end[self._last_id] = on_end

    def beat(self) -> None:
        """Tell the dead-man timer that the host is alive."""
        try:
            self._socket.send(marshal.dumps(("beat",)))
        except OSError:
            os._exit(1)

    def knock(self, path: str, on_knocked: Callable[[int | None], None]) -> None:
        """Connect to a socket as root; call back once with the connection's descriptor, or None."""
        self._on_knocked = on_knocked
        try:
            self._socket.send(marshal.dumps(("knock", path)))
        except BlockingIOError:
            on_knocked(None)
        except OSError:
            os._exit(1)

    def _readable(self, _: int) -> None:
        try:
            data, ancillary, _, _ = self._socket.recvmsg(MAX_MESSAGE_BYTES, FDS_SPACE, socket.MSG_CMSG_CLOEXEC)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            os._exit(1)
        kind, spawn_id, number, detail = marshal.loads(data)
        if kind == "knocked":
            self._on_knocked(None if number else int.from_bytes(ancillary[0][2], sys.byteorder))
            return
        on_end = self._on_end.pop(spawn_id)
        if kind == "failed":
            on_end(Ended(0, number, detail))
        elif detail:
            on_end(Ended(0, _exec_error(detail), "exec"))
        else:
            on_end(Ended(number, 0, ""))


def _exec_error(text: bytes) -> int:
    """The error number in what a child writes when it cannot execute: `OSError:2:noexec` (hexadecimal)."""
    try:
        return int(text.split(b":")[1], 16)
    except (IndexError, ValueError):
        return 0
