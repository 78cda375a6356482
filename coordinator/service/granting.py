"""Wishes of other processes for a session of this one: hearing → **granting** → held."""

from collections.abc import Callable, Coroutine
from typing import Any

from pydantic import ValidationError

from coordinator.cluster.wishes import Told, Wish
from coordinator.errors import ConfigError
from coordinator.service.held import Held
from coordinator.service.messages import Message
from coordinator.service.posting import answers_for
from coordinator.service.refusals import Code, Refused
from coordinator.session.cancelling import calls_cancelled
from coordinator.session.copying import copied
from coordinator.session.limits import Limits


def grant(
    session: str, wish: Wish, held: Held | None, cancel: Callable[[Held], Coroutine[Any, Any, None]]
) -> Told | Coroutine[Any, Any, Told]:
    """Do what is wanted of a session; return what became of it, or what will say so.

    Args:
        session: The session.
        wish: What is wanted.
        held: What this process has of it; None where it has nothing of it.
        cancel: Ends a session that waits or runs here, see `Floor.cancel`.
    """
    if held is None:
        words = f"Session {session} has ended, or is elsewhere by now."
        # Who asks for a step looks anew who has the session.
        return Told() if wish.kind in ("cancel", "step") else Told(refusal=Code.CONFLICT, message=words)
    try:
        match wish.kind:
            case "cancel":
                return _cancelled(cancel(held))
            case "message":
                return _kept(held, held.say(wish.text))
            case "finish":
                held.finish(wish.text)
            case "limits":
                held.limit(Limits.model_validate({**held.limits.model_dump(), **wish.limits}))
                return Told(result=held.limits.model_dump(mode="json"))
            case "copy" | "cancel_calls" | "step":
                return _done(held, wish)
    except Refused as exc:
        return _refused(exc)
    except (ConfigError, ValidationError) as exc:
        return Told(refusal=Code.INVALID, message=str(exc))
    return Told()


async def _cancelled(kept: Coroutine[Any, Any, None]) -> Told:
    await kept
    return Told()


async def _kept(held: Held, message: Message) -> Told:
    try:
        await held.messages.keep(message)
    except Refused as exc:
        return _refused(exc)
    return Told()


async def _done(held: Held, wish: Wish) -> Told:
    """Do what takes a while."""
    if wish.kind == "step":
        return await _answered(held, wish)
    await held.until_begun()
    if wish.kind == "copy":
        return await copied(held.copies, wish)
    return await calls_cancelled(held.steps, wish)


async def _answered(held: Held, wish: Wish) -> Told:
    try:
        word = await answers_for(held, wish)
    except Refused as exc:
        return _refused(exc)
    return Told() if word is None else Told(result={"answers": word})


def _refused(exc: Refused) -> Told:
    return Told(refusal=exc.code, message=exc.message, fix=exc.fix)
