"""Printed: what a command wrote, as text for the model; a gap is named, characters are never split."""

import codecs
from signal import Signals
from typing import NamedTuple

from sandbox.requests import Capture


class Printed(NamedTuple):
    """A stream as text."""

    text: str
    is_binary: bool
    """Some of it is no text and was replaced."""


def printed(capture: Capture, where: str = "") -> Printed:
    """Return a stream's text, its gap named; characters torn at the gap are left out, not replaced.

    Args:
        capture: What was kept of the stream.
        where: Ends the line about the gap: where all of it is.
    """
    is_cut = capture.dropped_bytes > 0
    head, head_is_binary = decoded(capture.head, ends_whole=not is_cut)
    if not is_cut:
        return Printed(head, head_is_binary)
    tail, tail_is_binary = decoded(capture.tail[torn_bytes(capture.tail) :], ends_whole=True)
    whole = f"{capture.total_bytes} bytes, {capture.total_lines} lines"
    gap = f"[… {capture.dropped_bytes} bytes of {whole} left out here{f'; {where}' if where else ''} …]"
    return Printed(f"{head}\n{gap}\n{tail}", head_is_binary or tail_is_binary)


def decoded(raw: bytes, *, ends_whole: bool) -> Printed:
    """Return bytes as text; unless it ends whole, a character that is cut at the end is left out."""
    decoder = codecs.getincrementaldecoder("utf-8")("strict")
    try:
        text, is_binary = decoder.decode(raw, final=ends_whole), False
    except UnicodeDecodeError:
        text, is_binary = raw.decode(errors="replace"), True
    return Printed(text.replace("\0", "\ufffd"), is_binary or "\0" in text)


def torn_bytes(raw: bytes) -> int:
    """Return how many bytes at the beginning are the rest of a character."""
    torn = 0
    while torn < min(3, len(raw)) and 0x80 <= raw[torn] < 0xC0:
        torn += 1
    return torn


def unfinished_bytes(raw: bytes) -> int:
    """Return how many bytes at the end are the beginning of a character, or could be."""
    for size in range(1, min(3, len(raw)) + 1):
        lead = raw[-size]
        if lead >= 0xC0:
            needed = 2 if lead < 0xE0 else 3 if lead < 0xF0 else 4
            return size if size < needed else 0
        if lead < 0x80:
            return 0
    return 0


def signal_name(number: int) -> str:
    """Return a signal's name."""
    try:
        return Signals(number).name
    except ValueError:
        return "unknown"
