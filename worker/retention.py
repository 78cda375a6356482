"""How long what is left of sessions is kept, and how much of it: kept copies, spilled output, transcripts.

Nothing is removed of a session in which somebody may be at work, whatever its age. Results of batches and the audit
log are nobody's to remove.
"""

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from sandbox.spec import MIB
from worker.beneath import remove_tree
from worker.contract.removals import Kind, Removal, note
from worker.disk import measured_bytes
from worker.errors import WorkerError
from worker.files_in import DONE
from worker.kept import COPIES, KeptCopies, has_copy, last_event_at
from worker.own_disk import IMAGE, MOUNT
from worker.settings import NodeSettings

log = logging.getLogger(__name__)

EVERY_S = 600.0
HOUR_S = 3600.0
DAY_S = 86_400.0
SPILL_DIR = "spill"
STRAY_S = HOUR_S
"""So old a directory is in which a node copied for a fork that nobody waited for: far beyond how long one does."""
OF_NODES = frozenset({*COPIES, IMAGE, MOUNT, SPILL_DIR, DONE})
"""What nodes put into a session's directory; whoever makes a session writes something else first or soon after."""
TRASH = ".trash"
"""Ends the name of what was left half removed, see `beneath.remove_tree`."""


@dataclass(frozen=True)
class Bound:
    """How long one kind is kept, and how much of it."""

    age_s: float
    total_bytes: int | None
    """None where only the age counts."""
    setting: str
    """Begins the names of the settings."""


@dataclass(frozen=True)
class _Kept:
    session_dir: Path
    last_at: float


class Retention:
    """Finds and removes what is beyond its bound; for one thread.

    Args:
        state_dir: The shared volume.
        kept: Knows who lives, and removes copies.
        bounds: For private copies, spilled output and sessions.
        now: The time of day.
    """

    def __init__(
        self, state_dir: Path, kept: KeptCopies, bounds: dict[Kind, Bound], *, now: Callable[[], float] = time.time
    ) -> None:
        self._state_dir = state_dir
        self._sessions = state_dir / "sessions"
        self._kept = kept
        self._bounds = bounds
        self._now = now
        self._due_at = 0.0

    def sweep(self) -> list[Removal]:
        """Remove what is due, some times an hour; return it.

        Raises:
            redis.RedisError: it cannot be asked; nothing more was removed.
        """
        if time.monotonic() < self._due_at:
            return []
        self._due_at = time.monotonic() + EVERY_S
        return self.collect()

    def collect(self, *, is_trial: bool = False) -> list[Removal]:
        """Remove what is due now; return it. `is_trial`: only return it.

        Raises:
            redis.RedisError: it cannot be asked; nothing more was removed.
        """
        removed: list[Removal] = []
        gone: set[str] = set()
        if not is_trial:
            self._finish_removals()
        # What goes with all of its session is told once.
        for kind in (Kind.SESSION, Kind.COPY, Kind.SPILL):
            for session_dir, why in self._due(kind):
                if session_dir.name in gone:
                    continue
                try:
                    removal = self._removal(session_dir, kind, why)
                    if not is_trial:
                        removal = self._remove(session_dir, removal)
                except (OSError, WorkerError, ValueError) as exc:
                    extra = {"session_id": session_dir.name, "kind": kind.value, "error": str(exc)}
                    log.warning("what is due was not removed", extra=extra)
                    continue
                removed.append(removal)
                if kind is Kind.SESSION:
                    gone.add(session_dir.name)
        return removed

    def _due(self, kind: Kind) -> Iterator[tuple[Path, str]]:
        """Yield what of a kind is due, the oldest first, and why: its age, then the bytes of all."""
        bound = self._bounds[kind]
        rest = []
        for one in self._found(kind):
            if kind is Kind.SESSION and _is_stray(one.session_dir):
                if self._now() - one.last_at > STRAY_S and not self._kept.is_live(one.session_dir):
                    yield one.session_dir, "a copy for a fork that was never begun"
            elif self._now() - one.last_at < bound.age_s:
                rest.append(one)
            elif not self._kept.is_live(one.session_dir):
                yield one.session_dir, f"{bound.setting}: older than {_shown_age(bound.age_s)}"
        if bound.total_bytes is None:
            return
        sizes = {one.session_dir: _size(one.session_dir, kind) for one in rest}
        over_bytes = sum(sizes.values()) - bound.total_bytes
        for one in rest:
            if over_bytes <= 0:
                return
            if not self._kept.is_live(one.session_dir):
                over_bytes -= sizes[one.session_dir]
                yield one.session_dir, f"{bound.setting}: all together were too large"

    def _found(self, kind: Kind) -> list[_Kept]:
        found = []
        for session_dir in self._sessions.iterdir() if self._sessions.is_dir() else ():
            with suppress(OSError):
                if not session_dir.name.endswith(TRASH) and session_dir.is_dir() and _has(session_dir, kind):
                    found.append(_Kept(session_dir, last_event_at(session_dir)))
        return sorted(found, key=lambda one: (one.last_at, one.session_dir))

    def _removal(self, session_dir: Path, kind: Kind, why: str) -> Removal:
        size_bytes = measured_bytes(session_dir) if kind is Kind.SESSION else _size(session_dir, kind)
        return Removal(session=session_dir.name, kind=kind, size_bytes=size_bytes, why=why)

    def _remove(self, session_dir: Path, removal: Removal) -> Removal:
        match removal.kind:
            case Kind.COPY:
                self._kept.remove(session_dir)
            case Kind.SPILL:
                remove_tree(session_dir / SPILL_DIR)
            case Kind.SESSION:
                # A disk of its own is mounted below: it must be let go of first.
                self._kept.remove(session_dir)
                remove_tree(session_dir)
            case Kind.RUN:
                raise ValueError("leftovers of commands are the coordinator's to remove")
        done = removal.model_copy(update={"at": datetime.now(UTC).isoformat(timespec="seconds")})
        note(self._state_dir, done)
        return done

    def _finish_removals(self) -> None:
        for left in self._sessions.glob(f"*{TRASH}"):
            with suppress(OSError):
                remove_tree(left.with_name(left.name.removesuffix(TRASH)))


def bounds_of(settings: NodeSettings) -> dict[Kind, Bound]:
    """Return how long each kind is kept, and how much of it."""

    def total(mib: int | None) -> int | None:
        return None if mib is None else mib * MIB

    return {
        Kind.COPY: Bound(settings.keep_copies_h * HOUR_S, total(settings.keep_copies_mib), "keep_copies"),
        Kind.SPILL: Bound(settings.keep_spill_days * DAY_S, total(settings.keep_spill_mib), "keep_spill"),
        Kind.SESSION: Bound(
            settings.keep_transcripts_days * DAY_S, total(settings.keep_transcripts_mib), "keep_transcripts"
        ),
    }


def _is_stray(session_dir: Path) -> bool:
    """Whether a directory holds nothing but what a node has put there: no session was ever made of it."""
    try:
        return {path.name for path in session_dir.iterdir()} <= OF_NODES
    except OSError:
        # It goes just now.
        return False


def _has(session_dir: Path, kind: Kind) -> bool:
    match kind:
        case Kind.COPY:
            return has_copy(session_dir)
        case Kind.SPILL:
            return (session_dir / SPILL_DIR).is_dir()
        case _:
            return True


def _size(session_dir: Path, kind: Kind) -> int:
    """Return what a session's part of a kind takes on disk; 0 where it cannot be measured now."""
    copies = [session_dir / name for name in ("work", "base", IMAGE)]
    match kind:
        case Kind.COPY:
            places = copies
        case Kind.SPILL:
            places = [session_dir / SPILL_DIR]
        case _:
            places = [path for path in session_dir.iterdir() if path not in copies and path.name != SPILL_DIR]
    total = 0
    for place in places:
        with suppress(OSError, ValueError):
            total += measured_bytes(place) if place.is_dir() else place.lstat().st_blocks * 512
    return total


def _shown_age(age_s: float) -> str:
    days = age_s / 86_400
    return f"{days:g} days" if days >= 2 else f"{age_s / 3600:g} hours"
