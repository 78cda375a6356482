"""Sessions that a command runs are copied for forks, and calls of them cancelled: wish → **forkable** → session."""

import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

from coordinator.cluster.hearing import Hearing
from coordinator.cluster.parts import Cluster
from coordinator.cluster.wishes import Told, Wish
from coordinator.session.cancelling import calls_cancelled
from coordinator.session.copying import copied
from coordinator.session.runner import SessionRunner


@contextlib.asynccontextmanager
async def forkable(cluster: Cluster, running: Callable[[str], SessionRunner | None]) -> AsyncIterator[None]:
    """Let workspaces of a command's sessions be copied and their calls cancelled within the block, and nothing else.

    Args:
        cluster: What they run on.
        running: Returns whoever runs a session here.
    """

    def grant(session: str, wish: Wish) -> Told | Coroutine[Any, Any, Told]:
        runner = running(session)
        if runner is None:
            return Told(refusal="CONFLICT", message="It has just ended. Ask again.")
        if wish.kind == "copy":
            return copied(runner.copies, wish)
        if wish.kind == "cancel_calls":
            return calls_cancelled(runner.steps, wish)
        return Told(refusal="CONFLICT", message="It is run by a command, which listens to its terminal.")

    hearing = Hearing(cluster.wishes, grant)
    cluster.ownership.on_wishes = hearing.look
    try:
        yield
    finally:
        await hearing.close()
