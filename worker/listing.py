"""What files a tree holds, and which of them its `.gitignore` files do not name: **listing** → changes."""

import os
import shutil
import subprocess
import sys
from collections.abc import Set
from dataclasses import dataclass, field
from pathlib import Path

from worker.beneath import LINK_MODE, OPEN_DIRECTORY, git_mode

MAX_ENTRIES = 1_000_000
"""Entries looked at in one tree; beyond it nothing counts as added or deleted."""
MAX_DEPTH = 200
MAX_IGNORE_FILE_BYTES = 256_000
IGNORE_TIMEOUT_S = 60.0


@dataclass
class Listing:
    """The files and links of a tree, without everything called `.git`."""

    entries: dict[str, os.stat_result] = field(default_factory=dict)
    """Relative path → its own status."""
    unseen: dict[str, str] = field(default_factory=dict)
    """Paths at which something stands that is no file, link or readable directory → what it is."""
    complete: bool = True
    """False when there were more than `MAX_ENTRIES`."""

    def may_hold(self, path: str) -> bool:
        """Say whether a path that is no entry may exist all the same: at or below something not looked into."""
        if not self.complete:
            return True
        while path:
            if path in self.unseen:
                return True
            path = path.rpartition("/")[0]
        return False


def list_tree(root: Path) -> Listing:
    """Return the tree's listing. No link is followed.

    Raises:
        OSError: the root is missing, or its disk fails.
    """
    listing = Listing()
    descriptor = os.open(root, OPEN_DIRECTORY)
    try:
        _list_directory(descriptor, "", 0, listing)
    finally:
        os.close(descriptor)
    return listing


def _list_directory(descriptor: int, prefix: str, depth: int, listing: Listing) -> None:
    with os.scandir(descriptor) as found:
        # On a file system without case, .GIT is .git.
        entries = [entry for entry in found if entry.name.lower() != ".git"]
    for entry in entries:
        path = prefix + entry.name
        if len(listing.entries) + len(listing.unseen) >= MAX_ENTRIES:
            listing.complete = False
            return
        if not entry.is_dir(follow_symlinks=False):
            status = os.stat(entry.name, dir_fd=descriptor, follow_symlinks=False)
            if git_mode(status) is None:
                listing.unseen[path] = "is a socket, FIFO or device"
            else:
                listing.entries[path] = status
        elif depth == MAX_DEPTH:
            listing.unseen[path] = f"is nested deeper than {MAX_DEPTH} directories"
        else:
            _list_inner(descriptor, entry.name, path, depth, listing)


def _list_inner(parent: int, name: str, path: str, depth: int, listing: Listing) -> None:
    try:
        inner = os.open(name, OPEN_DIRECTORY, dir_fd=parent)
    except PermissionError:
        listing.unseen[path] = "cannot be read"
        return
    try:
        _list_directory(inner, f"{path}/", depth + 1, listing)
    finally:
        os.close(inner)


def not_ignored(work: Path, listing: Listing, added: Set[str]) -> tuple[set[str] | None, str]:
    """Return the tree's paths that no `.gitignore` in it names, and why they cannot be told ("" when they can).

    The paths are None when they cannot be told, or when no file was added and nobody needs them. Links count as not
    ignored.
    """
    files = {path for path in added if git_mode(listing.entries[path]) != LINK_MODE}
    if not files:
        return None, ""
    # ripgrep opens whatever is called .gitignore: a FIFO, or a link out of the tree, must not be.
    odd = [path for path in listing.unseen if _is_ignore_file(path)]
    odd += [path for path, status in listing.entries.items() if _is_ignore_file(path) and not _is_plain(status)]
    if odd:
        return None, f"{len(odd)} of them are no plain small files"
    listed = _listed_by_ripgrep(work)
    if listed is None:
        return None, "ripgrep could not read them"
    return listed | (added - files), ""


def _is_ignore_file(path: str) -> bool:
    return path.rpartition("/")[2] == ".gitignore"


def _is_plain(status: os.stat_result) -> bool:
    return git_mode(status) != LINK_MODE and status.st_size <= MAX_IGNORE_FILE_BYTES


def _listed_by_ripgrep(work: Path) -> set[str] | None:
    beside = Path(sys.executable).with_name("rg")
    program = str(beside) if beside.exists() else shutil.which("rg")
    if program is None:
        return None
    flags = ["--no-config", "--files", "--hidden", "--no-require-git", "--no-messages", "-0"]
    rules = ["--no-ignore-dot", "--no-ignore-exclude", "--no-ignore-global", "--no-ignore-parent"]
    try:
        done = subprocess.run(
            [program, *flags, *rules, "-g", "!.git", "-g", "!__pycache__"],
            cwd=work,
            env={},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=IGNORE_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return None
    if done.returncode > 1 and not done.stdout:
        return None
    return {os.fsdecode(name) for name in done.stdout.split(b"\0") if name}
