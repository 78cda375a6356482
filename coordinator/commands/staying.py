"""The box of a session whose model is done stays for a while: last turn → **staying** → the session's end.

The session itself stays for it, as one that waits for a message: so the box has its place, its owner and its node as
before, and goes with the first of them that goes. An open channel is what keeps it from being ended for idleness.
"""

import asyncio
import sys
from contextlib import suppress
from datetime import datetime, timedelta

from coordinator.cluster.channel import open_channel
from coordinator.commands.acting import actor
from coordinator.commands.reaching import find_box
from coordinator.commands.terminal import Display
from coordinator.ending import first
from coordinator.errors import NoBox, SandhogError
from coordinator.session.conversation import NextMessage
from coordinator.session.keeping import BoxStay
from coordinator.session.session_events import TurnEnded
from coordinator.settings import Settings
from coordinator.visible import visible_line

STAYS = "the box of {session} stays until {until}: sandhog shell {session}, also cp and port. Ctrl-C ends it."


class Staying:
    """Asks for a session's next message, and lets its box stay when there is none.

    Args:
        stay: For how long.
        settings: Of the command.
        stop: Ends it now.
        display: What else writes on the terminal.
        ask: Who is asked first; None for nobody.
    """

    def __init__(
        self, stay: BoxStay, settings: Settings, stop: asyncio.Event, display: Display, ask: NextMessage | None
    ) -> None:
        self.session = ""
        """Whose box it is; known before its first turn."""
        self._stay = stay
        self._settings = settings
        self._stop = stop
        self._display = display
        self._ask = ask

    async def next(self, turn: TurnEnded) -> str | None:
        """Return the next message; None when there is none, and the box need not stay any longer."""
        said = await self._ask(turn) if self._ask is not None else None
        if said is None and self._stay.is_for(turn.status) and not self._stop.is_set():
            try:
                why = await self._over()
            except SandhogError as exc:
                why = str(exc)
            if why:
                self._say(f"the box of {self.session} stays no longer: {visible_line(why, 500)}")
        return said

    async def _over(self) -> str:
        """Come back when the box stays no longer; "" where that was wanted.

        Raises:
            NoBox: there is none.
            ConfigError, ChannelOver: the cluster cannot be asked.
        """
        stay = timedelta(minutes=self._stay.minutes)
        async with find_box(self._settings, self.session) as found:
            if found is None:
                raise NoBox("there is none.")
            async with open_channel(found.client, found.node, self.session, purpose="keep", actor=actor()) as channel:
                until = f"{datetime.now().astimezone() + stay:%H:%M:%S}"
                self._say(STAYS.format(session=self.session, until=until))
                with suppress(TimeoutError):
                    async with asyncio.timeout(stay.total_seconds()):
                        return await first(asyncio.create_task(channel.over()), self._stop) or ""
        return ""

    def _say(self, words: str) -> None:
        # Nobody may be there to read it.
        with self._display.paused(), suppress(OSError):
            print(f"sandhog: {words}", file=sys.stderr)
