"""An image's build that can be broken off at any moment, also while its step prints nothing: making → **building**."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import docker

LOOK_S = 0.2


class BuildClient(docker.APIClient):
    """A client for one build; ending its answer's connection ends the build on the engine too."""

    _answer: Any = None
    _response: Any = None

    def _stream_helper(self, response: Any, decode: bool = False) -> Any:
        self._response = response
        self._answer = self._get_raw_response_socket(response)  # type: ignore[attr-defined]
        return super()._stream_helper(response, decode)  # type: ignore[misc]

    def close(self) -> None:
        """Close the answer too, which its reader may have left in the middle."""
        if self._response is not None:
            self._response.close()
        super().close()

    def cut(self) -> bool:
        """End the answer that another thread reads; False when none has begun."""
        if self._answer is None:
            return False
        with suppress(OSError):
            getattr(self._answer, "_sock", self._answer).shutdown(socket.SHUT_RDWR)
        return True


@contextmanager
def watched(client: BuildClient, timeout_s: float, go_on: Callable[[], None]) -> Iterator[None]:
    """Break off what is read from the client meanwhile, when `go_on` raises or it takes too long.

    Raises:
        TimeoutError: it took too long. What `go_on` raised is raised as it is.
    """
    deadline = time.monotonic() + timeout_s
    ended = threading.Event()
    why: list[Exception] = []

    def look() -> None:
        while not ended.wait(LOOK_S):
            try:
                go_on()
                if time.monotonic() > deadline:
                    raise TimeoutError
            except Exception as error:
                why[:] = [error]
                if client.cut():
                    return

    watcher = threading.Thread(target=look, name="build-watch", daemon=True)
    watcher.start()
    try:
        yield
    except Exception:
        # Whatever the cut connection looks like to its reader.
        if not why:
            raise
    finally:
        ended.set()
        watcher.join()
    if why:
        raise why[0]
