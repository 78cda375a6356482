"""Steer sessions that another coordinator has: sessions → **afar** → wishes (Redis) → that one's floor."""

from dataclasses import dataclass

from coordinator.cluster.parts import Cluster
from coordinator.cluster.wishes import Told, Wish
from coordinator.service.entries import Entry
from coordinator.service.records import read_record
from coordinator.service.refusals import Code, Refused
from coordinator.service.volume import on_volume

ANSWER_S = 3.0
"""How long the other coordinator is waited for; it looks a few times a second."""
HEARD_BY_COMMANDS = frozenset({"copy", "cancel_calls"})
"""What a command does that runs a session, too; it is about what runs now, and no later owner's matter."""


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
        owner = await self.owner_of(entry)
        if entry.record.wanted is None and wish.kind not in HEARD_BY_COMMANDS:
            await self._ask_command(session, owner, wish)
            return None
        if owner is None and (entry.record.wanted is None or wish.kind in HEARD_BY_COMMANDS):
            raise nobody(session)
        await self.cluster.wishes.send(session, wish, owner)
        told = await self.cluster.wishes.answer(wish, within_s) if owner is not None else None
        if told is not None and told.refusal:
            raise _refused(told)
        return told

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
        told = await self.cluster.wishes.answer(wish, within_s)
        if told is not None and told.refusal:
            raise _refused(told)
        return told

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


def _refused(told: Told) -> Refused:
    code = Code(told.refusal) if told.refusal in Code.__members__ else Code.CONFLICT
    return Refused(code, told.message, told.fix)
