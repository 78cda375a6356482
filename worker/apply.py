"""The kept result of a private copy, and putting it into the directory that was copied: changes → **apply** → user.

`<session>/result` holds `changes.json` and the new contents by digest, so the copy itself can go.
"""

import hashlib
import json
import os
import stat
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from worker.beneath import OPEN_DIRECTORY, Tree, git_mode, remove_tree, write_durably
from worker.changes import Change, ChangeKind, Changes, shown
from worker.errors import ResultFailed
from worker.placing import Placing

RESULT_VERSION = 1


class State(StrEnum):
    """How a path of a directory stands to a change."""

    OLD = "old"
    """As before the change, which can be made."""
    NEW = "new"
    """As after it: nothing to do."""
    CONFLICT = "conflict"
    """Neither."""


@dataclass(frozen=True)
class Applied:
    """What came of applying a result."""

    applied: tuple[str, ...] = ()
    """Paths that are now as in the copy, also those that were so already."""
    conflicts: tuple[str, ...] = ()
    """Paths that are neither as they were copied nor as in the copy: with any, nothing was written."""


def save_result(session_dir: Path, changes: Changes, work: Path) -> None:
    """Keep the changes and all new contents in `<session_dir>/result`, instead of an earlier result.

    Raises:
        ResultFailed: a content cannot be read or written; an earlier result may be gone, the work tree is not.
    """
    part, final = session_dir / "result.part", session_dir / "result"
    try:
        remove_tree(part)
        part.mkdir(mode=0o700)
        if os.geteuid() == 0:
            owner = session_dir.stat()
            os.chown(part, owner.st_uid, owner.st_gid)
        with Tree(work) as tree:
            for change in changes.items:
                if change.new_digest is not None and change.kind is not ChangeKind.MODE:
                    write_durably(part / change.new_digest, _verified(tree.chunks(change.path), change))
        record = {"v": RESULT_VERSION, **asdict(changes)}
        write_durably(part / "changes.json", [json.dumps(record).encode()])
        remove_tree(final)
        part.rename(final)
    except OSError as error:
        raise ResultFailed(
            f"The session's result cannot be kept in {final}: {error}. Free space and finish again."
        ) from error


def load_result(session_dir: Path) -> Changes | None:
    """Return the kept changes; None when no result was kept.

    Raises:
        ResultFailed: what was kept cannot be read or is not what `save_result` wrote.
    """
    path = session_dir / "result" / "changes.json"
    try:
        record = json.loads(path.read_bytes())
        if record["v"] != RESULT_VERSION:
            raise ResultFailed(f"{path} was written by another version of Sandhog (v{record['v']}).")
        return Changes(tuple(_change(item) for item in record["items"]), tuple(map(str, record["left_out"])))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ResultFailed(f"{path} cannot be read: {error!r}.") from error


def _change(item: dict[str, Any]) -> Change:
    change = Change(**{**item, "kind": ChangeKind(item["kind"])})
    if not all(part and part not in (".", "..") and part.lower() != ".git" for part in change.path.split("/")):
        raise ValueError(f"{change.path!r} is no path of a change")
    return change


def _verified(chunks: Iterable[bytes], change: Change) -> Iterator[bytes]:
    """Pass a content on, and fail at its end if it is not the change's new content."""
    digest = hashlib.sha256()
    for chunk in chunks:
        digest.update(chunk)
        yield chunk
    if digest.hexdigest() != change.new_digest:
        raise OSError(f"the content of {shown(change.path)} is not what it was")


def apply_result(session_dir: Path, directory: Path) -> Applied:
    """Put the kept result into a directory: all of it, or nothing where anything differs from what was copied.

    Applying again is fine, also after a killed attempt. Files keep their owner and permissions; a new one gets the
    owner of the directory it is in. No link in the directory is followed.

    Raises:
        ResultFailed: there is no kept result, or the directory cannot be read or written.
    """
    changes = load_result(session_dir)
    if changes is None:
        raise ResultFailed(f"{session_dir} holds no result: the session has not ended, or worked on a bound directory.")
    try:
        directory = directory.resolve(strict=True)
        with Tree(directory) as tree:
            judge = _Judge(tree, changes)
            states = {change: judge.state(change) for change in changes.items}
        conflicts = tuple(change.path for change, state in states.items() if state is State.CONFLICT)
        todo = [change for change, state in states.items() if state is State.OLD]
        if conflicts:
            return Applied(conflicts=conflicts)
        if todo:
            with Placing(session_dir / "result", directory) as placing:
                placing.put(todo)
    except (OSError, RuntimeError) as error:  # RuntimeError: `resolve` met a loop of links.
        raise ResultFailed(
            f"The result cannot be applied to {directory}: {error}. It is kept in {session_dir}; apply it again."
        ) from error
    return Applied(applied=tuple(change.path for change in changes.items))


class _Judge:
    """Tells how the paths of one directory stand to the changes of one result."""

    def __init__(self, tree: Tree, changes: Changes) -> None:
        self._tree = tree
        self._deleted = {change.path for change in changes.items if change.new_mode is None}
        self._directories: set[str] = set()
        for change in changes.items:
            if change.new_mode is not None:
                self._directories.update(_parents(change.path))

    def state(self, change: Change) -> State:
        """Return how a change's path stands to it.

        Raises:
            OSError: the path cannot be read.
        """
        status = self._tree.status(change.path)
        if status is None:
            return self._state_of_nothing(change)
        if stat.S_ISDIR(status.st_mode):
            return self._state_of_directory(change)
        mode = git_mode(status)
        if mode is None:
            return State.CONFLICT
        digest = self._tree.digest(change.path)
        if _is_like(mode, digest, change.new_mode, change.new_digest):
            must_turn = change.new_mode != change.old_mode and mode != change.new_mode
            return State.OLD if must_turn else State.NEW
        return State.OLD if _is_like(mode, digest, change.old_mode, change.old_digest) else State.CONFLICT

    def _state_of_nothing(self, change: Change) -> State:
        if change.new_mode is None:
            return State.NEW
        return State.OLD if change.old_mode is None and self._has_room(change.path) else State.CONFLICT

    def _state_of_directory(self, change: Change) -> State:
        if change.new_mode is None and change.path in self._directories:
            return State.NEW
        return State.OLD if change.old_mode is None and self._holds_only_deleted(change.path) else State.CONFLICT

    def _has_room(self, path: str) -> bool:
        """Say whether each parent is a directory, is missing, or makes way."""
        for parent in _parents(path):
            status = self._tree.status(parent)
            if status is None or not stat.S_ISDIR(status.st_mode):
                return status is None or parent in self._deleted
        return True

    def _holds_only_deleted(self, path: str) -> bool:
        """Say whether a directory holds nothing but files that make way."""
        parent, name = self._tree.parent(path)
        descriptor = os.open(name, OPEN_DIRECTORY, dir_fd=parent)
        try:
            with os.scandir(descriptor) as entries:
                found = [(f"{path}/{entry.name}", entry.is_dir(follow_symlinks=False)) for entry in entries]
        finally:
            os.close(descriptor)
        return all(
            self._holds_only_deleted(inner) if is_directory else inner in self._deleted for inner, is_directory in found
        )


def _parents(path: str) -> list[str]:
    """Return the directories above a path, the outermost first."""
    parts = path.split("/")
    return ["/".join(parts[:count]) for count in range(1, len(parts))]


def _is_like(mode: int, digest: str, change_mode: int | None, change_digest: str | None) -> bool:
    return change_mode is not None and stat.S_IFMT(mode) == stat.S_IFMT(change_mode) and digest == change_digest
