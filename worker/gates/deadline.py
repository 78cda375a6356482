"""A limit for code that knows none: a lane is never held for longer than the call it runs may take."""

import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import TypeVar

_T = TypeVar("_T")


class Overdue(Exception):
    """The work did not end in time; its thread cannot be ended and goes on."""


def within(limit_s: float, work: Callable[[], _T], name: str) -> _T:
    """Return what the work returns, or raise what it raises.

    Raises:
        Overdue: neither came within the limit.
    """
    future: Future[_T] = Future()

    def body() -> None:
        try:
            future.set_result(work())
        except Exception as exc:
            future.set_exception(exc)
        except BaseException as exc:
            # Its own thread is all that it may end.
            future.set_exception(RuntimeError(f"{name} raised {type(exc).__name__}"))

    threading.Thread(target=body, name=name, daemon=True).start()
    wait((future,), limit_s)
    if not future.done():
        raise Overdue(f"{name} did not end within {limit_s:g} s")
    return future.result()
