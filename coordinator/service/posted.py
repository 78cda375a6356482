"""Steps whose calls come from outside: HTTP → **posted** → caller loop → `role: tool` messages.

A step has a name; the same name with the same calls is the same step, however often it is posted. Its answers are kept
until the next step is posted; its name stays taken for as long as the session lives.
"""

import asyncio
import contextlib
import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from coordinator.endpoint.reply import RawCall
from coordinator.service.refusals import Code, Refused
from coordinator.session.call_events import AnswerShortened, CallFinished
from coordinator.session.events import Event
from coordinator.session.history import settle_ids
from coordinator.session.reading import read_session, segments
from coordinator.session.step_events import ModelReplied
from coordinator.session.transcript import Entry

MARK = "sandhog_step"
"""In the raw reply of a posted step: its name and digest, so that it is known again after a takeover."""


@dataclass(eq=False)
class PostedStep:
    """One step."""

    name: str
    digest: str
    calls: tuple[RawCall, ...]
    number: int = 0
    """The session's own count; 0 before it has begun."""
    ids: tuple[str, ...] = ()
    """The calls' ids as answers carry them."""
    contents: dict[int, str] = field(default_factory=dict)
    """Answers by the calls' index."""
    is_restored: bool = False
    """An earlier owner of the session has run it; what is missing of its answers is found before the loop begins."""
    done: asyncio.Event = field(default_factory=asyncio.Event)
    cancelled: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def messages(self) -> list[dict[str, str]]:
        """The answers as messages, in the calls' order; those that are not there yet are left out."""
        return [
            {"role": "tool", "tool_call_id": self.ids[index], "content": self.contents[index]}
            for index in range(len(self.calls))
            if index in self.contents and index < len(self.ids)
        ]

    async def wait(self, within_s: float) -> None:
        """Return once all answers are there, or the time is over."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.done.wait(), within_s)


class Caller:
    """Whoever posts one session's calls. An event sink: answers are taken as they were kept."""

    def __init__(self) -> None:
        self.last: PostedStep | None = None
        """The step that was posted last."""
        self.farewell: str | None = None
        """The session's final text, once the caller has ended it."""
        self.changed = asyncio.Event()
        self.is_lost = False
        """The session goes on elsewhere: nothing more is known of it here."""
        self._has_ended = False
        self._names: set[bytes] = set()
        """Digests of the names of all steps: the names themselves may be long, and there may be many."""
        self._highest = -1
        """The largest number that a step had for a name."""

    def post(self, name: str | None, calls: Sequence[RawCall]) -> PostedStep:
        """Return the step of these calls, a new one or the last one again.

        Args:
            name: The step's; None: made of the calls and their ids, which must all be there then.

        Raises:
            Refused: the name stands for other calls or a step before the last one, or another step is under way, or
                the session has ended.
        """
        digest, is_named = _digest(calls), name is not None
        if name is None:
            if any(not call.id for call in calls):
                words = "Calls without an id need a step, so that a repeated request is told from a new one."
                raise Refused(Code.INVALID, words, "Give `step`, counted up by you, or an Idempotency-Key.")
            name = f"calls-{digest[:24]}"
        last = self.last
        if last is not None and last.name == name:
            if last.digest != digest:
                raise Refused(Code.CONFLICT, f"Step {name!r} was posted with other calls.", "Count the step up.")
            return last
        if self._is_over(name):
            # Whoever asks again has not heard of the answers; run once more, the calls would do their work twice.
            if not is_named:
                words = "These calls were posted before, with these ids, and other steps came behind them."
                raise Refused(Code.CONFLICT, words, "Are they meant anew, give them ids of their own, or give `step`.")
            raise Refused(Code.CONFLICT, f"Step {name} is over: other steps came behind it.", "Count the step up.")
        if self._has_ended or self.farewell is not None:
            raise Refused(Code.CONFLICT, "The session has ended: it takes no calls any more.")
        self._demand_free()
        step = PostedStep(name, digest, tuple(calls))
        self.begin(step)
        self.changed.set()
        return step

    def begin(self, step: PostedStep) -> None:
        """Let a step be the last one."""
        self.last = step
        self._names.add(_name_digest(step.name))
        self._highest = max(self._highest, _number(step.name))

    def _is_over(self, name: str) -> bool:
        return _name_digest(name) in self._names or -1 < _number(name) < self._highest

    def step(self, name: str) -> PostedStep:
        """Return the step of that name.

        Raises:
            Refused: it is not the last one.
        """
        if self.last is None or self.last.name != name:
            fix = "Answers are kept until the next step is posted."
            raise Refused(Code.NOT_FOUND, f"There is no step {name[:80]!r} any more, or yet.", fix)
        return self.last

    def end(self, text: str) -> None:
        """Let the session complete with a final text, once no step is under way.

        Raises:
            Refused: one is.
        """
        if not self.is_catching_up:
            # Else it completes once what an earlier owner left is found.
            self._demand_free()
        self.farewell = text
        self.changed.set()

    def close(self, *, is_lost: bool = False) -> None:
        """Take no more calls; whoever waits for a step gets what there is, unless the session goes on elsewhere."""
        self._has_ended, self.is_lost = True, is_lost
        if self.last is not None and not is_lost:
            self.last.done.set()

    @property
    def is_catching_up(self) -> bool:
        """Whether it is still looked for what an earlier owner left of its last step."""
        return self.last is not None and self.last.is_restored and not self.last.done.is_set()

    def _demand_free(self) -> None:
        if self.is_catching_up:
            words = "The session is just going on here: it is looked what its last owner left."
            raise Refused(Code.UNAVAILABLE, words, "Send the same again.", retry_after_s=1)
        if self.last is not None and not self.last.done.is_set():
            words = f"Step {self.last.name!r} is still under way."
            raise Refused(Code.CONFLICT, words, "Wait for its answers, or cancel it.")

    def __call__(self, event: Event) -> None:
        """Take the answers of the present step."""
        step = self.last
        if isinstance(event, CallFinished | AnswerShortened) and step is not None and event.step == step.number:
            step.contents[event.index] = event.answer


def _digest(calls: Sequence[RawCall]) -> str:
    plain: list[Any] = [[call.id, call.name, call.arguments] for call in calls]
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()


def _name_digest(name: str) -> bytes:
    return hashlib.sha256(name.encode()).digest()[:16]


def _number(name: str) -> int:
    return int(name) if name.isdecimal() and len(name) <= 18 else -1


def restored(entries: Iterable[Entry]) -> Caller:
    """Return the caller of a session as its transcript tells it: the last step, its answers, the names before it."""
    caller = Caller()
    for entry in entries:
        event = entry.event
        mark = event.raw.get(MARK) if isinstance(event, ModelReplied) else None
        if isinstance(event, ModelReplied) and isinstance(mark, dict):
            step = PostedStep(str(mark.get("name")), str(mark.get("digest")), event.calls, number=event.step)
            step.ids = settle_ids(event.calls, event.step)
            step.is_restored = True
            caller.begin(step)
        elif event is not None:
            caller(event)
    if caller.last is not None and len(caller.last.contents) == len(caller.last.calls):
        # Nothing is missing: what comes next need not wait until the session has its box again.
        caller.last.done.set()
    return caller


def ended(session_dir: Path) -> Caller:
    """Return the caller of a session that has ended: it takes no calls, and gives the answers of the last step.

    Raises:
        TranscriptError: the session's transcript cannot be read.
    """
    caller = restored(read_session(session_dir).entries if segments(session_dir) else ())
    caller.close()
    return caller
