"""Changes as a patch that `git apply` takes, and `patch -p1` as far as it is text: changes → **patch** → user.

Content goes through byte for byte. Source: "Generating patch text with -p" in git-diff(1); apply.c and diff.c of git
for the binary form.
"""

import base64
import hashlib
import os
import stat
import zlib
from collections.abc import Iterator
from pathlib import Path

from worker.beneath import LINK_MODE, Tree
from worker.changes import Change, Changes
from worker.linediff import Effort, hunks, split_lines

_NO_BLOB = "0" * 40
_BINARY_LOOK_BYTES = 8_000
_LINE_BYTES = 52
_BLOCK_BYTES = _LINE_BYTES * 4_096
_ESCAPES = {7: "a", 8: "b", 9: "t", 10: "n", 11: "v", 12: "f", 13: "r", 34: '"', 92: "\\"}


def render(changes: Changes, base: Path, work: Path) -> bytes:
    """Return all changes as one patch; b"" when there are none.

    Raises:
        OSError: a changed file cannot be read.
    """
    return b"".join(pieces(changes, base, work))


def pieces(changes: Changes, base: Path, work: Path) -> Iterator[bytes]:
    """Yield the patch of one change after the other, for a patch that should not be in memory as a whole.

    Raises:
        OSError: a changed file cannot be read.
    """
    effort = Effort()
    with Tree(base) as old_tree, Tree(work) as new_tree:
        for change in changes.items:
            old = old_tree.read(change.path) if change.old_mode is not None else None
            new = new_tree.read(change.path) if change.new_mode is not None else None
            if old is not None and new is not None and _is_other_type(change):
                yield _file_patch(change.path, old, change.old_mode, None, None, effort)
                yield _file_patch(change.path, None, None, new, change.new_mode, effort)
            else:
                yield _file_patch(change.path, old, change.old_mode, new, change.new_mode, effort)


def _is_other_type(change: Change) -> bool:
    return stat.S_IFMT(change.old_mode or 0) != stat.S_IFMT(change.new_mode or 0)


def _file_patch(
    path: str, old: bytes | None, old_mode: int | None, new: bytes | None, new_mode: int | None, effort: Effort
) -> bytes:
    old_name, new_name = quoted(f"a/{path}"), quoted(f"b/{path}")
    head = [f"diff --git {old_name} {new_name}"]
    if old is None:
        head.append(f"new file mode {new_mode:o}")
    elif new is None:
        head.append(f"deleted file mode {old_mode:o}")
    elif old_mode != new_mode:
        head += [f"old mode {old_mode:o}", f"new mode {new_mode:o}"]
    body = b""
    if old != new:
        same_mode = f" {new_mode:o}" if old_mode == new_mode else ""
        head.append(f"index {_blob(old)}..{_blob(new)}{same_mode}")
        before, after = old or b"", new or b""
        if LINK_MODE not in (old_mode, new_mode) and (_is_binary(before) or _is_binary(after)):
            body = b"GIT binary patch\n" + _literal(after) + _literal(before)
        elif before != after:
            head.append(f"--- {_with_tab(old_name) if old is not None else '/dev/null'}")
            head.append(f"+++ {_with_tab(new_name) if new is not None else '/dev/null'}")
            body = b"".join(hunks(split_lines(before), split_lines(after), effort))
    return b"".join(os.fsencode(line) + b"\n" for line in head) + body


def quoted(name: str) -> str:
    """Return a path as git writes it: as it is, or in quotes with C escapes where it holds anything but plain ASCII."""
    raw = os.fsencode(name)
    if all(0x20 <= byte < 0x7F and byte not in b'"\\' for byte in raw):
        return name
    return '"' + "".join(_escaped(byte) for byte in raw) + '"'


def _escaped(byte: int) -> str:
    if byte in _ESCAPES:
        return "\\" + _ESCAPES[byte]
    return chr(byte) if 0x20 <= byte < 0x7F else f"\\{byte:03o}"


def _with_tab(name: str) -> str:
    # A tab after a name with spaces keeps `patch` from taking the rest for a date.
    return f"{name}\t" if " " in name else name


def _blob(content: bytes | None) -> str:
    if content is None:
        return _NO_BLOB
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


def _is_binary(content: bytes) -> bool:
    return b"\0" in content[:_BINARY_LOOK_BYTES]


def _literal(content: bytes) -> bytes:
    """Return a content in git's binary form: deflated, in base 85, each line led by a letter for its length."""
    packed = zlib.compress(content)
    lines = [b"literal %d\n" % len(content)]
    for start in range(0, len(packed), _BLOCK_BYTES):
        block = packed[start : start + _BLOCK_BYTES]
        letters = base64.b85encode(block, pad=True)
        width = _LINE_BYTES // 4 * 5
        for number, at in enumerate(range(0, len(letters), width)):
            size = min(_LINE_BYTES, len(block) - number * _LINE_BYTES)
            lead = ord("A") + size - 1 if size <= 26 else ord("a") + size - 27
            lines.append(b"%c%b\n" % (lead, letters[at : at + width]))
    return b"".join(lines) + b"\n"
