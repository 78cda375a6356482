"""The table of calls: what makes a call run at most once, and its answer fetchable until the next step."""

from __future__ import annotations

from collections.abc import Callable

from sandbox.guest.refusal import Refusal
from sandbox.guest.scratch import Shelf
from sandbox.wire import WORKSPACE, RefusalCode

TYPE_CHECKING = False
if TYPE_CHECKING:
    # The typing module alone would be a tenth of the guest's memory.
    from typing import Any

    Answer = tuple[dict[str, Any], bytes]

KEPT_BYTES = 2 * 1024 * 1024
"""Answers in memory; older ones go to the box's disk."""
SHELVED_BYTES = 256 * 1024 * 1024
"""Answers on disk; beyond it the oldest in memory are dropped, and only their keys stay known."""
HEAD_BYTES = 1024
"""What the head of an answer is taken for."""


class Mark:
    """Which call a request belongs to, as it came over the link."""

    __slots__ = ("digest", "generation", "join", "key", "session", "step")

    def __init__(self, head: dict[str, Any]) -> None:
        try:
            self.key = str(head["key"])
            self.digest = str(head["digest"])
            self.session = str(head["session"])
            self.generation = int(head["generation"])
            self.step = int(head["step"])
            self.join = bool(head["join"])
        except (KeyError, TypeError, ValueError) as error:
            raise Refusal(RefusalCode.INVALID_PARAM, f"mark of the call is incomplete: {error!r}") from None


class Session:
    """What the guest knows of one conversation."""

    __slots__ = ("calls", "cwd", "generation", "step")

    def __init__(self) -> None:
        self.cwd = WORKSPACE
        self.generation = -1
        self.step = -1
        self.calls: dict[str, Call] = {}


class Call:
    """A call that was claimed: running, answered, or answered and dropped."""

    __slots__ = ("answer", "dropped", "mark", "shelved", "waiters")

    def __init__(self, mark: Mark, request_id: int) -> None:
        self.mark = mark
        self.waiters = [request_id]
        self.answer: Answer | None = None
        self.shelved: tuple[int, int] | None = None
        """Place and size of the answer's body on the shelf."""
        self.dropped = False


class Calls:
    """Sessions and calls of this box."""

    def __init__(self, send: Callable[[int, Answer], None]) -> None:
        self._send = send
        self._sessions: dict[str, Session] = {}
        self._calls: dict[str, Call] = {}
        self._kept: dict[str, int] = {}
        self._kept_bytes = 0
        self._shelf = Shelf(SHELVED_BYTES)

    def session(self, name: str) -> Session:
        """The session, made when it is new."""
        session = self._sessions.get(name)
        if session is None:
            session = self._sessions[name] = Session()
        return session

    def begin_step(self, name: str, generation: int, step: int) -> None:
        """Take note of the session's step; answers of earlier ones are dropped.

        Raises:
            Refusal: STALE.
        """
        session = self.session(name)
        if (generation, step) == (session.generation, session.step):
            return
        if generation < session.generation or (generation == session.generation and step < session.step):
            raise Refusal(
                RefusalCode.STALE,
                f"generation {generation} step {step} came after generation {session.generation} step {session.step}",
            )
        session.generation, session.step = generation, step
        for call in [call for call in session.calls.values() if call.mark.step < step and call.answer]:
            self._forget(session, call)

    def claim(self, mark: Mark, request_id: int) -> Call | None:
        """The new call to run, or None when it is known: its answer goes to this request, now or when it ends.

        Raises:
            Refusal: CALL_MISMATCH, UNKNOWN_CALL, ANSWER_DROPPED, STALE.
        """
        known = self._calls.get(mark.key)
        if known is None:
            if mark.join:
                raise Refusal(RefusalCode.UNKNOWN_CALL, "this box does not know the call")
            self.begin_step(mark.session, mark.generation, mark.step)
            call = Call(mark, request_id)
            self._calls[mark.key] = call
            self.session(mark.session).calls[mark.key] = call
            return call
        if known.mark.digest != mark.digest:
            raise Refusal(RefusalCode.CALL_MISMATCH, "the call key is known with other arguments")
        if known.dropped:
            raise Refusal(RefusalCode.ANSWER_DROPPED, "the call ran; its answer is no longer kept")
        if known.answer is not None:
            self._send(request_id, self._whole(known))
        else:
            known.waiters.append(request_id)
        return None

    def finish(self, call: Call, answer: Answer) -> None:
        """Keep the answer and give it to whoever waits."""
        call.answer = answer
        for request_id in call.waiters:
            self._send(request_id, answer)
        call.waiters = []
        session = self.session(call.mark.session)
        if call.mark.step < session.step:
            self._forget(session, call)
            return
        self._kept[call.mark.key] = len(answer[1]) + HEAD_BYTES
        self._kept_bytes += self._kept[call.mark.key]
        while self._kept_bytes > KEPT_BYTES:
            oldest = next(iter(self._kept))
            self._kept_bytes -= self._kept.pop(oldest)
            self._put_aside(self._calls[oldest])

    def _put_aside(self, call: Call) -> None:
        assert call.answer is not None
        head, body = call.answer
        place = self._shelf.put(body) if body else 0
        if place < 0:
            # The key stays known, so that the call is not run again.
            call.dropped = True
            call.answer = ({}, b"")
            return
        call.answer = (head, b"")
        if body:
            call.shelved = (place, len(body))

    def _whole(self, call: Call) -> Answer:
        assert call.answer is not None
        if call.shelved is None:
            return call.answer
        try:
            return call.answer[0], self._shelf.get(*call.shelved)
        except OSError:
            raise Refusal(RefusalCode.ANSWER_DROPPED, "the call ran; its answer cannot be read from the disk") from None

    def forget_waiters(self) -> None:
        """The link is gone, and with it every request that waited."""
        for call in self._calls.values():
            call.waiters = []

    def _forget(self, session: Session, call: Call) -> None:
        key = call.mark.key
        session.calls.pop(key, None)
        self._calls.pop(key, None)
        self._kept_bytes -= self._kept.pop(key, 0)
        if call.shelved is not None:
            self._shelf.drop()
