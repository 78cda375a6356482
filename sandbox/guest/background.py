"""Background commands: those that were to be, and what foreground commands left running.

Their pipes are drained into a ring on the box's disk until all their processes are gone; they are ended by `kill`, by
the cancel of their call, or with the box.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable

from sandbox.guest.commands import GIVE_UP_S, GRACE_S, Command
from sandbox.guest.loop import Loop
from sandbox.guest.processes import kill_marked, marked_processes, signal_marked
from sandbox.guest.refusal import Refusal
from sandbox.guest.scratch import Ring
from sandbox.wire import MAX_KEEP_BYTES, Frame, RefusalCode

TYPE_CHECKING = False
if TYPE_CHECKING:
    # The typing module alone would be a tenth of the guest's memory.
    from typing import Any

    from sandbox.guest.calls import Answer

RING_BYTES = 16 * 1024 * 1024
MAX_KNOWN = 64
"""Background commands of a box, ended ones too; of more the oldest ended are forgotten."""
LOOK_S = 0.02
"""How often a tree that is being ended is looked for."""
SHOWN_BYTES = 200
SHOWN_PIDS = 100


class Background:
    """One background command: alive, or over with its output still kept."""

    def __init__(self, name: str, command: Command, ring: Ring) -> None:
        self.name = name
        self.command = command
        self.ring = ring
        self.is_over = False
        self.was_killed = False
        self.waiters: list[int] = []
        """Requests that wait for its end."""
        self.kill_again_at = 0.0
        self.give_up_at = 0.0
        command.output.divert(self.ring)

    def settle(self, found: dict[int, list[int]]) -> None:
        """Take note that it is over when none of its processes is among the living ones."""
        if self.is_over or self.command.ended is None or self.command.marker in found:
            return
        self.is_over = True
        self.command.output.drain()
        self.command.output.close()

    def state(self, found: dict[int, list[int]]) -> dict[str, Any]:
        """What the host hears of it."""
        ended = self.command.ended
        return {
            "name": self.name,
            "session": self.command.call.mark.session,
            "command": self.command.text[:SHOWN_BYTES].decode("utf-8", "replace"),
            "running": not self.is_over,
            "leftover": not self.command.stays,
            "failed": bool(ended is not None and ended.what),
            "killed": self.was_killed,
            "pids": [] if self.is_over else found.get(self.command.marker, [])[:SHOWN_PIDS],
            "first": self.ring.first,
            "total": self.ring.total,
            "age_ms": (time.monotonic() - self.command.started) * 1000,
            **self.command.end(),
        }


class Backgrounds:
    """All background commands of the box, in the order of their start."""

    def __init__(self, loop: Loop, reply: Callable[[int, Answer], None]) -> None:
        self._loop = loop
        self._reply = reply
        self._all: dict[str, Background] = {}
        self._last = 0

    @property
    def has_living(self) -> bool:
        """True while one is not known to be over."""
        return any(not one.is_over for one in self._all.values())

    @property
    def is_full(self) -> bool:
        """True when no further command may be started in the background."""
        return sum(not one.is_over for one in self._all.values()) >= MAX_KNOWN

    def add(self, command: Command) -> str:
        """The name of the command, which is a background command from now on."""
        self._last += 1
        name = f"bg{self._last}"
        # What commands leave running cannot be refused; only its output is not kept when there is too much of it.
        ring = command.ring or Ring(0 if self.is_full else RING_BYTES)
        self._all[name] = Background(name, command, ring)
        over = [other for other in self._all.values() if other.is_over]
        for other in over[: max(0, len(self._all) - MAX_KNOWN)]:
            self._forget(other)
        return name

    def settle(self, found: dict[int, list[int]]) -> None:
        """Take note of those whose processes are gone."""
        for one in self._all.values():
            one.settle(found)

    def read(self, request_id: int, frame: Frame) -> None:
        """Answer with a part of one's output and with its state.

        Raises:
            Refusal: NOT_FOUND.
        """
        head = frame.head
        one = self._find(head)
        found, _ = marked_processes()
        one.settle(found)
        start, data = one.ring.read(max(0, int(head["offset"])), min(max(0, int(head["max_bytes"])), MAX_KEEP_BYTES))
        self._reply(request_id, ({**one.state(found), "start": start}, data))

    def states(self, request_id: int, frame: Frame) -> None:
        """Answer with the states of a session's, or of all."""
        found, _ = marked_processes()
        self.settle(found)
        session = frame.head.get("session")
        states = [one.state(found) for one in self._all.values() if session in (None, one.command.call.mark.session)]
        self._reply(request_id, ({"backgrounds": states}, b""))

    def kill(self, request_id: int, frame: Frame) -> None:
        """End one with its whole tree, SIGTERM first; answered when it is over.

        Raises:
            Refusal: NOT_FOUND.
        """
        one = self._find(frame.head)
        one.waiters.append(request_id)
        if not one.give_up_at:
            found, _ = marked_processes()
            one.settle(found)
            self._begin_kill(one)
        elif one.is_over:
            self._answer_waiters(one)

    def cancel(self, call_key: str) -> bool:
        """End what the call has in the background; True when there was something."""
        ended = False
        for one in self._all.values():
            if one.command.call.mark.key == call_key and not one.is_over:
                ended = bool(self._kill_now(one)) or ended
        return ended

    def kill_all(self) -> bool:
        """End all at once, to make room; True when there were any."""
        living = [one for one in self._all.values() if not one.is_over]
        for one in living:
            self._kill_now(one)
        return bool(living)

    def forget_waiters(self) -> None:
        """The link is gone, and with it every request that waited."""
        for one in self._all.values():
            one.waiters = []

    def _find(self, head: dict[str, Any]) -> Background:
        one = self._all.get(str(head.get("name")))
        if one is None or one.command.call.mark.session != head.get("session"):
            raise Refusal(RefusalCode.NOT_FOUND, "there is no such background command")
        return one

    def _kill_now(self, one: Background) -> list[int]:
        one.was_killed = True
        pids = signal_marked(one.command.marker, signal.SIGKILL)
        kill_marked(one.command.marker)
        one.settle({})
        return pids

    def _begin_kill(self, one: Background) -> None:
        now = time.monotonic()
        one.kill_again_at, one.give_up_at = now + GRACE_S, now + GRACE_S + GIVE_UP_S
        if not one.is_over:
            one.was_killed = True
            signal_marked(one.command.marker, signal.SIGTERM)
            signal_marked(one.command.marker, signal.SIGCONT)
        self._watch_end(one)

    def _watch_end(self, one: Background) -> None:
        now = time.monotonic()
        found, _ = marked_processes()
        one.settle(found)
        if one.is_over or now > one.give_up_at:
            self._answer_waiters(one)
            if not one.is_over:
                # A later kill tries again.
                one.give_up_at = 0.0
            return
        if now > one.kill_again_at:
            kill_marked(one.command.marker)
        self._loop.after(LOOK_S, lambda: self._watch_end(one))

    def _answer_waiters(self, one: Background) -> None:
        found, _ = marked_processes()
        for request_id in one.waiters:
            self._reply(request_id, (one.state(found), b""))
        one.waiters = []

    def _forget(self, one: Background) -> None:
        one.ring.close()
        del self._all[one.name]
