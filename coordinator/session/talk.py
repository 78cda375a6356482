"""A conversation with the model, as its loop is made from it: runner, subagents → **talk** → loop."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from coordinator.cluster.store import Store
from coordinator.session.events import EventSink
from coordinator.session.history import History
from coordinator.session.home_tools import HomeTool
from coordinator.session.limits import LiveLimits
from coordinator.session.loop import SessionLoop
from coordinator.session.session_events import SessionStarted
from coordinator.session.spend import Spend, WallClock, left, reached
from coordinator.session.transcript import Transcript
from tools.registry import Registry


@dataclass(frozen=True)
class Account:
    """What a conversation may use, and what it has used with its sub-agents."""

    limits: LiveLimits
    spend: Spend
    clock: WallClock

    def of_child(self, most_steps: int) -> "Account":
        """Return that of a new sub-agent: what is left of this one."""
        own = left(self.limits.now, self.spend, self.clock.elapsed_s)
        own = own.model_copy(update={"steps": min(most_steps, own.steps)})
        facts = self.spend.facts
        return Account(LiveLimits(own, facts=facts), Spend(facts), WallClock())

    @property
    def reached(self) -> str:
        """The limit of tokens, cost, calls or time that is reached; "" for none."""
        # Its own steps stand still while a sub-agent works.
        steps = self.spend.steps + 1
        found = reached(self.limits.now.model_copy(update={"steps": steps}), self.spend, self.clock.elapsed_s, 0)
        return found.reason if found else ""


@dataclass(frozen=True)
class Talk:
    """One conversation with the model, a session's own or a sub-agent's: what its loop is made from."""

    session: str
    registry: Registry
    history: History
    account: Account
    emit: EventSink
    sync: Callable[[], Awaitable[None]]
    """Makes everything emitted so far durable."""
    home_tools: Mapping[str, HomeTool]
    agent: str = ""
    """What a sub-agent is to do, in a few words; "" for the session itself."""
    waits_for_box: bool = False
    """The model is asked only once the box stands."""


@dataclass(frozen=True)
class Lent:
    """What a session lends to its sub-agents."""

    session_dir: Path
    started: SessionStarted
    """How it began itself."""
    system: Callable[[int, bool], str]
    """The system message for so many replies, of a session that only reads or not."""
    make: Callable[[Talk], SessionLoop]
    transcript: Callable[[Path, str, int], Transcript]
    """Begins the transcript in a directory, for an id and a generation."""
    store: Store
