"""Where a box's guest comes for its link without an exec: a socket of ours that the box finds read-only mounted.

lifeline → container → **door** ← spawner. The guest comes by itself whenever it has no link, so a worker that takes a
box over only opens the door again at the same place. That we listen, and the box connects, is what keeps the host
safe: in a directory that the box can write, it could put a link or another socket in our way.
"""

import os
import shutil
import socket
import struct
import time
from collections.abc import Callable
from pathlib import Path

from sandbox.socket_stream import SocketStream

SOCKET_NAME = "host.sock"
PATIENCE_S = 2.0
"""A guest that can come does so within milliseconds of its start; one that has lost its link tries twice a second."""
LOOK_S = 0.02
"""Between looks whether the box still lives."""
_PEER = struct.Struct("iII")


class DoorStream(SocketStream):
    """One guest's connection. A guest that sees its end comes again."""

    is_heard = False
    """Whether a word has come of it yet."""

    def recv(self) -> bytes:
        """The next bytes; empty at the end."""
        data = super().recv()
        self.is_heard = self.is_heard or bool(data)
        return data


class Door:
    """One box's door: open until it is closed. Who is not let in waits in the kernel's queue, which holds two."""

    def __init__(self, folder: Path) -> None:
        """Open it in this folder, which is made; a door that an earlier process left there is replaced.

        Raises:
            OSError.
        """
        folder.parent.mkdir(mode=0o700, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        place = os.open(folder, os.O_PATH | os.O_DIRECTORY)
        try:
            # By the descriptor: a socket's path has room for 108 bytes.
            path = Path(f"/proc/self/fd/{place}/{SOCKET_NAME}")
            path.unlink(missing_ok=True)
            self._listener.bind(str(path))
            path.chmod(0o600)
            self._listener.listen(1)
            self._listener.settimeout(LOOK_S)
        except BaseException:
            self._listener.close()
            raise
        finally:
            os.close(place)

    def wait(self, is_gone: Callable[[], bool], patience_s: float | None = None) -> DoorStream | None:
        """The box's root that knocks; None when nobody does in time, or `is_gone` says that nobody will."""
        deadline = time.monotonic() + (PATIENCE_S if patience_s is None else patience_s)
        while True:
            try:
                connection, _ = self._listener.accept()
            except TimeoutError:
                if is_gone() or time.monotonic() > deadline:
                    return None
                continue
            except OSError:
                return None
            if _is_root(connection) and _is_alive(connection):
                return DoorStream(connection)
            connection.close()

    def was_knocked_at(self) -> bool:
        """Whether somebody came after all, who is sent away."""
        try:
            connection, _ = self._listener.accept()
        except OSError:
            return False
        connection.close()
        return True

    def close(self) -> None:
        """Let nobody in any more; who waits is sent away. More than once does no harm."""
        self._listener.close()


def remove(folder: Path) -> None:
    """Remove a door's folder, which may be gone already."""
    shutil.rmtree(folder, ignore_errors=True)


def _is_root(connection: socket.socket) -> bool:
    """Only root finds the way, and only root is let in: commands have another user."""
    _pid, uid, _gid = _PEER.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
    return bool(uid == 0)


def _is_alive(connection: socket.socket) -> bool:
    """Whether the one who knocked is still there."""
    connection.setblocking(False)
    try:
        return connection.recv(1, socket.MSG_PEEK) != b""
    except BlockingIOError:
        return True
    except OSError:
        return False
