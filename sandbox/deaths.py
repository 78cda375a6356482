"""Why containers ended, from the engine's events: an ended box is removed at once, so it cannot be asked later."""

import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sandbox.engine_events import EngineEvents
from sandbox.errors import LossReason

RUNTIME_LABEL = "sandhog.runtime"
"""On each container; the engine's events carry its labels."""
REMEMBERED = 1000
OOM_WINDOW_S = 1.0
"""By the engine's clock; a command that the kernel took for its memory longer before has nothing to do with an end."""
WAIT_S = 1.0
DEAD_MAN_EXIT = 142
SIGKILL_EXIT = 137


@dataclass(frozen=True)
class _Death:
    """How a container ended."""

    at: float | None
    """Seconds, by the engine's clock; None where no event told of it."""
    exit_code: str
    signal: str | None
    """What somebody ended it with by the engine; None for nobody."""


class Deaths:
    """Listens to the events of one node's containers in a thread of its own."""

    def __init__(self, subscribe: Callable[[], Any], on_hung: Callable[[str], None] = lambda _: None) -> None:
        """`subscribe` opens the stream of events: an iterator with `close`; it may raise anything.

        `on_hung` is told of a container that will never answer again, in a thread of its own.
        """
        self._on_hung = on_hung
        self._changed = threading.Condition()
        self._deaths: OrderedDict[str, _Death] = OrderedDict()
        self._ooms: OrderedDict[str, float] = OrderedDict()
        self._kills: OrderedDict[str, str] = OrderedDict()
        self._hung: OrderedDict[str, None] = OrderedDict()
        # What is missed while there is no stream is only a less exact reason.
        self._events = EngineEvents(subscribe, self._take)

    def reason(
        self, name: str, wait_s: float = WAIT_S, *, had_oom: bool = False, exit_code: int | None = None
    ) -> tuple[LossReason, str]:
        """Why the container ended; waits a moment for the event.

        Args:
            name: The container.
            wait_s: How long its event is waited for.
            had_oom: The engine says that the kernel took something in it for its memory, at some time.
            exit_code: With which it ended, as the engine says; None where that does not know the container any more.
        """
        with self._changed:
            self._changed.wait_for(lambda: name in self._deaths, wait_s)
            death = self._deaths.get(name)
            if death is None and exit_code is None:
                return LossReason.ENDED, "the container is gone"
            # Events are missed while the engine restarts, or this node does.
            death = death or _Death(None, str(exit_code), self._kills.get(name))
            return self._explain(name, death, had_oom)

    def is_known(self, name: str) -> bool:
        """Whether the container is known to have ended."""
        return name in self._deaths

    def close(self) -> None:
        """Stop listening."""
        self._events.close()

    def _take(self, event: dict[str, Any]) -> None:
        attributes = event.get("Actor", {}).get("Attributes", {})
        name, action = attributes.get("name", ""), event.get("Action", "")
        with self._changed:
            if action == "oom":
                _remember(self._ooms, name, event.get("timeNano", 0) / 1e9)
                if attributes.get(RUNTIME_LABEL, "").startswith("runsc") and name not in self._hung:
                    # The kernel killed a part of gVisor, which never answers again.
                    _remember(self._hung, name, None)
                    threading.Thread(target=self._on_hung, args=(name,), name="box-hung", daemon=True).start()
            elif action == "kill":
                _remember(self._kills, name, attributes.get("signal", ""))
            elif action == "die":
                at, exit_code = event.get("timeNano", 0) / 1e9, attributes.get("exitCode", "")
                _remember(self._deaths, name, _Death(at, exit_code, self._kills.get(name)))
                self._changed.notify_all()

    def _explain(self, name: str, death: _Death, had_oom: bool) -> tuple[LossReason, str]:
        if name in self._hung:
            return LossReason.OOM, "the box's memory limit ended it"
        if death.signal is not None:
            return LossReason.KILLED, f"the container was killed (signal {death.signal})"
        if death.exit_code == str(SIGKILL_EXIT):
            # Where no event told of it, it was missed, or is late: then it was this end.
            oom_at = self._ooms.get(name)
            if had_oom if oom_at is None or death.at is None else abs(death.at - oom_at) < OOM_WINDOW_S:
                return LossReason.OOM, "the box's memory limit ended its guest"
            return LossReason.KILLED, "the main process of the container was killed"
        if death.exit_code == str(DEAD_MAN_EXIT):
            return LossReason.ENDED, "no heartbeat reached the box for too long"
        return LossReason.ENDED, f"the container ended with exit code {death.exit_code}"


def _remember(table: "OrderedDict[str, Any]", name: str, value: Any) -> None:
    table[name] = value
    table.move_to_end(name)
    while len(table) > REMEMBERED:
        table.popitem(last=False)
