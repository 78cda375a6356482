"""What the shell offers for an argument: sessions, nodes, waiting calls. Asked while somebody types, so it never fails.

What looks further than the volume is imported by the function that needs it.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from coordinator.errors import SandhogError
from coordinator.settings import read_settings

if TYPE_CHECKING:
    from redis.asyncio import Redis

LONGEST_S = 1.5
"""So long Redis is waited for; somebody sits there."""
MOST_SESSIONS = 100


def session_ids(incomplete: str) -> list[str]:
    """Return the newest sessions of the volume that begin so, and `last`."""
    try:
        found = [path.name for path in (read_settings().state_dir / "sessions").iterdir()]
    except (OSError, SandhogError):
        found = []
    fitting = sorted((name for name in found if name.startswith(incomplete)), reverse=True)
    return [*fitting[:MOST_SESSIONS], "last"]


def node_names() -> list[str]:
    """Return the names of all nodes that are known."""
    from coordinator.cluster.store import Store

    async def ask(client: "Redis") -> Sequence[str]:
        return [view.life.node for view in await Store(client).nodes()]

    return _asked(ask)


def waiting_calls(ctx: typer.Context) -> list[str]:
    """Return the calls that wait for an answer, those of the session that was typed."""
    from coordinator.cluster.approval_requests import Requests
    from worker.contract.approvals import name_below

    session = ctx.params.get("session_id")

    async def ask(client: "Redis") -> Sequence[str]:
        return [name_below(session or one.session, one) for one in await Requests(client).waiting(session)]

    return _asked(ask)


def waiting_sessions() -> list[str]:
    """Return the sessions that wait for an answer."""
    from coordinator.cluster.approval_requests import Requests

    async def ask(client: "Redis") -> Sequence[str]:
        return [request.session for request in await Requests(client).waiting()]

    return sorted(set(_asked(ask)))


def _asked(ask: "Callable[[Redis], Awaitable[Sequence[str]]]") -> list[str]:
    from redis.exceptions import RedisError

    from coordinator.commands.elsewhere import everywhere

    async def within() -> list[Sequence[str]]:
        settings = read_settings()
        async with asyncio.timeout(LONGEST_S):
            return await everywhere(settings.redis_url, settings.state_dir, ask)

    try:
        return [name for names in asyncio.run(within()) for name in names]
    except (SandhogError, RedisError, OSError, ValueError):
        # A timeout is an OSError, what cannot be read a ValueError.
        return []


SessionId = Annotated[
    str,
    typer.Argument(help="The session; the beginning of its id is enough, or `last`.", autocompletion=session_ids),
]
