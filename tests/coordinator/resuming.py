"""A node that lives in the test: calls have one outcome each, and what was started can be asked for."""

import asyncio
import shutil
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from coordinator.cluster.approval_requests import Requests
from coordinator.cluster.counts import Counts
from coordinator.cluster.execute import Executor, Job, OnOutcome, Regain
from coordinator.cluster.outcomes import did_not_run
from coordinator.cluster.ownership import Ownership
from coordinator.cluster.parts import Cluster
from coordinator.cluster.patience import patiently
from coordinator.cluster.placement import Placement
from coordinator.cluster.store import Store, connect
from coordinator.cluster.turns import Turns
from coordinator.cluster.wishes import Wishes
from coordinator.session.breakers import Breakers
from coordinator.session.partition import Travel
from tools.registry import builtin_registry
from worker.contract.orders import (
    BoxOrder,
    CallKey,
    CallOrder,
    CallOutcome,
    Fate,
    FinishOutcome,
    NodeLife,
    PrepareOutcome,
)


@dataclass
class Table(Executor):
    """Runs every order by noting it, and knows what it has run."""

    run_id = ""
    ran: Counter[str] = field(default_factory=Counter)
    """How often, by step and index."""
    known: set[str] = field(default_factory=set)
    """Steps and indexes of what an earlier owner started."""
    recovered: dict[str, bool] = field(default_factory=dict)
    """What was asked for, and whether it may have been sent, by step and index."""
    claimed_in: dict[str, str] = field(default_factory=dict)
    """In which life of Redis each of these would have a claim that proves something; "" for none."""
    given_up: list[CallKey] = field(default_factory=list)

    async def run(
        self,
        travel: Travel,
        jobs: Sequence[Job],
        node: NodeLife,
        cancelled: asyncio.Event,
        on_outcome: OnOutcome,
        unwanted: asyncio.Event | None = None,
        regain: Regain | None = None,
    ) -> None:
        for job in jobs:
            key = job.order.key
            self.ran[_place(key)] += 1
            await on_outcome(_outcome(key, f"ran {_place(key)}"))

    async def recover(
        self, order: CallOrder, timeout_s: float, *, run_id: str, has_begun: bool, **named: asyncio.Event
    ) -> CallOutcome:
        self.recovered[_place(order.key)] = has_begun
        self.claimed_in[_place(order.key)] = run_id
        if _place(order.key) in self.known:
            return _outcome(order.key, f"collected {_place(order.key)}")
        return did_not_run([order], "nobody started it")[0]

    async def give_up(self, node: str, call_keys: Sequence[CallKey], cancelled: asyncio.Event) -> None:
        self.given_up.extend(call_keys)


class OneNode(Placement):
    """Has room for everybody."""

    def __init__(self) -> None:
        self.finished: list[tuple[BoxOrder, bool]] = []

    async def place(self, session: str, home: str | None = None, *more: Any, **named: Any) -> NodeLife:
        return NodeLife(node="n1", incarnation="n1-1", places=9, lanes=9)

    async def prepare(self, box: BoxOrder, node: NodeLife, *more: Any, **named: Any) -> PrepareOutcome:
        if box.workspace_mode == "copy":
            (Path(box.session_dir) / "work").mkdir(exist_ok=True)
        return PrepareOutcome(session=box.session)

    async def finish(
        self, box: BoxOrder, node: NodeLife, *, keep_workspace: bool = False, **named: Any
    ) -> FinishOutcome:
        self.finished.append((box, keep_workspace))
        if not keep_workspace:
            shutil.rmtree(Path(box.session_dir) / "work", ignore_errors=True)
        return FinishOutcome(session=box.session)

    async def outlasts(
        self, node: str, stop: asyncio.Event, on_wait: Callable[[str], None] = lambda words: None
    ) -> bool:
        return True

    async def until_answered(self, ask: Callable[[], Awaitable[Any]], away_s: float) -> Any:
        return await patiently(ask, asyncio.Event(), away_s)

    async def withdraw(self, session: str, node: str | None = None, *, away_s: float) -> bool:
        return True


@asynccontextmanager
async def in_memory_cluster(redis_url: str, state_dir: Path, coordinator: str = "me") -> AsyncIterator[Cluster]:
    """Yield a cluster whose one node is in this process."""
    client = connect(redis_url)
    store = Store(client)
    async with Ownership(store, coordinator) as ownership:
        yield Cluster(
            store=store,
            executor=Table(),
            placement=OneNode(),
            registry=builtin_registry(),
            state_dir=state_dir,
            requests=Requests(client),
            breakers=Breakers(client),
            ownership=ownership,
            wishes=Wishes(client),
            turns=Turns(client),
            counts=Counts(client),
        )
    await client.aclose()


def _place(key: CallKey) -> str:
    return f"{key.step}.{key.index}"


def _outcome(key: CallKey, text: str) -> CallOutcome:
    return CallOutcome(key=key, fate=Fate.RAN, result={"status": "success", "text": text})
