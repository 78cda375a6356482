"""Breaks the link of a box as only a kernel could: the guest's own connection is shut from outside."""

import ctypes
import os
import socket
from contextlib import suppress
from pathlib import Path

from sandbox.door import SOCKET_NAME

PIDFD_GETFD = 438
"""Number of the system call, on every architecture. Source: pidfd_getfd(2)."""


def shut_link(guest: int) -> bool:
    """Shut the connection that the guest (its process id) has come to its worker's door with; whether it had one."""
    has_shut = False
    try:
        process = os.pidfd_open(guest)
    except ProcessLookupError:
        return False
    try:
        for entry in Path(f"/proc/{guest}/fd").iterdir():
            fd = ctypes.CDLL(None, use_errno=True).syscall(PIDFD_GETFD, process, int(entry.name), 0)
            has_shut = (fd >= 0 and _shut(fd)) or has_shut
    except FileNotFoundError:
        # It ended meanwhile.
        return has_shut
    finally:
        os.close(process)
    return has_shut


def _shut(fd: int) -> bool:
    """Shut what the descriptor, which is closed, leads to, if that is a door."""
    try:
        connection = socket.socket(fileno=fd)
    except OSError:
        os.close(fd)
        return False
    with connection, suppress(OSError):
        if connection.family == socket.AF_UNIX and str(connection.getpeername()).endswith(f"/{SOCKET_NAME}"):
            connection.shutdown(socket.SHUT_RDWR)
            return True
    return False
