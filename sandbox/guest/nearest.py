"""Nearest: where in a file is the text that an edit most likely meant? In words, with bounded work."""

from __future__ import annotations

LOOKED_BYTES = 1024 * 1024
LOOKED_LINES = 50_000
LINES_OF_EDIT = 100
PLACES = 20
"""So many occurrences of one line are tried as the place."""
SHOWN_BYTES = 160
LEAST_LETTERS = 3
"""Shorter lines say nothing of a place."""


def nearest(content: bytes, old: bytes) -> str:
    """What the nearest place of the file holds instead of the old text, "" if none is near.

    Looks at the first megabyte of the file only, and takes lines as equal that differ in blanks at their ends.
    """
    lines = content[:LOOKED_BYTES].split(b"\n", LOOKED_LINES)[:LOOKED_LINES]
    bare = [line.strip() for line in lines]
    wanted = [line.strip() for line in old.split(b"\n", LINES_OF_EDIT)[:LINES_OF_EDIT]]
    start = _best_start(bare, wanted)
    if start is not None:
        return _difference(lines, bare, old, wanted, start)
    number = _most_alike(bare, max(wanted, key=len))
    return "" if number is None else f"the nearest is line {number + 1}: {_shown(lines[number])}"


def _best_start(bare: list[bytes], wanted: list[bytes]) -> int | None:
    """The line at which the most of the wanted lines would stand where the file has them."""
    telling = [(at, line) for at, line in enumerate(wanted) if len(line) >= LEAST_LETTERS]
    places: dict[bytes, list[int]] = {line: [] for _, line in telling}
    for number, line in enumerate(bare):
        found = places.get(line)
        if found is not None and len(found) < PLACES:
            found.append(number)
    starts = {number - at for at, line in telling for number in places[line]}
    if not starts:
        return None
    return max(starts, key=lambda start: (_agreement(bare, wanted, start), -start))


def _agreement(bare: list[bytes], wanted: list[bytes], start: int) -> int:
    return sum(bare[start + at] == line for at, line in enumerate(wanted) if 0 <= start + at < len(bare))


def _difference(lines: list[bytes], bare: list[bytes], old: bytes, wanted: list[bytes], start: int) -> str:
    for at, line in enumerate(wanted):
        number = start + at
        if not 0 <= number < len(lines):
            return f"the nearest begins at line {max(start, 0) + 1}, but the file has no such lines around it"
        if bare[number] != line:
            asked = _shown(old.split(b"\n", at + 1)[at])
            return f"the nearest begins at line {start + 1}; line {number + 1} is {_shown(lines[number])}, not {asked}"
    return f"lines {start + 1} to {start + len(wanted)} would match but for blanks at the ends of lines"


def _most_alike(bare: list[bytes], wanted: bytes) -> int | None:
    """The line that begins and ends like the wanted one the most; None if none does by more than half."""
    wanted = wanted[:SHOWN_BYTES]
    best, most = None, max(LEAST_LETTERS, len(wanted) * 6 // 10)
    for number, line in enumerate(bare):
        if len(line) > most:
            line = line[: 2 * SHOWN_BYTES]
            first = _common(line, wanted)
            letters = first + _common(line[first:][::-1], wanted[first:][::-1])
            if letters > most:
                best, most = number, letters
    return best


def _common(one: bytes, other: bytes) -> int:
    """How many letters both begin with."""
    count = 0
    for left, right in zip(one, other):  # noqa: B905
        if left != right:
            break
        count += 1
    return count


def _shown(line: bytes) -> str:
    shown = line.rstrip(b"\r")
    return f"`{shown[:SHOWN_BYTES].decode('utf-8', 'replace')}{'…' if len(shown) > SHOWN_BYTES else ''}`"
