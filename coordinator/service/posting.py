"""Post a caller's steps and fetch their answers, whichever server has the session: API → **posting** → held, owner.

A session of another server is asked about by wishes, again every few seconds: so it is noticed when its owner has died,
and the next one is asked. Nothing runs twice by that, for the same step with the same calls is the same step; and only
the owner that a wish was sent to hears it, so that a step that was given up is not begun by a later one.
"""

import asyncio
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cache

from pydantic import TypeAdapter

from coordinator.cluster.wishes import Wish
from coordinator.endpoint.reply import RawCall
from coordinator.service.afar import ANSWER_S, Afar
from coordinator.service.carried import carried, carry, drop
from coordinator.service.entries import Entry
from coordinator.service.held import Held
from coordinator.service.posted import Caller, PostedStep, ended
from coordinator.service.refusals import Code, Refused
from coordinator.service.volume import on_volume

SLICE_S = 3.0
"""How long another owner waits for a step's answers before it says what there is. Below the time that a server that
ends gives its connections."""
HERE_S = 1.0
"""How often it is looked whether a session whose step is waited for is still this server's."""
AGAIN_S = 0.2
"""The pause before it is looked anew who has the session."""


@dataclass(frozen=True)
class AskedStep:
    """What a caller wants of a step."""

    name: str | None
    """None: made of the calls."""
    calls: tuple[RawCall, ...] | None = None
    """None: it was posted before, and its answers are wanted."""
    is_cancelled: bool = False
    """It is to end."""


@dataclass(frozen=True)
class StepAnswers:
    """A step with its answers."""

    name: str
    is_done: bool
    messages: tuple[dict[str, str], ...]
    """In the calls' order; while it runs, those that are there."""


@dataclass(frozen=True)
class Posting:
    """Asks for steps, in this process or wherever their session is.

    Args:
        afar: Asks another process.
        held: What this process has of a session.
        is_closing: Whether this process ends, and nothing is to be waited for.
    """

    afar: Afar
    held: Callable[[str], Held | None]
    is_closing: Callable[[], bool]

    async def answers(self, entry: Entry, asked: AskedStep, wait_s: float) -> StepAnswers:
        """Return a step's answers once all are there, or what there is when the time is over.

        Raises:
            Refused: it cannot be had; or nobody who has the session answered, and it is to be asked for again.
            RedisError: Redis does not answer.
        """
        if entry.record.loop != "none":
            fix = "Make one with `loop: none`."
            raise Refused(Code.CONFLICT, f"Session {entry.session_id} has a model that makes its calls.", fix)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait_s
        known: StepAnswers | None = None
        while True:
            left_s = max(deadline - loop.time(), 0.0)
            try:
                found = await self._look(entry, asked, left_s)
            except Refused as exc:
                # Whoever goes on with it has only just begun to.
                if exc.code is not Code.UNAVAILABLE or left_s <= 0 or self.is_closing():
                    raise
                found = None
            known = found or known
            is_last = left_s <= 0 or self.is_closing()
            if known is not None and (known.is_done or is_last):
                return known
            if is_last:
                raise _unheard(entry.session_id)
            if found is None:
                await asyncio.sleep(min(AGAIN_S, left_s))
            await asyncio.to_thread(entry.refresh)

    async def _look(self, entry: Entry, asked: AskedStep, left_s: float) -> StepAnswers | None:
        """Return what is known of a step; None where whoever has the session now did not say."""
        held = self.held(entry.session_id)
        if held is not None and held.caller is not None:
            return await _answered(held.caller, asked, left_s, self.is_closing)
        if entry.facts.has_ended:
            return _shown(_begun(await on_volume(ended, entry.directory), asked))
        word = await on_volume(carry, entry.directory, _text_of(asked))
        wait_s = min(left_s, SLICE_S)
        try:
            told = await self.afar.ask_owner(entry, Wish(kind="step", text=word, within_s=wait_s), wait_s + ANSWER_S)
        finally:
            await asyncio.to_thread(drop, entry.directory, word)
        text = await on_volume(carried, entry.directory, str(told.result["answers"])) if told and told.result else None
        return _step_answers().validate_python(json.loads(text)) if text is not None else None


async def answers_for(held: Held, wish: Wish) -> str | None:
    """Return the word for what another server asks of a step of ours; None where we cannot say, and it looks anew.

    Raises:
        Refused: it cannot be had.
    """
    directory = held.entry.directory
    text = await on_volume(carried, directory, wish.text)
    if text is None or held.caller is None:
        return None
    asked = _asked_steps().validate_python(json.loads(text))
    found = await _answered(held.caller, asked, wish.within_s)
    return await on_volume(carry, directory, _text_of(found)) if found is not None else None


async def _answered(
    caller: Caller, asked: AskedStep, wait_s: float, gives_up: Callable[[], bool] = lambda: False
) -> StepAnswers | None:
    """Return a step's answers, or what there is of them; None where the session goes on elsewhere."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + wait_s
    if caller.is_catching_up and caller.last is not None:
        if asked.is_cancelled and asked.name == caller.last.name:
            # While it is found out what became of it, what still runs of it is ended.
            caller.last.cancelled.set()
        await caller.last.wait(wait_s)
    if caller.is_lost:
        return None
    step = _begun(caller, asked)
    while not (step.done.is_set() or caller.is_lost or gives_up()) and (left_s := deadline - loop.time()) > 0:
        await step.wait(min(left_s, HERE_S))
    return _shown(step)


def _begun(caller: Caller, asked: AskedStep) -> PostedStep:
    step = caller.step(asked.name or "") if asked.calls is None else caller.post(asked.name, asked.calls)
    if asked.is_cancelled:
        step.cancelled.set()
    return step


def _shown(step: PostedStep) -> StepAnswers:
    return StepAnswers(step.name, step.done.is_set(), tuple(step.messages))


def _text_of(one: AskedStep | StepAnswers) -> str:
    # The standard library's: arguments may hold what other writers refuse or change, as half a surrogate pair or NaN.
    return json.dumps(asdict(one))


@cache
def _asked_steps() -> TypeAdapter[AskedStep]:
    return TypeAdapter(AskedStep)


@cache
def _step_answers() -> TypeAdapter[StepAnswers]:
    return TypeAdapter(StepAnswers)


def _unheard(session_id: str) -> Refused:
    words = f"Whoever has session {session_id} did not answer, or nobody has it at this moment."
    fix = "Send the very same again: a step runs once, whether it had been begun or not."
    return Refused(Code.UNAVAILABLE, words, fix, retry_after_s=2)
