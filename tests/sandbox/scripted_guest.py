"""A container whose guest says what a test wants it to say."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

from sandbox.errors import EngineUnavailable, LossReason
from sandbox.requests import CallMark
from sandbox.wire import PROTOCOL, Decoder, Frame, encode

INFO: dict[str, Any] = {
    "protocol": PROTOCOL,
    "python": "3.11.2",
    "machine": "x86_64",
    "shell": "/bin/sh",
    "uid": 1,
    "gid": 1,
    "frozen": False,
    "pids": 4,
    "facts": {},
}
RAN: dict[str, Any] = {
    "exit_code": 0,
    "signal": None,
    "timed_out": False,
    "cancelled": False,
    "oom_kills": 0,
    "duration_ms": 1.0,
    "cwd": "/workspace",
    "left_running": [],
    "background_id": None,
    "killed_leftovers": False,
    "streamed": False,
    "spill_complete": True,
    "stdout": {"head": 2, "tail": 0, "bytes": 2, "lines": 1, "dropped": 0},
    "stderr": {"head": 0, "tail": 0, "bytes": 0, "lines": 0, "dropped": 0},
}
VERSION = {"dev": 1, "ino": 1, "size": 1, "mtime_ns": 1, "ctime_ns": 1, "sha256": "0" * 64}
MARK = CallMark("key", "digest", "s", 1, 0)

Said = tuple[dict[str, Any], bytes] | bytes | Iterator[bytes] | None
Script = Callable[[Frame], Said]
"""What the guest says to a request: an answer, raw bytes, pieces while it is listened to, or None to hang up."""


class SocketStream:
    def __init__(self, end: socket.socket) -> None:
        self._end = end

    def recv(self) -> bytes:
        return self._end.recv(65536)

    def send_all(self, data: bytes) -> None:
        self._end.sendall(data)

    def close(self) -> None:
        with suppress(OSError):
            self._end.shutdown(socket.SHUT_RDWR)
        self._end.close()


class ScriptedContainer:
    """A container whose guest answers by a script; each connection is served by a thread."""

    def __init__(self, script: Script, greeting: Script = lambda _: (INFO, b"")) -> None:
        self.script = script
        self.greeting = greeting
        self.connections = 0
        self.removed = False
        self.fate_now: tuple[LossReason, str] | None = None
        self.is_engine_up = True
        self._threads: list[threading.Thread] = []
        self._ends: list[socket.socket] = []

    def connect(self) -> SocketStream:
        if not self.is_engine_up:
            raise EngineUnavailable("away")
        self.connections += 1
        ours, theirs = socket.socketpair()
        self._ends.append(theirs)
        thread = threading.Thread(target=self._serve, args=(theirs,))
        self._threads.append(thread)
        thread.start()
        return SocketStream(ours)

    def fate(self) -> tuple[LossReason, str] | None:
        if not self.is_engine_up:
            raise EngineUnavailable("away")
        return self.fate_now

    def let_go(self) -> None:
        """Nothing is held of it."""

    def remove(self) -> None:
        self.removed = True

    def end(self) -> None:
        for end in self._ends:
            end.close()
        for thread in self._threads:
            thread.join(60)

    def _serve(self, end: socket.socket) -> None:
        decoder = Decoder()
        try:
            while data := end.recv(65536):
                for frame in decoder.feed(data):
                    if not self._answer(end, frame):
                        return
        except OSError:
            return
        finally:
            end.close()

    def _answer(self, end: socket.socket, frame: Frame) -> bool:
        said = self.greeting(frame) if frame.head["op"] == "hello" else self.script(frame)
        if said is None:
            return False
        if isinstance(said, bytes):
            end.sendall(said)
        elif isinstance(said, tuple):
            end.sendall(encode({"id": frame.head["id"], **said[0]}, said[1]))
        else:
            for piece in said:
                end.sendall(piece)
        return True
