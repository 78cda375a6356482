"""Steer sessions that another coordinator has: sessions → **afar** → wishes (Redis) → that one's floor."""

import asyncio
from dataclasses import dataclass

from coordinator.cluster.parts import Cluster
from coordinator.cluster.wishes import Told, Wish
from coordinator.service.entries import Entry
from coordinator.service.records import read_record
from coordinator.service.refusals import Code, Refused
from coordinator.service.volume import on_volume

ANSWER_S = 3.0
"""How long the other coordinator is waited for; it looks a few times a second."""
TAKEOVER_S = 20.0
"""How long somebody is waited for who goes on with a session whose owner has died: it takes a few seconds."""
AGAIN_S = 0.2
"""The pause before it is looked anew who has a session."""
ABOUT_NOW = frozenset({"copy", "cancel_calls"})
"""What is about a session at work, and can be told of only by whoever runs it. A command that runs one does it, too."""


@dataclass(frozen=True)
class Afar:
    """Asks whoever has a session, in place of this process."""

    cluster: Cluster

    async def ask(self, entry: Entry, wish: Wish, within_s: float = ANSWER_S) -> Told | None:
        """Return what became of a wish; None where its owner has not said so yet, or died: then the next one takes it.

        Raises:
            Refused: the owner says no, or nobody will ever have the session here.
            RedisError: Redis does not answer.
        """
        session = entry.session_id
        if wish.kind in ABOUT_NOW:
            return await self._ask_at_work(entry, wish, within_s)
        owner = await self.owner_of(entry)
        if entry.record.wanted is None:
            await self._ask_command(session, owner, wish)
            return None
        await self.cluster.wishes.send(session, wish, owner)
        return _granted(await self.cluster.wishes.answer(wish, within_s) if owner is not None else None)

    async def _ask_at_work(self, entry: Entry, wish: Wish, within_s: float) -> Told | None:
        """Return what whoever runs a session says; where its owner is dead, or dies, whoever takes it over then.

        Raises:
            Refused: it says no; or nobody has taken the session over in time.
        """
        session, clock = entry.session_id, asyncio.get_running_loop().time
        until = clock() + TAKEOVER_S
        while True:
            owner = await self.owner_of(entry)
            if owner is None:
                await asyncio.to_thread(entry.refresh)
                if entry.facts.has_ended:
                    raise Refused(Code.CONFLICT, f"Session {session} has just ended.", "Ask again.", retry_after_s=1)
                if entry.record.wanted is None or clock() > until:
                    raise nobody(session)
                await asyncio.sleep(AGAIN_S)
                continue
            await self.cluster.wishes.send(session, wish, owner)
            deadline = clock() + within_s
            while (left_s := deadline - clock()) > 0 and await self.owner_of(entry) == owner:
                told = await self.cluster.wishes.answer(wish, min(left_s, ANSWER_S))
                if told is not None:
                    return _granted(told)
            # A copy that nobody waits for is made by none; calls are ended by whoever goes on with the session.
            if left_s <= 0 and wish.kind == "cancel_calls":
                return None
            await self.cluster.wishes.take_back(session, wish)
            if left_s <= 0:
                return None
            until = clock() + TAKEOVER_S

    async def ask_owner(self, entry: Entry, wish: Wish, within_s: float) -> Told | None:
        """Return what the present owner of a session says to a wish that is for no later one; None where it does not.

        Raises:
            Refused: it says no.
            RedisError: Redis does not answer.
        """
        owner = await self.owner_of(entry)
        if owner is None:
            return None
        wish = wish.model_copy(update={"only": owner})
        await self.cluster.wishes.send(entry.session_id, wish, owner)
        return _granted(await self.cluster.wishes.answer(wish, within_s))

    async def owner_of(self, entry: Entry) -> str | None:
        """Return the live coordinator that runs a session, or in whose line it waits; None where there is none now.

        Raises:
            RedisError: Redis does not answer.
        """
        record = await on_volume(read_record, entry.directory)
        return await self.cluster.wishes.owner_of(entry.session_id, record.coordinator)

    async def _ask_command(self, session: str, owner: str | None, wish: Wish) -> None:
        """Ask a command that runs a session: it can be cancelled, and does not listen to more."""
        if wish.kind != "cancel":
            words = f"Session {session} belongs to a command on a terminal, which does not listen to this server."
            raise Refused(Code.CONFLICT, words, "Speak to it there; from here it can be watched and cancelled.")
        if owner is None or not await self.cluster.store.ask_cancel(session):
            raise nobody(session)


def nobody(session: str) -> Refused:
    """Return the answer for a session that has not ended and that nobody runs now, as far as Redis knows."""
    words = f"Session {session} is run by no coordinator of this cluster now."
    fix = "Ask again in a moment: one whose server has died goes on here. `sandhog resume` goes on with others."
    return Refused(Code.UNAVAILABLE, words, fix, retry_after_s=3)


def _granted(told: Told | None) -> Told | None:
    """Return what an owner told.

    Raises:
        Refused: it says no.
    """
    if told is None or not told.refusal:
        return told
    code = Code(told.refusal) if told.refusal in Code.__members__ else Code.CONFLICT
    raise Refused(code, told.message, told.fix)
