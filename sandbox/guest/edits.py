"""Replacements in the bytes of a text: found, checked, applied, shown."""

import itertools
import json

from sandbox.guest.nearest import nearest
from sandbox.guest.refusal import Refusal
from sandbox.guest.texts import is_utf8
from sandbox.wire import RefusalCode

CONTEXT_LINES = 3
MAX_DIFF_BYTES = 20_000
BLANKS = b" \t\n\r\x0b\x0c"
MAX_EDITS = 500
MAX_SPANS = 20_000
"""Replacements that one call may make; each is an object while the call runs."""
COUNTED = 1_000
"""Occurrences that are counted; of a hostile text there may be as many as letters."""
COUNTED_BYTES = 16 * 1024 * 1024
"""All occurrences that are counted together; looking for a long text again and again takes its time."""
LINE_BYTES = 1_000
"""Of one line of a diff that are shown."""
LINE_BEFORE_BYTES = 200
"""Of these, before the place where old and new line part."""


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
    if len(wanted) > MAX_EDITS:
        raise Refusal(RefusalCode.INVALID_PARAM, f"there are {len(wanted)} edits, one call makes up to {MAX_EDITS}")
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
        raise Refusal(RefusalCode.NO_MATCH, f"{where} is not in the file{_hint(content, edit.old)}")
    if count > 1 and not edit.replace_all:
        most = _most_counted(old)
        times = f"{count} times" if count <= most else f"more than {most} times"
        raise Refusal(RefusalCode.NOT_UNIQUE, f"{where} is in the file {times}: give more of it, or replace all")
    if not edit.new.isascii() and edit.old.isascii() and not is_utf8(content):
        # That the old text was found says that the file is UTF-8 at that place, if the old text is not ASCII.
        words = "the file is not UTF-8, so only ASCII text can be put in the place of ASCII text; convert it with iconv"
        raise Refusal(RefusalCode.INVALID_PARAM, f"edit {number}: {words} first, or change it with Bash")
    spans: list[Span] = []
    start = content.find(old)
    while start >= 0:
        if len(spans) == MAX_SPANS:
            words = f"{where} is in the file more than {MAX_SPANS} times, more than one call replaces; use sed in Bash"
            raise Refusal(RefusalCode.TOO_LARGE, words)
        spans.append(Span(start, start + len(old), new))
        start = content.find(old, start + len(old))
    return spans


def _hint(content: bytes, old: bytes) -> str:
    """What may help to find the text that was meant, after a semicolon; "" if nothing does."""
    numbers = [line.partition(b"\t")[0].strip() for line in old.split(b"\n", 10)[:10] if line]
    if numbers and all(number.isdigit() for number in numbers) and b"\t" in old:
        return "; it seems to hold Read's line numbers, leave them out"
    place = nearest(content, old)
    if place:
        return f"; {place}"
    is_near = old.translate(None, BLANKS) in content.translate(None, BLANKS)
    return "; it would match but for blanks and newlines" if is_near else ""


def _most_counted(old: bytes) -> int:
    return max(2, min(COUNTED, COUNTED_BYTES // len(old)))


def _count(content: bytes, old: bytes) -> int:
    """How often, overlapping ones counted (`aa` is twice in `aaa`), up to one more than are told."""
    count, most = 0, _most_counted(old)
    start = content.find(old)
    while start >= 0 and count <= most:
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
            members.append(span)
            merged[-1] = first, max(last, end), members
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
        parting = _parting(removed[0], added[0]) if removed and added else 0
        out += [b" " + _shortened(line, 0) for line in context]
        out += [b"-" + _shortened(line, parting) for line in removed]
        out += [b"+" + _shortened(line, parting) for line in added]
        old_lines += len(context) + len(removed)
        new_lines += len(context) + len(added)
        position = change.end
    return b"".join(out), old_lines, new_lines


def _parting(one: bytes, other: bytes) -> int:
    """How many bytes two lines begin with alike; 0 for lines that are shown whole anyway."""
    low, high = 0, min(len(one), len(other))
    if max(len(one), len(other)) <= LINE_BYTES:
        return 0
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _shortened(line: bytes, parting: int) -> bytes:
    """A line of a diff, of a very long one what is around a place of it."""
    if len(line) <= LINE_BYTES:
        return line
    start = max(0, parting - LINE_BEFORE_BYTES)
    end = start + LINE_BYTES
    return (b"[...]" if start else b"") + line[start:end].rstrip(b"\n") + b"[...]\n"


def _lines(text: bytes) -> list[bytes]:
    """Lines with their LF; one without it gets the note that diff gives."""
    lines = text.split(b"\n")
    last = lines.pop()
    marked = [line + b"\n" for line in lines]
    return [*marked, last + b"\n\\ No newline at end of file\n"] if last else marked
