"""The scripted model of the scale measurements, as a process of its own: its CPU is not the coordinator's.

`python -m tests.bench.model_server SESSIONS STEPS CALLS [LEAST_S MOST_S]`: prints its address. Each session, whose
prompt is its number, gets one step to warm up; then all wait for each other, and after `STEPS` more steps each is done.
With delays each reply takes a time of its own between these two, see `delay_s`.
"""

import signal
import sys
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from coordinator.endpoint.scripted import ScriptedCall, ScriptedEndpoint, Turn

WAIT_S = 300.0
GOLDEN = 0.618034
"""Multiples of it, modulo one, are spread evenly, however many there are."""


def delay_s(bounds_s: tuple[float, float], session: int, step: int) -> float:
    """Return how long the model takes for a step: sessions that began at once must not ask at once ever after.

    Args:
        bounds_s: The least and the most.
        session: The session's number.
        step: From 0.
    """
    least_s, most_s = bounds_s
    return least_s + (most_s - least_s) * (GOLDEN * (session + step * step) % 1)


class Meeting:
    """Says what the model says; the second request of each session waits for those of all others."""

    def __init__(self, sessions: int, steps: int, calls: int, bounds_s: tuple[float, float]) -> None:
        self._sessions = sessions
        self._steps = steps
        self._calls = tuple(ScriptedCall("Bash", {"command": "true"}) for _ in range(calls))
        self._bounds_s = bounds_s
        self._came = 0
        self._guard = threading.Lock()
        self._all_came = threading.Event()

    def __call__(self, messages: Sequence[Mapping[str, Any]]) -> Turn:
        """Return the next turn of the session whose messages these are."""
        # A compacted conversation has fewer replies than were made: those made are told by the ids.
        step = self._step(messages)
        if step == 1:
            with self._guard:
                self._came += 1
                if self._came >= self._sessions:
                    self._all_came.set()
            self._all_came.wait(WAIT_S)
        if step > self._steps:
            return Turn("done")
        calls = tuple(
            ScriptedCall(call.name, call.arguments, id=f"c-{step}-{at}") for at, call in enumerate(self._calls)
        )
        return Turn(calls=calls, delay_s=self._delay_s(messages, step))

    def _delay_s(self, messages: Sequence[Mapping[str, Any]], step: int) -> float:
        # What a compacted conversation begins with is no number, and its model takes no time.
        return delay_s(self._bounds_s, int(messages[1]["content"]), step) if self._bounds_s[1] else 0.0

    @staticmethod
    def _step(messages: Sequence[Mapping[str, Any]]) -> int:
        for message in reversed(messages):
            if message["role"] == "tool":
                return int(str(message["tool_call_id"]).split("-")[1]) + 1
        return 0


def main() -> None:
    """Serve until a signal comes."""
    sessions, steps, calls = (int(word) for word in sys.argv[1:4])
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    least_s, most_s = (float(word) for word in sys.argv[4:] or ("0", "0"))
    with ScriptedEndpoint(Meeting(sessions, steps, calls, (least_s, most_s))) as endpoint:
        endpoint.requests = deque(maxlen=1)
        endpoint.headers = deque(maxlen=1)
        print(endpoint.base_url, flush=True)
        ended.wait()


if __name__ == "__main__":
    main()
