"""What differs between a private copy and what it was copied from: copy → box → **changes** → patch, apply.

The work tree was written by a model: nothing in it is followed or run, git never looks at it, and whatever is too
large, too deep or no file is left out by name instead of being guessed at.
"""

import os
import re
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from worker.beneath import LINK_MODE, Tree, git_mode
from worker.listing import MAX_ENTRIES, Listing, list_tree, not_ignored

MAX_FILE_BYTES = 20_000_000
"""A larger file, before or after, is left out."""
MAX_TOTAL_BYTES = 256_000_000
"""Old and new content of all changes together; changes beyond it are left out."""
MAX_CHANGES = 10_000
MAX_NAMED = 100
"""Paths named in `Changes.left_out`."""

_UNSEEN = re.compile("[\u200c-\u200f\u202a-\u202e\u206a-\u206f\ufeff]")
_GIT = re.compile(r"(?:\A|[/\\])(?:\.git|git~1)[ .]*(?:\Z|[/\\:])", re.IGNORECASE | re.ASCII)
_MODULES = re.compile(
    r"(?:\A|[/\\])"
    r"(?:\.gitmodules/|(?:\.gitmodules|gitmod~[1-4]|(?:g(?:i(?:7(?:e(?:ba?)?)?)?)?)?~[1-9][0-9]*)[ .]*(?:\Z|:))",
    re.IGNORECASE | re.ASCII,
)
"""Paths that `git apply` refuses, and with one of them the whole patch: elsewhere they are `.git` or, as a link that
git would follow, `.gitmodules` under another name. Source: `verify_path` and `is_ntfs_dotgit` in git, and for the
characters that a file system does not see `next_hfs_char`.
"""
_CACHE_DIRECTORIES = frozenset({"__pycache__", ".pytest_cache"})


class ChangeKind(StrEnum):
    """What happened to a path."""

    ADDED = "added"
    MODIFIED = "modified"
    """Other content, or a link where a file was, or the reverse."""
    DELETED = "deleted"
    MODE = "mode"
    """Same content, but executable now or no longer."""


@dataclass(frozen=True)
class Change:
    """One file or link that differs."""

    path: str
    """Relative, with `/`; bytes that are not UTF-8 as surrogate escapes."""
    kind: ChangeKind
    old_digest: str | None
    """SHA-256 (hex) of the content, of a link's target; None where there was nothing."""
    new_digest: str | None
    old_mode: int | None
    """0o100644, 0o100755 or 0o120000; None where there was nothing."""
    new_mode: int | None


@dataclass(frozen=True)
class Changes:
    """Everything that differs."""

    items: tuple[Change, ...]
    """Ordered by path."""
    left_out: tuple[str, ...] = ()
    """In words: what differs or may differ and is not among the items, and why."""


class _LeftOut:
    """Names what is left out, up to a bound."""

    def __init__(self) -> None:
        self._said: list[str] = []
        self._unsaid = 0

    def add(self, path: str, why: str) -> None:
        if len(self._said) < MAX_NAMED:
            self._said.append(f"{shown(path)}: {why}")
        else:
            self._unsaid += 1

    def said(self) -> tuple[str, ...]:
        return (*self._said, *([f"and {self._unsaid} more"] if self._unsaid else []))


def shown(path: str) -> str:
    """Return a path for people: on one line, no control characters, at most 200 characters."""
    text = os.fsencode(path).decode(errors="backslashreplace")
    text = "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text)
    return text if len(text) <= 200 else f"{text[:200]}…"


def changes_between(base: Path, work: Path) -> Changes:
    """Return what must change in `base` to make it `work`.

    Left out: `.git` at any level, empty directories, added or changed Python caches, and added files that the work
    tree's `.gitignore` files name.

    Raises:
        OSError: a tree is missing or its disk fails.
    """
    left_out = _LeftOut()
    old, new = list_tree(base), list_tree(work)
    for path, why in new.unseen.items():
        left_out.add(path, why)
    if not (old.complete and new.complete):
        left_out.add(".", f"has more than {MAX_ENTRIES} entries, the rest was not looked at")
    kept, why_none = not_ignored(work, new, new.entries.keys() - old.entries.keys())
    if why_none:
        left_out.add(".gitignore", f"{why_none}, so no added file counts as ignored")
    with Tree(base) as old_tree, Tree(work) as new_tree:
        items = _compare(old_tree, new_tree, old, new, kept, left_out)
    return Changes(items=tuple(items), left_out=left_out.said())


def _compare(
    old_tree: Tree, new_tree: Tree, old: Listing, new: Listing, kept: set[str] | None, left_out: _LeftOut
) -> list[Change]:
    items: list[Change] = []
    total_bytes = 0
    for path in sorted(old.entries.keys() | new.entries.keys(), key=os.fsencode):
        before, after = old.entries.get(path), new.entries.get(path)
        if _is_passed_over(path, old, new, kept):
            continue
        try:
            if before and after and _is_same(old_tree, new_tree, path, before, after):
                continue
            total_bytes += _size(before) + _size(after)
            why_not = _why_not(path, before, after, total_bytes, len(items))
            if why_not:
                total_bytes -= _size(before) + _size(after)
                left_out.add(path, why_not)
            else:
                items.append(_change(path, before, after, old_tree, new_tree))
        except PermissionError:
            left_out.add(path, "cannot be read")
    return items


def _is_passed_over(path: str, old: Listing, new: Listing, kept: set[str] | None) -> bool:
    if path not in new.entries:
        return new.may_hold(path)
    if path not in old.entries and (old.may_hold(path) or (kept is not None and path not in kept)):
        return True
    return path.endswith(".pyc") or not _CACHE_DIRECTORIES.isdisjoint(path.split("/"))


def _why_not(
    path: str, before: os.stat_result | None, after: os.stat_result | None, total_bytes: int, count: int
) -> str:
    if _is_refused_by_git(path, is_link=any(one is not None and git_mode(one) == LINK_MODE for one in (before, after))):
        return "git takes no such path"
    if max(_size(before), _size(after)) > MAX_FILE_BYTES:
        return f"is larger than {MAX_FILE_BYTES // 1_000_000} MB"
    if count >= MAX_CHANGES:
        return f"more than {MAX_CHANGES} files changed"
    if total_bytes > MAX_TOTAL_BYTES:
        return f"the changes are larger than {MAX_TOTAL_BYTES // 1_000_000} MB"
    return ""


def _is_refused_by_git(path: str, *, is_link: bool) -> bool:
    seen = _UNSEEN.sub("", path)
    return _GIT.search(seen) is not None or (is_link and _MODULES.search(seen) is not None)


def _change(
    path: str, before: os.stat_result | None, after: os.stat_result | None, old_tree: Tree, new_tree: Tree
) -> Change:
    old_digest = old_tree.digest(path) if before else None
    new_digest = new_tree.digest(path) if after else None
    old_mode, new_mode = git_mode(before) if before else None, git_mode(after) if after else None
    if before is None:
        kind = ChangeKind.ADDED
    elif after is None:
        kind = ChangeKind.DELETED
    else:
        same = old_digest == new_digest and LINK_MODE not in (old_mode, new_mode)
        kind = ChangeKind.MODE if same else ChangeKind.MODIFIED
    return Change(path, kind, old_digest, new_digest, old_mode, new_mode)


def _is_same(old_tree: Tree, new_tree: Tree, path: str, before: os.stat_result, after: os.stat_result) -> bool:
    if git_mode(before) != git_mode(after) or before.st_size != after.st_size:
        return False
    return all(was == now for was, now in zip(old_tree.chunks(path), new_tree.chunks(path), strict=True))


def _size(status: os.stat_result | None) -> int:
    return status.st_size if status else 0
