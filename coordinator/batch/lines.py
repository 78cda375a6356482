"""The results file: one line for each finished run, whole or not there: run → **lines** → rerun, summary, compare."""

import contextlib
import fcntl
import json
import os
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, JsonValue, ValidationError

from coordinator.endpoint.reply import Usage
from coordinator.errors import ConfigError, TranscriptError
from coordinator.session.event_fields import SessionStatus

RESULTS = "results.jsonl"
RETRIED = "retried.jsonl"
"""Lines of runs that were run again, and of those that were interrupted after they had cost something."""

Retry = Literal["failed", "infrastructure", "unsolved"]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", use_attribute_docstrings=True)


class CheckLine(_Part):
    """What the check said."""

    command: str
    exit_code: int | None
    """None where it did not end by itself."""
    passed: bool
    output: str
    """The end of what it printed, standard error last."""
    reward: float | None = None
    """`reward` of the JSON object in the last line that it printed."""
    timed_out: bool = False
    duration_ms: float = 0.0
    error: str | None = None
    """Why it could not be run to its end."""


class ErrorLine(_Part):
    """What gave way around the session, at its last try."""

    kind: Literal["infrastructure"] = "infrastructure"
    message: str
    tries: int


class ResultLine(_Part):
    """What one run of a task came to."""

    id: str
    sample: int = 1
    """Which run of the task, from 1."""
    status: SessionStatus
    stop_reason: str
    text: str = ""
    steps: int = 0
    calls: int = 0
    usage: Usage = Usage()
    cost: float | None = None
    """US dollars, all tries together; None where the model's prices are not known."""
    check: CheckLine | None = None
    error: ErrorLine | None = None
    """None where what the session came to is the task's own."""
    session_id: str = ""
    model: str = ""
    image: str = ""
    image_id: str = ""
    """Digest of the image that its box ran on."""
    seconds: float = 0.0
    finished_at: str = ""
    transcript: str | None = None
    """Relative to the batch's directory."""
    patch: str | None = None
    """Relative to the batch's directory; an empty file where nothing changed."""
    patch_bytes: int = 0
    notes: list[str] = []
    meta: dict[str, JsonValue] = {}

    @property
    def is_completed(self) -> bool:
        """The session came to its end, whatever the check said of it."""
        return self.status == "completed" and self.error is None

    @property
    def is_solved(self) -> bool:
        """The check passed, or there was none and the session completed."""
        return self.check.passed if self.check is not None else self.is_completed

    def is_to_retry(self, retry: Retry) -> bool:
        """Whether a rerun with `--retry` runs it again."""
        match retry:
            case "failed":
                return not self.is_completed
            case "infrastructure":
                return self.error is not None
            case "unsolved":
                return not self.is_solved


def read_lines(path: Path) -> Iterator[ResultLine]:
    """Yield the file's lines; nothing where there is no file.

    Raises:
        ConfigError: it cannot be read, or a line is not one of ours.
    """
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if not line.endswith(b"\n"):
                    # Torn by the end of its writer; the next batch removes it.
                    return
                try:
                    yield ResultLine.model_validate_json(line)
                except ValidationError as exc:
                    raise ConfigError(f"{path}, line {number}: it is no result of a task.") from exc
    except FileNotFoundError:
        return
    except OSError as exc:
        raise ConfigError(f"{path} cannot be read: {exc.strerror}.") from exc


def now() -> str:
    """Return the time as results have it."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


class Results:
    """A batch's directory, held by one process; `with` gives it back."""

    def __init__(self, directory: Path) -> None:
        """Take the directory, made if it is not there.

        Raises:
            ConfigError: it cannot be used, or another batch holds it.
        """
        self.directory = directory
        self.path = directory / RESULTS
        self._writing = threading.Lock()
        try:
            directory.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as exc:
            raise ConfigError(f"--out: {directory} cannot be used: {exc.strerror}.") from exc
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            for path in (self.path, directory / RETRIED):
                _mend(path)
            self._file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except BlockingIOError as exc:
            os.close(self._lock)
            raise ConfigError(f"--out: another batch writes to {directory} now.") from exc
        except OSError as exc:
            os.close(self._lock)
            raise ConfigError(f"--out: {self.path} cannot be written: {exc.strerror}.") from exc

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        os.close(self._file)
        os.close(self._lock)

    def append(self, line: ResultLine) -> None:
        """Keep a line, whole or not at all.

        Raises:
            TranscriptError: it cannot be written.
        """
        self._append(self._file, self.path, line.model_dump_json().encode() + b"\n")

    def append_aside(self, line: ResultLine) -> None:
        """Keep what a run cost that will be run again.

        Raises:
            TranscriptError: it cannot be written.
        """
        path = self.directory / RETRIED
        try:
            file = path.open("ab")
        except OSError as exc:
            raise TranscriptError(f"{path} cannot be written: {exc.strerror}.") from exc
        with file:
            self._append(file.fileno(), path, line.model_dump_json().encode() + b"\n")

    def spent_usd(self) -> float:
        """Return what all runs cost, also those that are run again: they are paid for again.

        Raises:
            ConfigError: a line is not one of ours.
        """
        paths = (self.path, self.directory / RETRIED)
        # A batch that was killed while it set lines aside has some of them in both.
        known = {line.model_dump_json(): line.cost or 0.0 for path in paths for line in read_lines(path)}
        return sum(known.values())

    def set_aside(self, wanted: Callable[[ResultLine], bool]) -> int:
        """Move lines out of the results, so that their tasks are run again; return how many.

        Raises:
            ConfigError: a line is not one of ours.
            TranscriptError: the file cannot be written.
        """
        part = self.path.with_name(f".{RESULTS}.part")
        moved = 0
        try:
            with part.open("wb") as kept, (self.directory / RETRIED).open("ab") as aside:
                for line in read_lines(self.path):
                    is_moved = wanted(line)
                    moved += is_moved
                    (aside if is_moved else kept).write(line.model_dump_json().encode() + b"\n")
                for file in (aside, kept):
                    file.flush()
                    os.fsync(file.fileno())
            if moved == 0:
                part.unlink()
                return 0
            part.replace(self.path)
            os.close(self._file)
            self._file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        except OSError as exc:
            raise TranscriptError(f"{self.path} cannot be written: {exc.strerror}.") from exc
        return moved

    def _append(self, descriptor: int, path: Path, content: bytes) -> None:
        # One at a time: what is cut off again must not be another one's line.
        with self._writing:
            before = os.fstat(descriptor).st_size
            try:
                written = os.write(descriptor, content)
                if written < len(content):
                    os.ftruncate(descriptor, before)
                    raise TranscriptError(f"{path} cannot be written: its disk is full.")
                os.fsync(descriptor)
            except OSError as exc:
                raise TranscriptError(f"{path} cannot be written: {exc.strerror}.") from exc


def _mend(path: Path) -> None:
    """Cut off a last line that its writer did not live to finish."""
    with contextlib.suppress(FileNotFoundError), path.open("rb+") as file:
        end = file.seek(0, os.SEEK_END)
        position = end
        while position > 0:
            start = max(0, position - 65_536)
            file.seek(start)
            newline = file.read(position - start).rfind(b"\n")
            if newline >= 0:
                file.truncate(start + newline + 1)
                return
            position = start
        file.truncate(0)


def write_whole(path: Path, value: object) -> None:
    """Write a JSON file for people, whole or not at all.

    Raises:
        TranscriptError: it cannot be written.
    """
    part = path.with_name(f".{path.name}.part")
    try:
        with part.open("w", encoding="utf-8") as file:
            json.dump(value, file, indent=2, ensure_ascii=False)
            file.write("\n")
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except OSError as exc:
        raise TranscriptError(f"{path} cannot be written: {exc.strerror}.") from exc
