"""Ask the volume without holding up the event loop; what it does not take is a refusal."""

import asyncio
import logging
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from coordinator.errors import TranscriptError
from coordinator.service.refusals import Code, Refused

log = logging.getLogger(__name__)

_P = ParamSpec("_P")
_T = TypeVar("_T")


async def on_volume(work: Callable[_P, _T], *arguments: _P.args, **named: _P.kwargs) -> _T:
    """Return what a function says that reads or writes the volume, outside of the event loop.

    Raises:
        Refused: the volume does not take it.
    """
    try:
        return await asyncio.to_thread(work, *arguments, **named)
    except (TranscriptError, OSError) as exc:
        raise volume_away(exc) from exc


def volume_away(exc: TranscriptError | OSError) -> Refused:
    """Return the answer where the volume does not take something; what and where is for the log alone."""
    log.error("the volume cannot be used", extra={"error": str(exc)})
    return Refused(Code.UNAVAILABLE, "The server's volume cannot be used now.", retry_after_s=10)
