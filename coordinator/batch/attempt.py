"""One session for one run of a task: request → **attempt** → result."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from coordinator.batch.clients import Clients
from coordinator.batch.ran_on import RanOn
from coordinator.cluster.parts import Cluster
from coordinator.ending import end
from coordinator.session.approvals import Approver
from coordinator.session.events import Event
from coordinator.session.loop import Ending
from coordinator.session.request import SessionRequest
from coordinator.session.result import SessionResult
from coordinator.session.runner import SessionRunner
from coordinator.session.session_events import SessionPlaced

OnImage = Callable[[str], None]

HURRY_S = 3.0
"""How long a session that is hurried may still take to end its box."""


class Stop:
    """Ends all sessions of a batch: first as soon as their calls are answered, then at once."""

    def __init__(self) -> None:
        self.soon = asyncio.Event()
        self.now = asyncio.Event()


@dataclass(frozen=True)
class Attempts:
    """Runs sessions with what they share."""

    cluster: Cluster
    clients: Clients
    approver: Approver
    secrets: Sequence[str]
    stop: Stop
    ran: RanOn = field(default_factory=RanOn)
    """What their boxes ran on."""
    running: dict[str, SessionRunner] = field(default_factory=dict)
    """Those that run now, by session."""

    async def attempt(self, request: SessionRequest, model: str | None, on_image: OnImage) -> SessionResult:
        """Return what the session came to; `on_image` is told the digest of its box's image.

        Raises:
            SandhogError: it could not be begun.
        """

        def note(event: Event) -> None:
            if isinstance(event, SessionPlaced):
                self.ran.note(request.image, event)
                on_image(event.image_id)

        runner = SessionRunner(
            request,
            cluster=self.cluster,
            model=await self.clients.client(model),
            approver=self.approver,
            sinks=[note],
            secrets=[*self.secrets, *request.parameters.secrets],
        )
        self.running[runner.session_id] = runner
        session = asyncio.create_task(runner.run(self.stop.soon), name=f"session {runner.session_id}")
        hurried = asyncio.create_task(self.stop.now.wait())
        try:
            await asyncio.wait({session, hurried}, return_when=asyncio.FIRST_COMPLETED)
            if not session.done():
                runner.abandon(Ending("cancelled", "cancelled twice"), finish_s=HURRY_S)
            return await session
        finally:
            await end(hurried)
            del self.running[runner.session_id]
