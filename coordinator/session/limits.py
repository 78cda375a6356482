"""Limits: the most that one session may use: settings, flags, API → **limits** → spend, loop."""

import asyncio
from collections.abc import Callable
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from coordinator.errors import ConfigError
from coordinator.session.model_table import ModelFacts

DEFAULT_STEPS = 50

Count = Annotated[int, Field(ge=1, le=10**15)]
Amount = Annotated[float, Field(gt=0, le=10**12)]


class Limits(BaseModel):
    """What a session may use at most, its sub-agents included; None is no limit."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, defer_build=True)

    steps: Count = DEFAULT_STEPS
    """Replies of the model, but for one that sums up."""
    calls: Count | None = None
    """Tool calls answered."""
    tokens_in: Count | None = None
    """Tokens sent to the model, in all requests together."""
    tokens_out: Count | None = None
    """Tokens that the model made."""
    cost_usd: Amount | None = None
    """US dollars, by the prices of the model table."""
    time_s: Amount | None = None
    """Seconds from the first request on; while a human is asked, the clock stands still."""


class LiveLimits:
    """A session's limits, which may change while it runs; for the session's event loop only.

    Args:
        limits: Those it begins with.
        cut: What its principal's ceiling leaves of them.
        facts: What is known of its model.

    Raises:
        ConfigError: They cannot be kept: the cost is limited and the model's prices are not known.
    """

    def __init__(
        self, limits: Limits, *, cut: Callable[[Limits], Limits] = lambda limits: limits, facts: ModelFacts
    ) -> None:
        self._cut = cut
        self._facts = facts
        self.changed = asyncio.Event()
        """Set by each change; who waits for it clears it."""
        self.keep: Callable[[], None] = lambda: None
        """Keeps them at once where a later owner finds them; else that is done before the next step."""
        self.now = self._granted(limits)

    def change(self, limits: Limits) -> Limits:
        """Put others in their place from the next step on, and return what was granted of them.

        Raises:
            ConfigError: They cannot be kept.
        """
        self.now = self._granted(limits)
        self.changed.set()
        return self.now

    def _granted(self, limits: Limits) -> Limits:
        granted = self._cut(limits)
        if granted.cost_usd is not None and not self._facts.has_prices:
            raise ConfigError(
                "The session's cost is limited, but the prices of its model are not known. Put them into the file "
                "that SANDHOG_MODELS_FILE names (docs/limits-and-context.md), or leave the cost unlimited."
            )
        return granted
