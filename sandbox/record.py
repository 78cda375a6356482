"""Who has a box, and until when: one small file per box beside the node, which outlives the process."""

import hashlib
import json
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from sandbox import door
from sandbox.errors import SandboxError

RECORD_VERSION = 1
DOORS = "doors"


@dataclass(frozen=True)
class BoxRecord:
    """What must be known of a box to adopt or to remove it."""

    box_id: str
    container: str
    """Name of the container."""
    node: str
    session: str
    generation: int
    born: float
    """Seconds since the epoch."""
    expires: float
    """Seconds since the epoch; afterwards the box may be removed whatever state it is in."""
    image: str
    workspace_dir: str
    spill_dir: str
    uid: int
    gid: int
    profile: str
    installation: str = ""
    """Name of the records directory (see `RecordStore.installation`)."""
    guest_folder: str = ""
    """On the host; must stay while the box lives."""
    pool_key: str = ""
    """What the pool knows a box by that no session has yet; "" for one that has been given out."""
    egress: tuple[str, ...] = ()
    """Hosts that the box may reach (see `egress.rules.parse_rule`)."""
    expires_up: float = 0.0
    """The same on a clock that nobody sets, `uptime_s`; 0 where only the other one counts."""
    has_door: bool = False
    """Whether its guest comes to our socket (see `RecordStore.door_folder`); else relays are executed in it."""
    version: int = RECORD_VERSION

    def is_past(self, now: float) -> bool:
        """Whether the box's time has run out by both clocks; `now` is in seconds since the epoch."""
        return self.expires < now and self.expires_up < uptime_s()


def uptime_s() -> float:
    """Return how long the machine runs; alike in all its processes, and no step of the clock changes it."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class RecordStore:
    """The record files of one node. Each write is whole or not there (rename).

    Nothing is forced to the disk: a machine that lost its memory has lost its boxes too.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    @property
    def installation(self) -> str:
        """A short name that only this records directory has."""
        return hashlib.sha256(os.fsencode(self._folder.resolve())).hexdigest()[:16]

    def all(self) -> list[BoxRecord]:
        """Every record that can be read."""
        return [record for box_id in self.box_ids() if (record := self.load(box_id)) is not None]

    def save(self, record: BoxRecord) -> None:
        """Write or replace the box's record."""
        target = self._path(record.box_id)
        draft = target.with_suffix(".tmp")
        data = json.dumps(asdict(record)).encode()
        with draft.open("wb") as file:
            # Where its blocks are given beforehand, ext4 does not wait for the disk before it replaces the old one.
            with suppress(OSError):
                os.posix_fallocate(file.fileno(), 0, len(data))
            file.write(data)
        draft.replace(target)

    def renew(
        self, box_id: str, session: str, generation: int, now: float, lifetime_s: float, changes: Mapping[str, str]
    ) -> None:
        """Write who has the box, for how long from now on, and what else changed (names of fields).

        Raises:
            SandboxError: the box has no record.
        """
        record = self.load(box_id)
        if record is None:
            raise SandboxError(f"box {box_id} has no record")
        renewed = replace(record, session=session, generation=generation)
        renewed = replace(renewed, expires=now + lifetime_s, expires_up=uptime_s() + lifetime_s)
        self.save(replace(renewed, **changes))  # type: ignore[arg-type]

    def load(self, box_id: str) -> BoxRecord | None:
        """The box's record; None when there is none or it cannot be read."""
        try:
            fields = json.loads(self._path(box_id).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return _parse(fields)

    def remove(self, box_id: str) -> None:
        """Forget the box, and remove its door."""
        door.remove(self.door_folder(box_id))
        self._path(box_id).unlink(missing_ok=True)

    def box_ids(self) -> list[str]:
        """Every box with a record file, readable or not, or with a door."""
        records = {path.stem for path in self._folder.glob("*.json")}
        return sorted(records.union(path.name for path in self._folder.glob(f"{DOORS}/*")))

    def door_folder(self, box_id: str) -> Path:
        """Where the box's door is, if it has one."""
        return self._folder.absolute() / DOORS / box_id

    def _path(self, box_id: str) -> Path:
        return self._folder / f"{box_id}.json"


def _parse(fields: Any) -> BoxRecord | None:
    if not isinstance(fields, dict) or fields.get("version") != RECORD_VERSION:
        return None
    known = {name: fields[name] for name in BoxRecord.__dataclass_fields__ if name in fields}
    try:
        return BoxRecord(**{**known, "egress": tuple(known.get("egress", ()))})
    except TypeError:
        return None
