"""Terminals of commands: one end for a command, the other for whoever sits outside."""

from __future__ import annotations

import fcntl
import os
import struct

from sandbox.guest.refusal import Refusal
from sandbox.wire import TTY_MOST, RefusalCode

TIOCSWINSZ = 0x5414
"""Source: asm-generic/ioctls.h; the termios module would be one more library in every box."""


def open_terminal() -> tuple[int, int]:
    """A new terminal: our end, and the command's, which belongs to the agent.

    Raises:
        OSError: the box has none left, or its image hides them.
    """
    return os.openpty()


def give_size(fd: int, rows: object, cols: object) -> None:
    """Tell a terminal, and by a signal its command, how large it is.

    Raises:
        Refusal: that is no size.
    """
    if not isinstance(rows, int) or not isinstance(cols, int) or not (0 < rows <= TTY_MOST and 0 < cols <= TTY_MOST):
        raise Refusal(RefusalCode.INVALID_PARAM, "no size of a terminal")
    fcntl.ioctl(fd, TIOCSWINSZ, struct.pack("HHHH", rows, cols, 0, 0))
