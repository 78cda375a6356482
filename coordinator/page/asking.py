"""What waits for a person's yes: Redis → **asking** → list of approvals, session's page, count in the header."""

import asyncio
from collections import OrderedDict
from dataclasses import dataclass

from coordinator.cluster.approval_requests import Requests, Standing
from coordinator.service.approving import ApprovalView, view_of
from coordinator.service.entries import Entry, Index
from coordinator.service.principals import Principal
from worker.contract.approvals import is_within, split_asker

MOST_ASKS = 100
"""So many are on one page, the oldest."""
MAX_OWNERS = 10_000


@dataclass(frozen=True)
class Ask:
    """One call that waits, and who asks."""

    view: ApprovalView
    session: str
    principal: str
    asked_s: float
    deadline_s: float

    @property
    def key(self) -> str:
        """Tells it from all others, also from one that was asked at the same place before."""
        return f"{self.session}.{self.view.name}.{self.asked_s:.3f}"


class Asking:
    """Looks up what waits, in sessions of this volume.

    Args:
        requests: What is asked on this Redis.
        index: The sessions.
    """

    def __init__(self, requests: Requests, index: Index) -> None:
        self._requests = requests
        self._index = index
        self._owners: OrderedDict[str, str] = OrderedDict()

    async def count(self, principal: Principal) -> int:
        """Return how many calls wait in sessions that a principal may know of.

        Raises:
            RedisError: Redis does not answer.
        """
        return len(await self._names(principal))

    async def every(self, principal: Principal) -> tuple[list[Ask], int]:
        """Return the calls that wait longest in sessions that a principal may know of, and how many wait in all.

        Raises:
            RedisError: Redis does not answer.
        """
        names = await self._names(principal)
        found = sorted(await self._requests.standing(names), key=lambda one: (one.asked_s, one.deadline_s))
        return [await self._ask(one) for one in found[:MOST_ASKS]], len(found)

    async def of(self, entry: Entry) -> list[Ask]:
        """Return what a session and its sub-agents ask, the oldest first.

        Raises:
            RedisError: Redis does not answer.
        """
        names = [(asker, name) for asker, name in await self._requests.names() if is_within(asker, entry.session_id)]
        found = sorted(await self._requests.standing(names), key=lambda one: (one.asked_s, one.deadline_s))
        return [await self._ask(one) for one in found]

    async def _names(self, principal: Principal) -> list[tuple[str, str]]:
        found = []
        for asker, name in await self._requests.names():
            owner = await self._owner(split_asker(asker)[0])
            if owner is not None and principal.sees(owner):
                found.append((asker, name))
        return found

    async def _owner(self, session_id: str) -> str | None:
        """Return whose session it is; None for one that is not on this volume."""
        if session_id not in self._owners:
            entry = await asyncio.to_thread(self._index.get, session_id)
            if entry is None:
                return None
            self._owners[session_id] = entry.record.principal
            while len(self._owners) > MAX_OWNERS:
                self._owners.popitem(last=False)
        return self._owners[session_id]

    async def _ask(self, one: Standing) -> Ask:
        session, _ = split_asker(one.request.session)
        owner = await self._owner(session) or ""
        return Ask(view_of(one.request), session, owner, one.asked_s, one.deadline_s)
