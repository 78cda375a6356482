"""Where the `sandhog` command begins: as little as possible before the imports, which are most of its start."""

import gc
import importlib
import os
import signal
import sys

from worker.contract.unasked import import_less


def main() -> None:
    """Import the command line without garbage collection, then run it.

    The imports make some hundred thousand objects that all stay; collecting among them costs a fifth of the start.
    """
    _open_standard_streams()
    # Python's own way with Ctrl-C is an exception that an import may swallow. Nothing has begun that must be ended.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: os._exit(130))
    import_less()
    gc.disable()
    cli = importlib.import_module("coordinator.cli")
    gc.freeze()
    gc.enable()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    try:
        cli.main()
    finally:
        _let_go_of_readers()


def _open_standard_streams() -> None:
    """Put the null device where a standard stream was closed.

    Its number would be given to the next pipe or socket, and what is meant for the stream would go there.
    """
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            # The lowest free number is taken; those below were looked after before.
            os.open(os.devnull, os.O_RDWR)
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, mode, closefd=False))  # noqa: SIM115 - open as long as the process


def _let_go_of_readers() -> None:
    """Point a stream whose reader has gone at the null device.

    What could not be written is still in its buffer, and would spoil the exit code at the interpreter's end.
    """
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1 if stream is sys.stdout else 2)
