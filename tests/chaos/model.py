"""The scripted model of the chaos suite: every call it asks for leaves a token of its own in the workspace's log."""

import random
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from coordinator.endpoint.scripted import ScriptedCall, Turn
from tests.chaos.harms import COMMAND_HARMS

SLOW_OF_100 = 12
"""So many of a hundred commands sleep, unless said otherwise: before or behind their line, so that faults meet them
half done."""
READING_OF_100 = 10
"""So many of a hundred steps read in between: groups, not only chains."""
SLEEP_S = 0.3
STEP_CALLS = 4
STEPS = (3, 30)
"""How many replies with calls a session has, from and to."""

FAILURES = (
    Turn(status=429, error="slow down", retry_after_s=0.2),
    Turn(status=503, error="no capacity"),
    Turn(status=500, error="not JSON <html>"),
    Turn(raw_sse=b"data: {garbage\n\n", is_cut=True),
)


class ChaosModel:
    """Says what the sessions' model says; one for all sessions, and called by many threads."""

    def __init__(
        self,
        seed: int,
        slow_of_100: int = SLOW_OF_100,
        steps: tuple[int, int] = STEPS,
        think_s: float = 0.0,
        step_calls: int = STEP_CALLS,
    ) -> None:
        self._random = random.Random(seed)
        self._slow_of_100 = slow_of_100
        self._most_steps = steps
        self._think_s = think_s
        self._step_calls = step_calls
        self._lock = threading.Lock()
        self._calls = 0
        self._failing: deque[Turn | None] = deque()
        self._harmful: deque[str] = deque()
        self._steps: dict[str, int] = {}
        self.is_over = False
        """Every session is done with its next reply."""

    @property
    def calls(self) -> int:
        """Calls asked for so far."""
        return self._calls

    def fail(self, requests: int, rng: random.Random) -> None:
        """Let the next requests fail, each in its own way; one in five is a reply that breaks off half-way."""
        with self._lock:
            self._failing.extend(rng.choice((*FAILURES, None)) for _ in range(requests - len(self._failing)))

    def harm(self, kind: str) -> None:
        """Let the next command hurt itself."""
        with self._lock:
            self._harmful.append(kind)

    def __call__(self, messages: Sequence[Mapping[str, Any]]) -> Turn:
        """Return the next turn of the session whose messages these are."""
        project = next(str(message["content"]) for message in messages if message["role"] == "user")
        replies = sum(message["role"] == "assistant" for message in messages)
        with self._lock:
            cut = False
            if self._failing:
                failure = self._failing.popleft()
                if failure is not None:
                    return failure
                cut = True
            steps = self._steps.setdefault(project, self._random.randint(*self._most_steps))
            if self.is_over or replies >= steps:
                return Turn("done", is_cut=cut)
            return Turn(calls=tuple(self._step()), is_cut=cut, delay_s=self._think_s)

    def _step(self) -> list[ScriptedCall]:
        reading = 2 if self._random.randrange(100) < READING_OF_100 else 0
        # Of many calls half read: all of them wait for each other in one chain otherwise.
        reading = max(reading, (self._step_calls - STEP_CALLS) // 2)
        calls = [self._bash() for _ in range(self._step_calls - reading)]
        return [*calls[:1], *(self._reading(number) for number in range(reading)), *calls[1:]]

    def _reading(self, number: int) -> ScriptedCall:
        self._calls += 1
        pattern = f"^t{self._calls - number}$"
        return (
            ScriptedCall("Grep", {"pattern": pattern, "path": "log"})
            if number % 2 == 0
            else ScriptedCall("Glob", {"pattern": f"*{number}*"})
        )

    def _bash(self) -> ScriptedCall:
        self._calls += 1
        token = f"t{self._calls}"
        parts = [f"echo {token} >> log", f"echo said {token}"]
        if self._harmful:
            harm = COMMAND_HARMS[self._harmful.popleft()]
            parts.insert(1, harm.part)
            limit = {} if harm.timeout_ms is None else {"timeout_ms": harm.timeout_ms}
            return ScriptedCall("Bash", {"command": "; ".join(parts), **limit})
        if self._random.randrange(100) < self._slow_of_100:
            parts.insert(self._random.randrange(2), f"sleep {SLEEP_S}")
        return ScriptedCall("Bash", {"command": "; ".join(parts)})
