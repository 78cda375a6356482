"""The scripted model of the scale measurements, as a process of its own: its CPU is not the coordinator's.

`python -m tests.bench.model_server SESSIONS STEPS CALLS [DELAY_S …]`: prints its address. Each session gets one step to
warm up; then all wait for each other, and after `STEPS` more steps each is done. Delays take turns, by step.
"""

import signal
import sys
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from coordinator.endpoint.scripted import ScriptedCall, ScriptedEndpoint, Turn

WAIT_S = 300.0


class Meeting:
    """Says what the model says; the second request of each session waits for those of all others."""

    def __init__(self, sessions: int, steps: int, calls: int, delays_s: Sequence[float]) -> None:
        self._sessions = sessions
        self._steps = steps
        self._calls = tuple(ScriptedCall("Bash", {"command": "true"}) for _ in range(calls))
        self._delays_s = delays_s or [0.0]
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
        return Turn(calls=calls, delay_s=self._delays_s[step % len(self._delays_s)])

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
    with ScriptedEndpoint(Meeting(sessions, steps, calls, [float(word) for word in sys.argv[4:]])) as endpoint:
        endpoint.requests = deque(maxlen=1)
        endpoint.headers = deque(maxlen=1)
        print(endpoint.base_url, flush=True)
        ended.wait()


if __name__ == "__main__":
    main()
