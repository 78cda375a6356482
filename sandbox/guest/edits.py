"""Replacements in the bytes of a text: found, checked, applied, shown."""

import itertools
import json

from sandbox.guest.refusal import Refusal
from sandbox.wire import RefusalCode

CONTEXT_LINES = 3
MAX_DIFF_BYTES = 20_000


class Wanted:
    """One replacement as asked for."""

    __slots__ = ("new", "old", "replace_all")

    def __init__(self, old: bytes, new: bytes, replace_all: bool) -> None:
        self.old = old
        self.new = new
        self.replace_all = replace_all


class Span:
    """What `content[start:end]` becomes."""

    __slots__ = ("end", "new", "start")

    def __init__(self, start: int, end: int, new: bytes) -> None:
        self.start = start
        self.end = end
        self.new = new


def parse(body: bytes) -> list[Wanted]:
    """The replacements in the body of a request.

    Raises:
        Refusal: INVALID_PARAM.
    """
    try:
        wanted = [
            Wanted(_encode(old), _encode(new), bool(replace_all)) for old, new, replace_all in json.loads(body.decode())
        ]
    except (ValueError, TypeError, AttributeError) as error:
        raise Refusal(RefusalCode.INVALID_PARAM, f"edits cannot be read: {error}") from None
    if not wanted:
        raise Refusal(RefusalCode.INVALID_PARAM, "there are no edits")
    for number, edit in enumerate(wanted, 1):
        if not edit.old:
            raise Refusal(RefusalCode.INVALID_PARAM, f"edit {number}: the old text is empty")
        if edit.old == edit.new:
            raise Refusal(RefusalCode.INVALID_PARAM, f"edit {number}: old and new text are the same")
    return wanted


def _encode(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def plan(content: bytes, wanted: list[Wanted]) -> list[Span]:
    """Every replacement as a span of the content as it is, in order.

    Raises:
        Refusal: NO_MATCH, NOT_UNIQUE, OVERLAP; the message names the edit.
    """
    is_crlf = b"\r\n" in content and content.count(b"\n") == content.count(b"\r\n")
    spans: list[Span] = []
    for number, edit in enumerate(wanted, 1):
        spans += _spans(content, edit, number, is_crlf)
    spans.sort(key=lambda span: (span.start, span.end))
    for before, after in itertools.pairwise(spans):
        if after.start < before.end:
            raise Refusal(RefusalCode.OVERLAP, "two edits touch the same text: give them as one")
    return spans


def _spans(content: bytes, edit: Wanted, number: int, is_crlf: bool) -> list[Span]:
    old, new = edit.old, edit.new
    if is_crlf and b"\r\n" not in new:
        new = new.replace(b"\n", b"\r\n")
    count = _count(content, old)
    if count == 0 and b"\n" in old and b"\r\n" not in old and b"\r\n" in content:
        old, new = old.replace(b"\n", b"\r\n"), edit.new.replace(b"\r\n", b"\n").replace(b"\n", b"\r\n")
        count = _count(content, old)
    where = f"edit {number}: the old text"
    if count == 0:
        loose = b"".join(edit.old.split()) in b"".join(content.split())
        hint = "; it would match but for blanks and newlines" if loose else ""
        raise Refusal(RefusalCode.NO_MATCH, f"{where} is not in the file{hint}")
    if count > 1 and not edit.replace_all:
        raise Refusal(RefusalCode.NOT_UNIQUE, f"{where} is in the file {count} times: give more of it, or replace all")
    spans = []
    start = content.find(old)
    while start >= 0:
        spans.append(Span(start, start + len(old), new))
        start = content.find(old, start + len(old))
    return spans


def _count(content: bytes, old: bytes) -> int:
    """How often, overlapping ones counted: `aa` is twice in `aaa`."""
    count = 0
    start = content.find(old)
    while start >= 0:
        count += 1
        start = content.find(old, start + 1)
    return count


def apply(content: bytes, spans: list[Span]) -> bytes:
    """The content after all replacements."""
    parts = []
    position = 0
    for span in spans:
        parts += [content[position : span.start], span.new]
        position = span.end
    return b"".join([*parts, content[position:]])


def unified(content: bytes, spans: list[Span]) -> tuple[bytes, bool]:
    """Unified hunks of the replacements, and whether they are cut."""
    hunks: list[bytes] = []
    size = 0
    line, position, shift = 1, 0, 0
    for group in _groups(content, _changes(content, spans)):
        start = _back(content, group[0].start, CONTEXT_LINES)
        end = _forth(content, group[-1].end, CONTEXT_LINES)
        line += content.count(b"\n", position, start)
        position = start
        text, old_lines, new_lines = _hunk(content, group, start, end)
        header = b"@@ -%d,%d +%d,%d @@\n" % (line, old_lines, line + shift, new_lines)
        size += len(header) + len(text)
        if size > MAX_DIFF_BYTES:
            return b"".join([*hunks, header + text])[:MAX_DIFF_BYTES], True
        hunks.append(header + text)
        shift += new_lines - old_lines
    return b"".join(hunks), False


def _changes(content: bytes, spans: list[Span]) -> list[Span]:
    """The spans grown to whole lines, with what the lines become; those that share a line are one."""
    merged: list[tuple[int, int, list[Span]]] = []
    for span in spans:
        start = content.rfind(b"\n", 0, span.start) + 1
        end = _line_end(content, max(span.start, span.end - 1))
        if merged and start < merged[-1][1]:
            first, last, members = merged[-1]
            merged[-1] = first, max(last, end), [*members, span]
        else:
            merged.append((start, end, [span]))
    changes = []
    for start, end, members in merged:
        inner = [Span(s.start - start, s.end - start, s.new) for s in members]
        new = apply(content[start:end], inner)
        if new and not new.endswith(b"\n") and end < len(content):
            # The line's newline is gone: the next line now belongs to this one.
            following = _line_end(content, end)
            new += content[end:following]
            end = following
        changes.append(Span(start, end, new))
    return changes


def _line_end(content: bytes, position: int) -> int:
    return content.find(b"\n", position) + 1 or len(content)


def _back(content: bytes, position: int, lines: int) -> int:
    for _ in range(lines):
        if position == 0:
            break
        position = content.rfind(b"\n", 0, position - 1) + 1
    return position


def _forth(content: bytes, position: int, lines: int) -> int:
    for _ in range(lines):
        if position >= len(content):
            break
        position = _line_end(content, position)
    return position


def _groups(content: bytes, changes: list[Span]) -> list[list[Span]]:
    """Changes whose context would touch, together."""
    groups: list[list[Span]] = []
    for change in changes:
        if groups and _forth(content, groups[-1][-1].end, 2 * CONTEXT_LINES) >= change.start:
            groups[-1].append(change)
        else:
            groups.append([change])
    return groups


def _hunk(content: bytes, group: list[Span], start: int, end: int) -> tuple[bytes, int, int]:
    """Text of a hunk, its old and its new number of lines."""
    out: list[bytes] = []
    old_lines = new_lines = 0
    position = start
    for change in [*group, Span(end, end, b"")]:
        context = _lines(content[position : change.start])
        removed, added = _lines(content[change.start : change.end]), _lines(change.new)
        out += [b" " + line for line in context] + [b"-" + line for line in removed] + [b"+" + line for line in added]
        old_lines += len(context) + len(removed)
        new_lines += len(context) + len(added)
        position = change.end
    return b"".join(out), old_lines, new_lines


def _lines(text: bytes) -> list[bytes]:
    """Lines with their LF; one without it gets the note that diff gives."""
    lines = text.split(b"\n")
    last = lines.pop()
    marked = [line + b"\n" for line in lines]
    return [*marked, last + b"\n\\ No newline at end of file\n"] if last else marked
