"""The engine's events, listened to for as long as a node lives: engine → **events** → deaths, images."""

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

RECONNECT_S = 1.0


class EngineEvents:
    """Hears one stream of events in a thread of its own, and opens it again whenever it breaks."""

    def __init__(
        self,
        subscribe: Callable[[], Any],
        take: Callable[[dict[str, Any]], None],
        on_open: Callable[[bool], None] = lambda _: None,
    ) -> None:
        """`subscribe` opens the stream: an iterator with `close`; it may raise anything. `take` gets each event.

        `on_open` is told True when the stream is open, and False when it is not any more.
        """
        self._subscribe = subscribe
        self._take = take
        self._on_open = on_open
        self._stream: Any = None
        self._closed = threading.Event()
        threading.Thread(target=self._listen, name="engine-events", daemon=True).start()

    def close(self) -> None:
        """Stop listening."""
        self._closed.set()
        self._end_stream()

    def _end_stream(self) -> None:
        # Closed already, or broken: either way nothing is to be had from it.
        with suppress(Exception):
            if self._stream is not None:
                self._stream.close()

    def _close_response(self) -> None:
        # The library shuts a stream's socket and leaves open what reads from it.
        with suppress(Exception):
            self._stream._response.raw.close()

    def _listen(self) -> None:
        while not self._closed.is_set():
            try:
                self._stream = self._subscribe()
                if self._closed.is_set():
                    self._stream.close()
                    return
                self._on_open(True)
                for event in self._stream:
                    self._take(event)
            except Exception:
                # The engine is away or the stream was closed; who listens knows that something may be missed.
                self._end_stream()
            finally:
                self._close_response()
            self._on_open(False)
            self._closed.wait(RECONNECT_S)
