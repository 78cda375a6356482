"""The terminal that somebody sits at while a command in a box has it: raw, and as it was afterwards."""

import os
import termios
import tty
from collections.abc import Iterator
from contextlib import contextmanager

from worker.contract.channels import TTY_MOST, Size

ESCAPE, LEAVE = b"~", b"."


@contextmanager
def raw(fd: int) -> Iterator[None]:
    """Pass every key on inside the block, Ctrl-C too."""
    before = termios.tcgetattr(fd)
    try:
        # What was typed ahead is meant for the box.
        tty.setraw(fd, termios.TCSADRAIN)
        yield
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, before)


def size_of(fd: int) -> Size:
    """Return a terminal's size; one that says none is taken to have the usual one."""
    try:
        cols, rows = os.get_terminal_size(fd)
    except OSError:
        cols = rows = 0
    return Size(rows=min(rows, TTY_MOST) or 24, cols=min(cols, TTY_MOST) or 80)


class Escapes:
    """Finds `~.` at the beginning of a line, as ssh does: a box that hangs hears no other key."""

    def __init__(self) -> None:
        self._is_at_start = True
        self._holds_escape = False

    def take(self, typed: bytes) -> tuple[bytes, bool]:
        """Return what is to be passed on of the keys typed, and whether to leave behind it."""
        passed = bytearray()
        for key in (typed[index : index + 1] for index in range(len(typed))):
            if self._holds_escape:
                self._holds_escape = False
                if key == LEAVE:
                    return bytes(passed), True
                passed += key if key == ESCAPE else ESCAPE + key
            elif self._is_at_start and key == ESCAPE:
                self._holds_escape = True
            else:
                passed += key
            self._is_at_start = key in (b"\r", b"\n")
        return bytes(passed), False
