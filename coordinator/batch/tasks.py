"""The tasks file: every line is looked at before anything runs; what is kept of it is where each task stands.

file → **tasks** → run. A row is read again when its turn comes, so that ten thousand of them cost little memory.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from hashlib import blake2b
from math import isfinite
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from coordinator.batch.naming import directory_name
from coordinator.batch.rows import TaskRow, from_instance, is_instance
from coordinator.errors import ConfigError

MAX_LINE_BYTES = 16 * 1024 * 1024
SHOWN_FAULTS = 200

REPO_BASE = "https://github.com/"


@dataclass(frozen=True)
class Entry:
    """Where one task stands in the file."""

    id: str
    line: int
    """From 1."""
    offset: int
    size_bytes: int
    samples: int
    is_instance: bool
    """A row of the SWE-bench kind."""
    digest: bytes = b""
    """Of the line."""


@dataclass(frozen=True)
class Turn:
    """One run of a task."""

    entry: Entry
    sample: int
    """From 1."""

    @property
    def directory(self) -> str:
        """Where its files lie, relative to the batch's directory."""
        name = directory_name(self.entry.id)
        return name if self.entry.samples == 1 else f"{name}/sample-{self.sample}"

    @property
    def name(self) -> str:
        """For people."""
        return self.entry.id if self.entry.samples == 1 else f"{self.entry.id} [{self.sample}]"


class TaskFile:
    """A tasks file whose every line can be run.

    Args:
        path: The file.
        samples: How often a task is run whose row does not say it.
        repo_base: Before the `owner/name` of a row of the SWE-bench kind.
        look: Says what is wrong with a row beyond its form: raises ConfigError.

    Raises:
        ConfigError: it cannot be read, or lines of it cannot be run; names each with its number.
    """

    def __init__(
        self, path: Path, *, samples: int = 1, repo_base: str = REPO_BASE, look: Callable[[TaskRow], object]
    ) -> None:
        self.path = path
        self._repo_base = repo_base
        self.entries: list[Entry] = []
        faults: list[str] = []
        seen: dict[str, Entry] = {}
        try:
            if path.exists() and not path.is_file() and not path.is_dir():
                raise ConfigError(f"{path} is a pipe or a device: tasks are read again at their turn. Give a file.")
            for number, offset, line in _lines(path):
                try:
                    entry = self._entry(number, offset, line, samples, look)
                    first = seen.setdefault(directory_name(entry.id).casefold(), entry)
                    if first is not entry:
                        but = "" if first.id == entry.id else ", but for upper and lower case"
                        raise ConfigError(f"the id {entry.id!r} is that of line {first.line} too{but}")
                    self.entries.append(entry)
                except ConfigError as exc:
                    faults.append(f"line {number}: {exc}")
        except OSError as exc:
            raise ConfigError(f"{path} cannot be read: {exc.strerror}.") from exc
        if faults:
            raise ConfigError(_told(path, faults))
        if not self.entries:
            raise ConfigError(f"{path} has no tasks: it needs a JSON object a line, with `id` and `prompt`.")

    def turns(self) -> Iterator[Turn]:
        """Yield every run of every task, in the file's order."""
        for entry in self.entries:
            for sample in range(1, entry.samples + 1):
                yield Turn(entry, sample)

    def row(self, entry: Entry) -> TaskRow:
        """Return the task's row.

        Raises:
            ConfigError: the file was changed meanwhile.
        """
        try:
            with self.path.open("rb") as file:
                file.seek(entry.offset)
                line = file.read(entry.size_bytes)
        except OSError as exc:
            raise ConfigError(f"{self.path} cannot be read any more: {exc.strerror}.") from exc
        if _digest(line) != entry.digest:
            raise ConfigError(f"{self.path} was changed while it was worked on: line {entry.line} is another one.")
        return self._row(line)

    def _entry(self, number: int, offset: int, line: bytes, samples: int, look: Callable[[TaskRow], object]) -> Entry:
        row = self._row(line)
        look(row)
        has_columns = is_instance(_fields(line))
        return Entry(row.id, number, offset, len(line), row.samples or samples, has_columns, _digest(line))

    def _row(self, line: bytes) -> TaskRow:
        fields = _fields(line)
        if is_instance(fields):
            fields = from_instance(fields, self._repo_base)
        _check_texts(fields)
        try:
            return TaskRow.model_validate(fields)
        except ValidationError as exc:
            raise ConfigError("; ".join(_words(fault) for fault in exc.errors(include_url=False))) from exc


def _lines(path: Path) -> Iterator[tuple[int, int, bytes]]:
    """Yield number, offset and bytes of each line that is not blank."""
    offset = 0
    with path.open("rb") as file:
        for number, line in enumerate(iter(lambda: file.readline(MAX_LINE_BYTES + 1), b""), start=1):
            if len(line) > MAX_LINE_BYTES:
                raise ConfigError(f"{path}: line {number} is longer than {MAX_LINE_BYTES // 1024**2} MiB.")
            if line.strip():
                yield number, offset, line
            offset += len(line)


def _digest(line: bytes) -> bytes:
    return blake2b(line, digest_size=16).digest()


def _fields(line: bytes) -> dict[str, Any]:
    try:
        fields = json.loads(
            line.decode("utf-8-sig"), object_pairs_hook=_unlike, parse_float=_finite, parse_constant=_finite
        )
    except (ValueError, RecursionError) as exc:
        raise ConfigError(f"it is not JSON: {exc}") from exc
    if not isinstance(fields, dict):
        raise ConfigError("it is JSON, but not an object")
    return fields


def _unlike(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object's fields; which of two of one name is meant, nobody knows."""
    fields = dict(pairs)
    if len(fields) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ConfigError(f"{ascii(twice)[1:-1]}: it stands there twice")
    return fields


def _finite(text: str) -> float:
    """Return a number; Python's own NaN and Infinity are none in JSON, and no limit."""
    if not isfinite(number := float(text)):
        raise ValueError(f"{text} is no number")
    return number


def _check_texts(fields: dict[str, Any]) -> None:
    """Refuse half a surrogate pair, which JSON can hold and no file that comes of it."""
    for name, value in fields.items():
        try:
            json.dumps([name, value], ensure_ascii=False).encode()
        except UnicodeEncodeError as exc:
            raise ConfigError(f"{ascii(name)[1:-1]}: half a surrogate pair is no text") from exc


def _words(fault: Any) -> str:
    where = ".".join(str(part) for part in fault["loc"])
    match fault["type"]:
        case "extra_forbidden":
            return f"{where}: there is no such field; what is yours goes into `meta`"
        case "missing":
            return f"{where}: it is missing"
    words = str(fault["msg"]).removeprefix("Value error, ")
    return f"{where}: {words}" if where else words


def _told(path: Path, faults: list[str]) -> str:
    shown = faults[:SHOWN_FAULTS]
    if len(faults) > len(shown):
        shown.append(f"and {len(faults) - len(shown)} more")
    return f"{path}: nothing was run, for {len(faults)} line(s) cannot be:\n  " + "\n  ".join(shown)
