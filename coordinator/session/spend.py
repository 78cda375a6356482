"""What a session has used, and which limit it has reached: limits, events → **spend** → loop.

Limits are looked at between two requests to the model, so that a session may go beyond one by a step; the number of
calls and the time are kept within a step, too.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from coordinator.endpoint.reply import Usage
from coordinator.session.call_events import ApprovalAnswered, ApprovalAsked
from coordinator.session.events import Event, innermost
from coordinator.session.limits import Limits
from coordinator.session.model_table import ModelFacts

GRACE_S = 60.0
"""How long the model may take to sum up after the session's time."""
OVERDRAFT = 0.1
"""The share of a limit of tokens or cost by which summing up may go beyond it."""


@dataclass
class Spend:
    """What a session has used so far."""

    facts: ModelFacts = field(default_factory=ModelFacts)
    """What is known of its model; without prices there is no cost."""
    steps: int = 0
    calls: int = 0
    usage: Usage = field(default_factory=Usage)
    cost_usd: float = 0.0
    """0 without prices."""

    @property
    def shown_usd(self) -> float | None:
        """What it cost; None where that is not known."""
        return self.cost_usd if self.facts.has_prices else None

    def add(self, usage: Usage) -> None:
        """Count one request of the session's model."""
        self.usage = self.usage.plus(usage)
        self.cost_usd += self.facts.cost_usd(usage)

    def add_child(self, usage: Usage, cost_usd: float, calls: int = 0) -> None:
        """Count what a sub-agent used."""
        self.usage = self.usage.plus(usage)
        self.cost_usd += cost_usd
        self.calls += calls


class WallClock:
    """The session's time; an event sink, since it stands still while a human is asked."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, *, used_s: float = 0.0) -> None:
        self._clock = clock
        self._used_s = used_s
        self._runs_since: float | None = None
        self._asked: set[tuple[str, int, int]] = set()

    def start(self) -> None:
        """Let it run; what it has counted so far stays."""
        if self._runs_since is None:
            self._runs_since = self._clock()

    def stop(self) -> None:
        """Let it stand still until it is started again."""
        self._used_s, self._runs_since = self.elapsed_s, None

    @property
    def elapsed_s(self) -> float:
        """Seconds that count."""
        return self._used_s + (0.0 if self._runs_since is None else self._clock() - self._runs_since)

    def __call__(self, event: Event) -> None:
        """Stand still while there are questions, also of a sub-agent's, that a human has time to answer."""
        child, event = innermost(event)
        match event:
            case ApprovalAsked(within_s=float()):
                self._asked.add((child, event.step, event.index))
                self.stop()
            case ApprovalAnswered() if (child, event.step, event.index) in self._asked:
                self._asked.discard((child, event.step, event.index))
                if not self._asked:
                    self.start()


@dataclass(frozen=True)
class Reached:
    """A limit that a session has reached."""

    reason: str
    """For people and programs: begins with `limit: ` and the limit's name."""
    may_sum_up: bool
    """One more request is not much beyond it."""


def reached(limits: Limits, spend: Spend, elapsed_s: float, next_tokens: int) -> Reached | None:
    """Return the first limit that leaves no room for another step; None while there is room.

    Args:
        limits: The session's.
        spend: What it has used.
        elapsed_s: Its time so far.
        next_tokens: Size of the next request.
    """
    usage = spend.usage
    next_usd = spend.facts.cost_usd(Usage(prompt_tokens=next_tokens))
    if spend.steps >= limits.steps:
        return Reached(f"limit: steps: {limits.steps} replies were used up", True)
    if limits.calls is not None and spend.calls >= limits.calls:
        return Reached(f"limit: calls: {spend.calls} of {limits.calls} were answered", True)
    for name, used, more, most in (
        ("tokens in", usage.prompt_tokens, next_tokens, limits.tokens_in),
        ("tokens out", usage.completion_tokens, 0, limits.tokens_out),
    ):
        if most is not None and used >= most:
            return Reached(f"limit: {name}: {used:,} of {most:,} were used", used + more <= most * (1 + OVERDRAFT))
    if limits.cost_usd is not None and spend.cost_usd >= limits.cost_usd:
        words = f"limit: cost: ${spend.cost_usd:.4f} of ${limits.cost_usd:.4f} were spent"
        return Reached(words, spend.cost_usd + next_usd <= limits.cost_usd * (1 + OVERDRAFT))
    if limits.time_s is not None and elapsed_s >= limits.time_s:
        words = f"limit: time: {elapsed_s:.0f} s of {limits.time_s:.0f} s are over"
        return Reached(words, elapsed_s < limits.time_s + GRACE_S)
    return None


def left(limits: Limits, spend: Spend, elapsed_s: float) -> Limits:
    """Return what a sub-agent may use of a session's limits at most; at least one of each."""

    def of(most: int | None, used: int) -> int | None:
        return None if most is None else max(1, most - used)

    return Limits(
        steps=limits.steps,
        calls=of(limits.calls, spend.calls),
        tokens_in=of(limits.tokens_in, spend.usage.prompt_tokens),
        tokens_out=of(limits.tokens_out, spend.usage.completion_tokens),
        cost_usd=None if limits.cost_usd is None else max(1e-6, limits.cost_usd - spend.cost_usd),
        time_s=None if limits.time_s is None else max(1.0, limits.time_s - elapsed_s),
    )
