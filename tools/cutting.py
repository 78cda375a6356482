"""Cutting: the one place where a text is shortened to its head and tail, at line and character boundaries.

A cut is never a cliff: a text just above the limit loses little more than the surplus.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from pydantic import JsonValue

HEAD_SHARE = 0.5
"""Part of the room that goes to the head; ends hold errors and summaries at least as often as beginnings."""
LINE_SLACK = 0.1
"""Part of a piece that may be given up to end it at a line boundary; a longer line is cut inside."""
SHOWN_ITEMS = 8
SHOWN_DEPTH = 3


@dataclass(frozen=True)
class Cut:
    """A text within its limit, and how much of the whole it shows."""

    text: str
    shown_bytes: int
    """Bytes of the original that `text` holds; less than `total_bytes` exactly when something was left out."""
    total_bytes: int
    shown_lines: int
    """Lines of which at least a part is shown."""
    total_lines: int

    @property
    def is_cut(self) -> bool:
        """Whether something was left out."""
        return self.shown_bytes < self.total_bytes


def cut_text(text: str, limit_bytes: int, *, hint: str = "") -> Cut:
    """Return the text with at most `limit_bytes` bytes of UTF-8: as it is, or its head, a line about the gap, its tail.

    Args:
        text: What to shorten.
        limit_bytes: Bound of the result, the line about the gap included.
        hint: Ends the line about the gap: where all of it is.
    """
    raw = text.encode()
    lines = count_lines(raw)
    if len(raw) <= limit_bytes:
        return Cut(text, len(raw), len(raw), lines, lines)
    # The widest the line can get, so that filling it in never breaks the limit.
    room = limit_bytes - len(_gap(len(raw), len(raw), lines, lines, hint))
    if room <= 0:
        head, tail, gap = _head(raw, max(0, limit_bytes)), b"", b""
    else:
        head = _head(raw, int(room * HEAD_SHARE))
        tail = _tail(raw, room - len(head))
        hidden = len(raw) - len(head) - len(tail)
        gap = _gap(hidden, len(raw), count_lines(raw[len(head) : len(raw) - len(tail)]), lines, hint)
    if head.endswith(b"\n"):
        gap = gap.removeprefix(b"\n")
    shown_lines = count_lines(head) + count_lines(tail)
    whole = (head + gap + tail).decode()
    return Cut(whole, len(head) + len(tail), len(raw), min(shown_lines, lines), lines)


def count_lines(raw: bytes) -> int:
    r"""Return how many lines the bytes hold; only \n ends a line, a last line without one counts."""
    return raw.count(b"\n") + (1 if raw and not raw.endswith(b"\n") else 0)


def cut_line(line: str, limit_chars: int) -> str:
    """Return a line with at most `limit_chars` characters of its own, and a note if it was longer."""
    if len(line) <= limit_chars:
        return line
    return f"{line[:limit_chars]} [… line cut: {len(line)} characters in all]"


def shorten_value(value: object, limit_chars: int = 200, depth: int = SHOWN_DEPTH) -> JsonValue:
    """Return a JSON value small enough to echo: long texts, lists and objects end in a note of what is missing."""
    match value:
        case None | bool() | int() | float():
            return value
        case str():
            if len(value) <= limit_chars:
                return value
            return f"{value[:limit_chars]}… ({len(value)} characters)"
        case Mapping() if depth > 0:
            kept: dict[str, JsonValue] = {
                str(shorten_value(str(key), limit_chars)): shorten_value(entry, limit_chars, depth - 1)
                for key, entry in list(value.items())[:SHOWN_ITEMS]
            }
            return kept if len(value) <= SHOWN_ITEMS else {**kept, "…": f"{len(value) - SHOWN_ITEMS} more"}
        case list() | tuple() if depth > 0:
            items: list[JsonValue] = [shorten_value(entry, limit_chars, depth - 1) for entry in value[:SHOWN_ITEMS]]
            return items if len(value) <= SHOWN_ITEMS else [*items, f"… {len(value) - SHOWN_ITEMS} more"]
        case _:
            return shorten_value(str(value), limit_chars)


def _gap(hidden_bytes: int, total_bytes: int, hidden_lines: int, total_lines: int, hint: str) -> bytes:
    left_out = f"{hidden_bytes} of {total_bytes} bytes left out here, about {hidden_lines} of {total_lines} lines"
    return f"\n[… {left_out}{hint} …]\n".encode()


def _head(raw: bytes, limit_bytes: int) -> bytes:
    piece = raw[:limit_bytes].decode(errors="ignore").encode()
    end = piece.rfind(b"\n") + 1
    return piece[:end] if len(piece) - end <= limit_bytes * LINE_SLACK and end else piece


def _tail(raw: bytes, limit_bytes: int) -> bytes:
    piece = raw[len(raw) - limit_bytes :].decode(errors="ignore").encode()
    start = piece.find(b"\n") + 1
    return piece[start:] if start and start <= limit_bytes * LINE_SLACK else piece
