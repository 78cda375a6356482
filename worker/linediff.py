"""Which lines of a file changed: the shortest edit script (Myers), within a bound on the work.

Source: E. W. Myers, "An O(ND) Difference Algorithm and Its Variations", 1986.
"""

from collections.abc import Sequence
from dataclasses import dataclass

CONTEXT_LINES = 3
MAX_EDITS = 1_500
"""Lines removed and added by one file's script; beyond it the differing middle is replaced as a whole."""


@dataclass
class Effort:
    """How many steps may still be spent; shared by the files of one patch, so that many bad ones stay bounded."""

    steps: int = 20_000_000


@dataclass(frozen=True)
class Span:
    """Old lines [old_start, old_end) become new lines [new_start, new_end); lines count from 0."""

    old_start: int
    old_end: int
    new_start: int
    new_end: int


def split_lines(content: bytes) -> list[bytes]:
    """Return the lines with their ends; only a line feed ends a line, and the last one may lack it."""
    lines = content.split(b"\n")
    last = lines.pop()
    return [line + b"\n" for line in lines] + ([last] if last else [])


def changed_spans(old: Sequence[bytes], new: Sequence[bytes], effort: Effort) -> list[Span]:
    """Return the spans that differ, in order, none touching the next."""
    start = 0
    shorter = min(len(old), len(new))
    while start < shorter and old[start] == new[start]:
        start += 1
    end = 0
    while end < shorter - start and old[-1 - end] == new[-1 - end]:
        end += 1
    middle_old, middle_new = old[start : len(old) - end], new[start : len(new) - end]
    if not middle_old and not middle_new:
        return []
    spans = _shortest(middle_old, middle_new, effort) if middle_old and middle_new else None
    if spans is None:
        spans = [Span(0, len(middle_old), 0, len(middle_new))]
    return [Span(s.old_start + start, s.old_end + start, s.new_start + start, s.new_end + start) for s in spans]


def _shortest(old: Sequence[bytes], new: Sequence[bytes], effort: Effort) -> list[Span] | None:
    """Return the spans of a shortest script; None when it is longer than the bounds allow."""
    numbers: dict[bytes, int] = {}
    a = [numbers.setdefault(line, len(numbers)) for line in old]
    b = [numbers.setdefault(line, len(numbers)) for line in new]
    # furthest[k] is how far in `a` the best path on diagonal k (place in a minus place in b) has come.
    furthest = {1: 0}
    rounds: list[dict[int, int]] = []
    for edits in range(min(MAX_EDITS, len(a) + len(b)) + 1):
        effort.steps -= edits + 1
        if effort.steps < 0:
            return None
        reached: dict[int, int] = {}
        for k in range(-edits, edits + 1, 2):
            down = k == -edits or (k != edits and furthest[k - 1] < furthest[k + 1])
            x = furthest[k + 1] if down else furthest[k - 1] + 1
            y = x - k
            while x < len(a) and y < len(b) and a[x] == b[y]:
                x, y = x + 1, y + 1
                effort.steps -= 1
            reached[k] = x
            if x >= len(a) and y >= len(b):
                return _walk_back(rounds, len(a), len(b))
        rounds.append(reached)
        furthest = reached
    return None


def _walk_back(rounds: list[dict[int, int]], x: int, y: int) -> list[Span]:
    """Return the spans of the path that ended at (x, y), read from its end."""
    spans: list[Span] = []
    for edits in range(len(rounds), 0, -1):
        furthest, k = rounds[edits - 1], x - y
        down = k == -edits or (k != edits and furthest[k - 1] < furthest[k + 1])
        from_k = k + 1 if down else k - 1
        from_x = furthest[from_k]
        from_y = from_x - from_k
        to_x, to_y = (from_x, from_y + 1) if down else (from_x + 1, from_y)
        if spans and spans[-1].old_start == to_x and spans[-1].new_start == to_y:
            spans[-1] = Span(from_x, spans[-1].old_end, from_y, spans[-1].new_end)
        else:
            spans.append(Span(from_x, to_x, from_y, to_y))
        x, y = from_x, from_y
    return spans[::-1]


def hunks(old: Sequence[bytes], new: Sequence[bytes], effort: Effort) -> list[bytes]:
    """Return the hunks of a unified diff, each with its header."""
    groups: list[list[Span]] = []
    for span in changed_spans(old, new, effort):
        if groups and span.old_start - groups[-1][-1].old_end <= 2 * CONTEXT_LINES:
            groups[-1].append(span)
        else:
            groups.append([span])
    return [_hunk(old, new, group) for group in groups]


def _hunk(old: Sequence[bytes], new: Sequence[bytes], spans: list[Span]) -> bytes:
    before = min(CONTEXT_LINES, spans[0].old_start)
    after = min(CONTEXT_LINES, len(old) - spans[-1].old_end)
    old_start, old_end = spans[0].old_start - before, spans[-1].old_end + after
    new_start, new_end = spans[0].new_start - before, spans[-1].new_end + after
    lines = [b"@@ -%b +%b @@\n" % (_range(old_start, old_end), _range(new_start, new_end))]
    position = old_start
    for span in spans:
        lines += [_line(b" ", line) for line in old[position : span.old_start]]
        lines += [_line(b"-", line) for line in old[span.old_start : span.old_end]]
        lines += [_line(b"+", line) for line in new[span.new_start : span.new_end]]
        position = span.old_end
    lines += [_line(b" ", line) for line in old[position:old_end]]
    return b"".join(lines)


def _range(start: int, end: int) -> bytes:
    # An empty range names the line before it; a range of one line needs no count.
    return b"%d" % end if end - start == 1 else b"%d,%d" % (start + 1 if end > start else start, end - start)


def _line(sign: bytes, line: bytes) -> bytes:
    return sign + line if line.endswith(b"\n") else sign + line + b"\n\\ No newline at end of file\n"
