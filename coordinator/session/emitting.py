"""Hand one session's events on: loop → **emitting** → transcript, timeline, service."""

import asyncio
import logging
from collections.abc import Iterable, Sequence

from coordinator.errors import TranscriptError
from coordinator.session.events import Event, EventSink
from coordinator.session.transcript import Transcript

log = logging.getLogger(__name__)

LAST_PAUSES_S = (0.2, 0.5, 1.0, 2.0)
"""Before each further try to keep a session's last events."""


class Emitter:
    """Keeps each event in the transcript, then shows it to the sinks.

    Args:
        transcript: Takes every event until it cannot.
        sinks: Whoever watches; one that fails is left out from then on.
    """

    def __init__(self, transcript: Transcript, sinks: Iterable[EventSink]) -> None:
        self.transcript = transcript
        self._sinks = list(sinks)
        self._torn: TranscriptError | None = None
        """Why an event is missing from the transcript, and all behind it are."""

    @property
    def is_whole(self) -> bool:
        """All that happened so far is in the transcript."""
        return self._torn is None

    async def sync(self) -> None:
        """Return when all that happened so far is on the disk.

        Raises:
            TranscriptError: it is not; also where whoever was told of that has passed over it.
        """
        if self._torn is not None:
            raise TranscriptError(str(self._torn)) from self._torn
        await self.transcript.sync_aside()

    def __call__(self, event: Event) -> None:
        """Hand an event on.

        Raises:
            TranscriptError: it cannot be kept; said once, for the session ends by it.
        """
        fault: TranscriptError | None = None
        if self._torn is None:
            try:
                self.transcript(event)
            except TranscriptError as exc:
                self._torn = fault = exc
        self.show(event)
        if fault is not None:
            raise fault

    def show(self, event: Event) -> None:
        """Hand an event to those who watch, and keep it nowhere."""
        for sink in tuple(self._sinks):
            try:
                sink(event)
            except (OSError, ValueError) as exc:
                # Such as a terminal or a pipe that was closed: the work does not depend on who watches it.
                log.warning("events are shown no more", extra={"error": str(exc)})
                self._sinks.remove(sink)

    async def last(self, events: Sequence[Event]) -> None:
        """Hand the session's last events on.

        What the disk does not take is tried again for some seconds: a session without an end in its transcript is gone
        on with by whoever finds it, though it had been cancelled.

        Raises:
            TranscriptError: one cannot be kept; all of them are shown.
        """
        try:
            for event in events if self._torn is None else ():
                await self._keep(event)
        except TranscriptError as exc:
            self._torn = exc
            raise
        finally:
            for event in events:
                self.show(event)

    async def _keep(self, event: Event) -> None:
        for pause_s in LAST_PAUSES_S:
            try:
                self.transcript(event)
                return
            except TranscriptError as exc:
                log.warning("a session's end is not kept yet", extra={"error": str(exc)})
                await asyncio.sleep(pause_s)
        self.transcript(event)
