"""How large a chaos run's cluster and load are."""

from dataclasses import dataclass

from tests.chaos.model import SLOW_OF_100, STEP_CALLS, STEPS


@dataclass(frozen=True)
class Shape:
    """How large a run's cluster and load are."""

    sessions: int = 6
    workers: int = 2
    coordinators: int = 2
    has_volume: bool = False
    """Whether the shared volume is a file system of its own, which can be full."""
    most_pause_s: float = 2.5
    """How long a part stands still at most."""
    slow_of_100: int = SLOW_OF_100
    """How many of a hundred commands take their time."""
    steps: tuple[int, int] = STEPS
    """How many replies with calls a session has, from and to."""
    step_calls: int = STEP_CALLS
    """How many calls a reply has."""
    think_s: float = 0.0
    """How long the model takes for a reply."""

    @property
    def most_gone(self) -> int:
        """How many nodes may be gone at the same time."""
        return max(1, self.workers // 2)
