"""Calls of a session that runs, cancelled as people wish: wish, service → **cancelling** → step."""

from coordinator.cluster.wishes import Told, Wish
from coordinator.session.open_calls import parse
from coordinator.session.step import StepRunner


async def calls_cancelled(steps: StepRunner | None, wish: Wish) -> Told:
    """Cancel the calls that a wish names; return of each that was open whether it may have begun.

    Args:
        steps: Whoever runs the session's calls; None before it has begun.
        wish: What is wanted.
    """
    try:
        step, index = parse(wish.calls)
    except ValueError as exc:
        return Told(refusal="INVALID", message=f"{exc}.")
    found = {} if steps is None else await steps.cancel(step, index)
    return Told(result={f"{step}.{at}": has_begun for at, has_begun in found.items()})
