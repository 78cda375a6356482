"""The workspace of a session that runs, copied for a fork between two of its steps: wish → **copying** → place."""

import asyncio
from dataclasses import dataclass

from coordinator.cluster.wishes import Told, Wish
from coordinator.errors import NoBox, SandhogError
from coordinator.session.events import Event
from coordinator.session.history import History
from coordinator.session.place import SessionPlace
from coordinator.session.step_events import ModelReplied, ReplyTaken

BETWEEN_S = 60.0
"""How long the end of a step is waited for."""
POLL_S = 0.1


@dataclass
class TakenStep:
    """An event sink that knows which step's reply came into the conversation last."""

    step: int = 0
    _said: int = 0

    def __call__(self, event: Event) -> None:
        """Take in what has just been kept."""
        if isinstance(event, ModelReplied):
            self._said = event.step
        elif isinstance(event, ReplyTaken):
            self.step = self._said


@dataclass(frozen=True)
class Copying:
    """Copies one session's workspace."""

    place: SessionPlace
    history: History
    running: asyncio.Lock
    """Held while its calls run."""
    taken: TakenStep

    async def copy_to(self, target: str) -> int:
        """Copy the workspace for the session `target`; return the last step whose work is in it.

        Raises:
            NoBox: it cannot be copied, there is none yet, or a step takes too long.
        """
        clock = asyncio.get_running_loop().time
        deadline = clock() + BETWEEN_S
        try:
            while True:
                async with asyncio.timeout_at(deadline):
                    await self.running.acquire()
                try:
                    # Calls that wait for their box, or whose answers are being collected, are under way as well, and so
                    # is a session that was taken over until its box stands again.
                    if not self.history.unanswered and not self.place.is_on_its_way:
                        step = self.taken.step
                        await self.place.copy_to(target)
                        return step
                finally:
                    self.running.release()
                async with asyncio.timeout_at(deadline):
                    await asyncio.sleep(POLL_S)
        except TimeoutError as exc:
            raise NoBox("The session is in the midst of a step that takes long. Ask again later.") from exc


async def copied(copies: Copying | None, wish: Wish) -> Told:
    """Copy a session's workspace as somebody wishes; None where the session has not begun."""
    try:
        if copies is None:
            raise NoBox("The session has not begun.")
        return Told(result={"step": await copies.copy_to(wish.to)})
    except SandhogError as exc:
        return Told(refusal="CONFLICT", message=str(exc))
