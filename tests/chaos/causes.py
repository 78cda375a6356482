"""What explains that nobody knows what became of a call, or that a session failed.

A fault of a kind that can, where it ran, shortly before.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

_REDIS = ("redis_paused", "redis_away", "redis_restarted", "redis_lost_its_last", "connections_cut", "way_cut")
_COORDINATOR = ("coordinator_killed", "coordinator_paused", "coordinator_ended")
_WORKER = ("worker_killed", "worker_handed_over", "worker_paused", "worker_ended", "node_gone")
_BOX = ("box_killed", "guest_killed", "link_broken", "disk_full")
_MESSAGE = ("message_twice", "message_lost")
CAUSES: Mapping[str, Collection[str]] = {
    "OUTCOME_UNKNOWN": (*_REDIS, *_COORDINATOR, *_WORKER, *_BOX, *_MESSAGE, "session_cancelled"),
    "BOX_LOST": (*_WORKER, *_BOX, "way_cut"),
    "CANCELLED": (*_REDIS, *_COORDINATOR, "session_cancelled"),
}
"""Codes of calls that may have run, and the kinds of faults that explain them; others are explained by none."""
ENDS: Mapping[str, Collection[str]] = {"storage": ("disk_full",), "box": ("disk_full", "node_gone")}
"""The same of failed sessions, by how their reasons begin."""
WITHIN_S = 60.0
"""A takeover, a node's next life and the question about an open call, together, take less."""
MOVED_WITHIN_S = 200.0
"""The same where the session had to move to another node."""
SLACK_S = 1.0
"""The engine or a signal may act before the harness has read its clock."""


@dataclass(frozen=True)
class Done:
    """A fault that was done."""

    kind: str
    began: float
    """Seconds since the epoch, as all times here."""
    ended: float
    whom: frozenset[str]
    """Projects and names of parts that it has hurt; none: everybody."""


def is_explained(
    kinds: Collection[str], at: float, whom: Collection[str], faults: Sequence[Done], waited_s: float = 0.0
) -> bool:
    """Return whether a fault explains an answer, or a session's end.

    Args:
        kinds: Those of the faults that can.
        at: When the answer, or the end, was written.
        whom: The session's project, and the parts that it has been on.
        faults: All that were done.
        waited_s: How long the answer was waited for: a node that is gone too takes long to be found out.
    """
    return any(
        fault.kind in kinds
        and (not fault.whom or not fault.whom.isdisjoint(whom))
        and fault.began - SLACK_S <= at
        and at - waited_s <= fault.ended + (MOVED_WITHIN_S if fault.kind == "node_gone" else WITHIN_S)
        for fault in faults
    )
