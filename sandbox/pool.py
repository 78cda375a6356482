"""Boxes that stand ready before anybody asks: started ahead, each given to one session, once.

What two boxes must have alike to stand for each other is their fingerprint: everything that is fixed when a box is
made. User and directories are made anew for each warm box, at its birth, and go with it.
"""

import hashlib
import json
import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from sandbox.box import Box
from sandbox.errors import SandboxError
from sandbox.record import BoxRecord
from sandbox.requests import CallMark, RunRequest
from sandbox.spec import BoxSpec

log = logging.getLogger(__name__)

PER_BOX = ("workspace_dir", "workspace_size_bytes", "spill_dir", "uid", "gid", "image", "principal")
CALM_S = 0.2
"""After a claim no box is started for so long: the session's first call goes before the refill, on the same cores."""
PING_S = 1.0
"""A warm box that does not answer so soon is not handed over."""
ROUSE_TIMEOUT_MS = 10_000
MAX_PAUSE_S = 60.0
CLOSE_S = 90.0


@dataclass(frozen=True)
class PoolSettings:
    """How many boxes stand ready."""

    min_idle: int = 0
    """Of each kind that was wanted lately; 0 with `max_idle` 0 is no pool at all."""
    max_idle: int = 0
    """Of each kind, when as many were wanted within `demand_s`."""
    total: int = 8
    """Boxes of the node, given out and idle together: its places."""
    least_wants: int = 2
    """A kind is kept ready once it was wanted so often: many sessions' images are used once and never again."""
    demand_s: float = 60.0
    forget_s: float = 1800.0
    """A kind that nobody wanted for so long is kept ready no more."""
    refills: int = 2
    """Starts at once to fill the pool: fewer than the engine takes, so that sessions need not wait behind them."""
    tend_s: float = 5.0
    """Between looks at the boxes that stand ready."""


@dataclass(frozen=True)
class Newborn:
    """The directories and the user that a warm box is born with."""

    folder: Path
    """Holds nothing but the two below; both leave it when the box is handed over."""
    workspace_dir: Path
    spill_dir: Path
    uid: int
    gid: int
    size_bytes: int | None = None
    """Of the file system that the workspace has for itself; None where it has none."""


@dataclass(frozen=True)
class WarmBox:
    """A box that nobody has used."""

    box: Box
    newborn: Newborn


@dataclass
class _Kind:
    """Warm boxes of one fingerprint; guarded by the pool's lock."""

    template: BoxSpec | None = None
    """None for boxes of an earlier life of the node, until one like them is wanted."""
    idle: deque[WarmBox] = field(default_factory=deque)
    starting: int = 0
    wanted: deque[float] = field(default_factory=deque)
    wants: int = 0
    used_at: float = 0.0
    failures: int = 0
    not_before: float = 0.0


def fingerprint(spec: BoxSpec, image_id: str, guest_folder: str) -> str:
    """What two boxes have alike that may stand for each other, as a short text."""
    fields = {name: value for name, value in asdict(spec).items() if name not in PER_BOX}
    text = json.dumps([image_id, guest_folder, fields], sort_keys=True, default=_plain)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _plain(value: object) -> object:
    return sorted(map(str, value)) if isinstance(value, (set, frozenset)) else str(value)


class WarmPool:
    """Keeps boxes ready, from a thread of its own. Thread-safe."""

    def __init__(
        self,
        settings: PoolSettings,
        start: Callable[[BoxSpec, str], Box],
        bear: Callable[[BoxSpec], Newborn],
        bury: Callable[[Newborn], None],
        used: Callable[[], int],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`start` makes a box of a specification and a fingerprint, `bear` its directories, `bury` removes them.

        `used` tells how many boxes have been given out or were started without the pool.
        """
        self._settings = settings
        self._start = start
        self._bear = bear
        self._bury = bury
        self._used = used
        self._clock = clock
        self._kinds: dict[str, _Kind] = {}
        self._lock = threading.Lock()
        self._is_closed = self._is_held = False
        self._claimed_at = -math.inf
        self._wake = threading.Event()
        self._starters = ThreadPoolExecutor(settings.refills, thread_name_prefix="pool-start")
        self._keeper = threading.Thread(target=self._keep, name="pool-keeper", daemon=True)
        if self.is_on:
            self._keeper.start()

    @property
    def is_on(self) -> bool:
        """Whether any box is ever kept ready."""
        return self._settings.max_idle > 0 or self._settings.min_idle > 0

    def want(self, template: BoxSpec, key: str) -> None:
        """Keep boxes of this kind ready from now on. `template`: its user and directories do not matter."""
        with self._lock:
            kind = self._kind(key)
            kind.template, kind.used_at, kind.wants = template, self._clock(), self._settings.least_wants
        self._wake.set()

    def claim(self, template: BoxSpec, key: str) -> WarmBox | None:
        """A box of this kind that nobody has used and that answers; None when there is none.

        The caller has it from now on: it ends the box, and moves or removes its directories.
        """
        if not self.is_on:
            return None
        is_counted = False
        while True:
            with self._lock:
                kind = self._kind(key)
                kind.template, kind.used_at = template, self._clock()
                kind.wants += not is_counted
                is_counted = True
                warm = kind.idle.popleft() if kind.idle and not self._is_closed else None
            if warm is None or warm.box.answers(PING_S):
                break
            log.warning("a warm box does not answer and is replaced", extra={"box_id": warm.box.box_id})
            self.discard(warm)
        with self._lock:
            self._claimed_at = time.monotonic()
            kind.wanted.append(self._clock())
        self._wake.set()
        return warm

    def make_room(self) -> None:
        """End a warm box when the node has room for no other one: a session goes before a box that waits for one."""
        with self._lock:
            if self._used() + self._standing() < self._settings.total:
                return
            kinds = sorted((kind for kind in self._kinds.values() if kind.idle), key=lambda kind: kind.used_at)
            warm = kinds[0].idle.popleft() if kinds else None
        if warm is not None:
            self.discard(warm)

    def take_back(self, record: BoxRecord, box: Box, newborn: Newborn) -> None:
        """Take a warm box of an earlier life of the node."""
        with self._lock:
            kind = self._kind(record.pool_key)
            kind.used_at, kind.wants = self._clock(), self._settings.least_wants
            kind.idle.append(WarmBox(box, newborn))

    def discard(self, warm: WarmBox) -> None:
        """End a warm box and remove its directories."""
        warm.box.close()
        self._bury(warm.newborn)

    def idle(self, key: str | None = None) -> int:
        """How many boxes stand ready, of one kind or of all."""
        with self._lock:
            kinds = self._kinds.values() if key is None else [self._kinds[key]] if key in self._kinds else []
            return sum(len(kind.idle) for kind in kinds)

    def images(self) -> tuple[str, ...]:
        """The images of which boxes stand ready."""
        with self._lock:
            kinds = [kind for kind in self._kinds.values() if kind.idle and kind.template is not None]
            return tuple(sorted({kind.template.image for kind in kinds if kind.template is not None}))

    def hold(self, is_held: bool) -> None:
        """Keep no boxes ready, or as many as before."""
        self._is_held = is_held
        self._wake.set()

    def close(self) -> None:
        """End all warm boxes; starts under way are waited for."""
        with self._lock:
            self._is_closed = True
        self._wake.set()
        if self._keeper.is_alive():
            self._keeper.join(CLOSE_S)
        self._starters.shutdown(wait=True, cancel_futures=True)
        with self._lock:
            left = [warm for kind in self._kinds.values() for warm in kind.idle]
            self._kinds.clear()
        for warm in left:
            self.discard(warm)

    def _kind(self, key: str) -> _Kind:
        return self._kinds.setdefault(key, _Kind())

    def _standing(self) -> int:
        return sum(len(kind.idle) + kind.starting for kind in self._kinds.values())

    def _keep(self) -> None:
        while not self._is_closed:
            self._wake.wait(self._settings.tend_s)
            self._wake.clear()
            self._keep_calm()
            try:
                for warm in self._rejected():
                    self.discard(warm)
                self._refill()
            except Exception:
                # The pool goes on: without it every session waits for its start.
                log.exception("the pool could not be tended")

    def _keep_calm(self) -> None:
        """Let the call for which a box was just claimed go first."""
        calm_s = self._claimed_at + CALM_S - time.monotonic()
        if calm_s > 0 and not self._is_closed:
            time.sleep(calm_s)

    def _rejected(self) -> list[WarmBox]:
        """Take out what is dead, what nobody wants any more, and what is more than is wanted."""
        now = self._clock()
        rejected = []
        with self._lock:
            idle = [warm for kind in self._kinds.values() for warm in kind.idle]
        dead = {warm.box.box_id for warm in idle if not warm.box.is_alive()}
        with self._lock:
            for key, kind in list(self._kinds.items()):
                keep = 0 if now - kind.used_at > self._settings.forget_s else self._target(kind, now)
                living = [warm for warm in kind.idle if warm.box.box_id not in dead]
                rejected += [warm for warm in kind.idle if warm.box.box_id in dead] + living[keep:]
                kind.idle = deque(living[:keep])
                if keep == 0 and not kind.starting and now - kind.used_at > self._settings.forget_s:
                    del self._kinds[key]
        return rejected

    def _target(self, kind: _Kind, now: float) -> int:
        """How many of a kind should stand ready: as many as were wanted lately, within the bounds."""
        while kind.wanted and now - kind.wanted[0] > self._settings.demand_s:
            kind.wanted.popleft()
        if self._is_held or kind.wants < self._settings.least_wants:
            return 0
        low, high = self._settings.min_idle, max(self._settings.min_idle, self._settings.max_idle)
        return min(high, max(low, len(kind.wanted)))

    def _refill(self) -> None:
        now = self._clock()
        with self._lock:
            room = self._settings.total - self._used() - self._standing()
            for key, kind in self._kinds.items():
                if kind.template is None or now < kind.not_before or self._is_closed:
                    continue
                missing = self._target(kind, now) - len(kind.idle) - kind.starting
                for _ in range(min(missing, room)):
                    kind.starting += 1
                    room -= 1
                    self._starters.submit(self._add, key, kind, kind.template)

    def _add(self, key: str, kind: _Kind, template: BoxSpec) -> None:
        """Start one box into the pool; a kind that cannot be started is tried again ever later."""
        warm: WarmBox | None = None
        try:
            warm = self._born(key, template)
        except (SandboxError, OSError) as error:
            log.warning("a warm box could not be started", extra={"image": template.image, "error": str(error)})
        except Exception:
            log.exception("a warm box could not be started")
        with self._lock:
            kind.starting -= 1
            kind.failures = 0 if warm else kind.failures + 1
            kind.not_before = self._clock() + min(MAX_PAUSE_S, 2.0**kind.failures) if kind.failures else 0.0
            is_kept = warm is not None and not self._is_closed and self._kinds.get(key) is kind
            if warm is not None and is_kept:
                kind.idle.append(warm)
        if warm is not None and not is_kept:
            self.discard(warm)
        self._wake.set()

    def _born(self, key: str, template: BoxSpec) -> WarmBox:
        newborn = self._bear(template)
        try:
            spec = replace(
                template,
                workspace_dir=newborn.workspace_dir,
                workspace_size_bytes=newborn.size_bytes,
                spill_dir=newborn.spill_dir,
                uid=newborn.uid,
                gid=newborn.gid,
            )
            return WarmBox(_roused(self._start(spec, key)), newborn)
        except BaseException:
            self._bury(newborn)
            raise


def _roused(box: Box) -> Box:
    """The box, whose shell has run once: the first time a program is read from the disk."""
    mark = CallMark("sandhog-rouse", digest="", session="sandhog-rouse", generation=0, step=0)
    try:
        if box.info.shell:
            box.run(RunRequest(mark, command=":", cwd="/", timeout_ms=ROUSE_TIMEOUT_MS))
    except BaseException:
        box.close()
        raise
    return box
