"""One session's turns: a person's message → **conversation** (catch up, loop) → the model's answer, and so on."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from coordinator.cluster.seat import Seat
from coordinator.ending import first
from coordinator.errors import LostSession, NoBox, NoSource, RedisLost
from coordinator.session.catching_up import Continued, OpenAnswers, learn
from coordinator.session.events import EventSink
from coordinator.session.loop import Ending, SessionLoop
from coordinator.session.rebuild import OpenStep
from coordinator.session.session_events import TAKEOVER, TurnEnded

NextMessage = Callable[[TurnEnded], Awaitable[str | None]]
"""Returns a person's next message once the model has answered; None ends the session."""


@dataclass(frozen=True)
class Conversation:
    """Runs the turns of one session."""

    loop: SessionLoop
    emit: EventSink
    grant: Callable[[], None]
    """Gives the session another turn's replies."""
    next_message: NextMessage | None = None
    """None: the session has one turn."""
    continued: Continued | None = None
    """What an earlier owner left; None for a session that begins."""
    answers: OpenAnswers | None = None
    """Finds what is missing of it."""

    async def run(self, seat: "asyncio.Task[Seat]", cancelled: asyncio.Event) -> Ending:
        """Return how the last turn ended; every call that was asked for is answered then.

        Args:
            seat: Yields the session's place and box.
            cancelled: Ends a turn as soon as every call has its answer. Who clears it may go on.

        Raises:
            TranscriptError: what happened cannot be kept.
        """
        ending = await self._begin(seat, cancelled)
        while self.next_message is not None and not ending.is_lost:
            turn = TurnEnded(status=ending.status, stop_reason=ending.stop_reason, text=ending.text)
            self.emit(turn)
            self.loop.clock.stop()
            text = await self.next_message(turn)
            if text is None:
                break
            self.grant()
            self.loop.history.add_user(text, "user")
            ending = await self.loop.run(seat, cancelled)
        return ending

    async def _begin(self, seat: "asyncio.Task[Seat]", cancelled: asyncio.Event) -> Ending:
        if self.continued is not None:
            try:
                ending = await self._catch_up(self.continued, seat, cancelled)
            except NoBox as exc:
                return Ending("failed", f"{exc.kind}: {exc}")
            except LostSession as exc:
                return Ending("failed", f"taken over: {exc}", is_lost=True)
            except RedisLost as exc:
                return Ending("failed", f"redis: {exc}")
            if ending is not None:
                return ending
        return await self.loop.run(seat, cancelled)

    async def _catch_up(
        self, continued: Continued, seat: "asyncio.Task[Seat]", cancelled: asyncio.Event
    ) -> Ending | None:
        """Bring the conversation to where the model can be asked; return the ending where it need not be."""
        rebuilt, place = continued.rebuilt, None
        if rebuilt.open_step is not None and self.answers is not None:
            self.answers.open(rebuilt.open_step)
        done = self._decided(continued)
        if rebuilt.open_step is not None or rebuilt.placed is not None:
            try:
                place = await first(seat, cancelled)
            except NoBox as exc:
                if done is not None and isinstance(exc, NoSource):
                    # What it worked on was collected already, and nothing is left to be done there.
                    return done
                self._close(rebuilt.open_step, f"there is no box ({exc})")
                raise
            if place is None:
                self._close(rebuilt.open_step, "the session was cancelled")
                return Ending("cancelled", "cancelled")
            strict = self.loop.model.settings.strict_tools
            if self.answers is not None:
                await self.answers.end_questions(place.session, cancelled)
            learn(self.loop.steps.approvals.lasting, rebuilt, self.loop.registry, place, strict=strict)
            if rebuilt.open_step is not None and self.answers is not None:
                self.loop.spend.calls += len(rebuilt.open_step.missing)
                self.loop.history.add_answers(await self.answers.find(rebuilt.open_step, place, cancelled))
        if done is not None:
            return done
        words = continued.words(place)
        if words:
            self.loop.history.add_user(words, "user" if continued.message else "sandhog")
        return None

    def _decided(self, continued: Continued) -> Ending | None:
        """Return how the session ends where its last owner only did not come to say so."""
        rebuilt = continued.rebuilt
        if rebuilt.ending is not None and continued.by == TAKEOVER:
            return Ending(rebuilt.ending.status, rebuilt.ending.stop_reason, rebuilt.text)
        return Ending("completed", "done", rebuilt.text) if self._is_done(continued) else None

    def _is_done(self, continued: Continued) -> bool:
        """Return whether the model has said its last words, and nobody says anything to it."""
        rebuilt, ended = continued.rebuilt, continued.rebuilt.ended
        is_answered = self.loop.history.is_answered and (ended is None or ended.status == "completed")
        return is_answered and bool(rebuilt.text) and not continued.message

    def _close(self, opened: OpenStep | None, why: str) -> None:
        """Answer what an earlier owner left unanswered where nothing more can be found out about it."""
        if opened is not None and self.answers is not None:
            self.loop.spend.calls += len(opened.missing)
            self.loop.history.add_answers(self.answers.close(opened, why))
