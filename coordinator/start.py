"""Where the `sandhog` command begins: as little as possible before the imports, which are most of its start."""

import gc
import importlib
import os
import sys


def main() -> None:
    """Import the command line without garbage collection, then run it.

    The imports make some hundred thousand objects that all stay; collecting among them costs a fifth of the start.
    """
    _open_standard_streams()
    gc.disable()
    try:
        cli = importlib.import_module("coordinator.cli")
    except KeyboardInterrupt:
        sys.exit(130)
    gc.freeze()
    gc.enable()
    cli.main()


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
