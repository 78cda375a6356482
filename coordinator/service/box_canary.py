"""A call that nobody needs, through queue, worker and a box, again and again: serve → **box canary** → readyz."""

import asyncio
import contextlib
import logging
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from coordinator.cluster.parts import Cluster
from coordinator.ending import end
from coordinator.errors import SandhogError
from coordinator.mcp.served_box import Answer, ServedBox
from coordinator.session.approvals import Never
from coordinator.session.request import SessionRequest
from coordinator.session.workspace_choice import Chosen
from worker.contract.orders import Policy, WorkspaceMode

log = logging.getLogger(__name__)

PRINCIPAL = "canary"
LIMIT_S = 120.0
"""A call that has not come back by then has failed."""
WORD = "chirp"


class BoxCanary:
    """Makes the calls. Use `async with`; runs one task of its own.

    Args:
        cluster: Where they run.
        image: Of their box.
        every_s: Between the end of one and the beginning of the next.
        limit_s: How long one may take.
    """

    def __init__(
        self,
        cluster: Cluster,
        image: str,
        *,
        every_s: float,
        limit_s: float = LIMIT_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cluster = cluster
        self._image = image
        self._every_s = every_s
        self._limit_s = limit_s
        self._clock = clock
        self._ended_at: float | None = None
        self._task: asyncio.Task[None] | None = None
        self.problem: str | None = "no canary call has come back yet"
        """Why the last one failed; None when it came back."""
        self.took_s = 0.0
        """From its beginning to its answer."""

    @property
    def is_well(self) -> bool:
        """Whether the last one came back."""
        return self.problem is None

    @property
    def age_s(self) -> float:
        """Since the last one ended; 0 before the first did."""
        return 0.0 if self._ended_at is None else self._clock() - self._ended_at

    async def __aenter__(self) -> "BoxCanary":
        self._task = asyncio.create_task(self._keep(), name="canary")
        return self

    async def __aexit__(self, *exc: object) -> None:
        assert self._task is not None
        await end(self._task)

    async def _keep(self) -> None:
        while True:
            await self.call()
            await asyncio.sleep(self._every_s)

    async def call(self) -> None:
        """Make one call, and know afterwards whether it came back."""
        started = self._clock()
        try:
            async with asyncio.timeout(self._limit_s):
                answer = await self._answer()
            self.problem = None if WORD in answer.text else f"the call failed: {answer.error_message or answer.text}"
        except TimeoutError:
            self.problem = f"the call was not back after {self._limit_s:.0f} s"
        except (SandhogError, OSError) as exc:
            self.problem = str(exc)
        self.took_s, self._ended_at = self._clock() - started, self._clock()
        if self.problem is not None:
            log.error("the canary call failed", extra={"error": self.problem})

    async def _answer(self) -> Answer:
        places = self._cluster.state_dir / "canary"
        await asyncio.to_thread(places.mkdir, exist_ok=True)
        workspace = Path(await asyncio.to_thread(tempfile.mkdtemp, dir=places))
        chosen = Chosen(workspace, WorkspaceMode.COPY, "it is empty", Policy.BOXED, as_root=False)
        request = SessionRequest(WORD, chosen, self._image, principal=PRINCIPAL)
        box = ServedBox(request, cluster=self._cluster, approver=Never())
        try:
            return await box.start("Bash", {"command": f"echo {WORD}"}, asyncio.Event())
        finally:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._limit_s):
                    await box.close(why="canary")
            for directory in (self._cluster.state_dir / "sessions" / box.session_id, workspace):
                await asyncio.to_thread(shutil.rmtree, directory, ignore_errors=True)
