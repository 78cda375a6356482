"""A patch, line by line, with what each line is: patch → **diff** → template."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

MAX_LINES = 5_000
MAX_LINE_CHARS = 2_000

Kind = Literal["file", "meta", "hunk", "add", "del", "same"]


@dataclass(frozen=True)
class DiffLine:
    """One line of a patch."""

    kind: Kind
    text: str


@dataclass(frozen=True)
class Diff:
    """As much of a patch as is shown."""

    lines: list[DiffLine]
    files: int
    added: int
    removed: int
    is_cut: bool
    """There is more; the counts are of all of it."""


def of_patch(content: Iterable[bytes]) -> Diff:
    """Return a patch as git writes them, given by its lines, with these told apart."""
    lines: list[DiffLine] = []
    counts = {"file": 0, "add": 0, "del": 0}
    in_head, total = True, 0
    for line in content:
        raw = line.decode("utf-8", "replace").removesuffix("\n")
        kind = _kind(raw, in_head=in_head)
        in_head = kind == "file" or (in_head and kind != "hunk")
        total += 1
        if kind in counts:
            counts[kind] += 1
        if len(lines) < MAX_LINES:
            cut = raw if len(raw) <= MAX_LINE_CHARS else raw[:MAX_LINE_CHARS] + f" … {len(raw):,} characters"
            lines.append(DiffLine(kind, cut))
    return Diff(lines, counts["file"], counts["add"], counts["del"], is_cut=total > len(lines))


def _kind(line: str, *, in_head: bool) -> Kind:
    if line.startswith("diff --git "):
        return "file"
    if line.startswith("@@"):
        return "hunk"
    if in_head:
        return "meta"
    return {"+": "add", "-": "del", "\\": "meta"}.get(line[:1], "same")  # type: ignore[return-value]
