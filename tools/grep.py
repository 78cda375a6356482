"""Grep: text in files by a regular expression."""

import base64
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from pydantic import Field, JsonValue

from tools.base import Parameters, RunContext, Stats, Tool, ToolResult
from tools.ripgrep import SCOPE, TIMEOUT_S, Search, only_files, search

LINE_CHARS = 400
"""Characters of one line that are shown, around its first match."""
SHOWN_BYTES = 48_000
"""Text of one answer; below the usual budget of a result, so that it is cut between lines and counted."""


class GrepParameters(Parameters):
    """Arguments of Grep."""

    pattern: str = Field(min_length=1)
    """Regular expression in ripgrep's (Rust's) syntax, matched line by line."""
    path: str = Field(default=".", min_length=1)
    """File or directory to search."""
    glob: str | None = Field(default=None, min_length=1)
    """Only files whose name or path matches, such as `*.py` or `src/**/*.ts`; with `!` in front, only others."""
    mode: Literal["content", "files", "count"] = "content"
    """`content` shows matching lines, `files` only the files' paths, `count` the matching lines of each file."""
    context: int = Field(default=0, ge=0, le=50)
    """Lines to show before and after each match; for `content`."""
    ignore_case: bool = False
    """Take upper and lower case as the same."""
    limit: int = Field(default=100, ge=1, le=2000)
    """How many matching lines (`content`) or files to show at most."""


class Grep(Tool[GrepParameters]):
    """Finds text in files."""

    name = "Grep"
    description = (
        "Search file contents in the sandbox with ripgrep. Answers matching lines with their numbers, or files, or "
        f"counts, sorted by path, with the totals beyond the limit ({SCOPE})."
    )
    parameters = GrepParameters
    effect: ClassVar[Literal["reads", "changes", "runs_commands"]] = "reads"

    def is_concurrency_safe(self, arguments: GrepParameters) -> bool:
        """Searching changes nothing."""
        return True

    def timeout_s(self, arguments: GrepParameters) -> float:
        """Return the limit of one search."""
        return TIMEOUT_S

    def run(self, arguments: GrepParameters, context: RunContext) -> ToolResult:
        """Return what was found; `partial` when there is more."""
        found = search(context, arguments.path, _options(arguments))
        if arguments.mode == "content":
            return _result(arguments, found, _content(found, arguments.limit))
        return _result(arguments, found, _listing(found, arguments))


@dataclass
class _Hits:
    """What is shown, and how much there was."""

    lines: list[str] = field(default_factory=list)
    shown: int = 0
    total: int = 0
    """Matching lines (`content`) or files."""
    unit: str = "files"
    data: dict[str, JsonValue] = field(default_factory=dict)


def _options(arguments: GrepParameters) -> tuple[str, ...]:
    options = ["--sort=path", f"--regexp={arguments.pattern}"]
    match arguments.mode:
        case "content":
            options += ["--json", f"--context={arguments.context}"]
        case "files":
            options.append("--files-with-matches")
        case "count":
            options += ["--count", "--with-filename"]
    if arguments.ignore_case:
        options.append("--ignore-case")
    return (*options, *only_files(arguments.glob))


def _result(arguments: GrepParameters, found: Search, hits: _Hits) -> ToolResult:
    notes = [f"[not searched: {found.problems}]"] if found.problems else []
    if not hits.total:
        notes.insert(0, f"No line matches {arguments.pattern!r} in {arguments.path} ({SCOPE}).")
    elif hits.shown < hits.total:
        notes.insert(
            0, f"[{hits.shown} of {hits.total} {hits.unit} shown; narrow pattern, path or glob, or raise limit]"
        )
    return ToolResult(
        status="partial" if hits.shown < hits.total or found.problems else "success",
        text="\n".join([*hits.lines, *notes]),
        data={"total": hits.total, "shown": hits.shown, **hits.data},
        stats=Stats(),
        context={"cwd": found.answer.cwd},
    )


def _listing(found: Search, arguments: GrepParameters) -> _Hits:
    """Return the paths, or the paths with their counts."""
    total = found.answer.stdout.total_lines
    rows = found.stdout.splitlines()
    hits = _Hits(total=total, lines=_within(found.shown_path(row) for row in rows[: arguments.limit]))
    hits.shown = len(hits.lines)
    if arguments.mode == "count" and len(rows) == total:
        hits.data["matching_lines"] = sum(int(row.rpartition(":")[2]) for row in rows)
    return hits


def _content(found: Search, limit: int) -> _Hits:
    """Return the matching lines under their files' paths, from rg's JSON messages."""
    hits = _Hits(unit="matching lines")
    size = 0
    for message in _messages(found.stdout):
        kind, data = message["type"], message["data"]
        match kind:
            case "begin":
                entry = ("\n" if hits.lines else "") + found.shown_path(_text(data["path"]))
            case "match" | "context":
                entry = _line(kind, data)
            case "end" if data["binary_offset"] is not None:
                entry = "(a binary file)"
            case _:
                continue
        if (kind == "match" and hits.shown == limit) or size > SHOWN_BYTES:
            break
        hits.lines.append(entry)
        hits.shown += kind == "match"
        size += len(entry.encode()) + 1
    _take_totals(found, hits)
    return hits


def _take_totals(found: Search, hits: _Hits) -> None:
    """Take rg's own totals, which its last message holds however much was left out before it."""
    stdout = found.answer.stdout
    last = (stdout.tail if stdout.dropped_bytes else stdout.head + stdout.tail).rstrip(b"\n").rpartition(b"\n")[2]
    summary = next(_messages(last.decode(errors="replace")), None)
    if summary is None or summary["type"] != "summary":
        hits.total = hits.shown
        return
    stats = summary["data"]["stats"]
    hits.total = stats["matched_lines"]
    hits.data["files"] = stats["searches_with_match"]


def _messages(output: str) -> Iterator[dict[str, Any]]:
    # Not splitlines: a message may hold characters that it takes for line ends.
    for row in output.split("\n"):
        if row:
            try:
                message = json.loads(row)
            except ValueError:
                return
            yield message


def _line(kind: str, data: dict[str, Any]) -> str:
    mark = ":" if kind == "match" else "-"
    raw = _raw(data["lines"]).rstrip(b"\r\n")
    start = data["submatches"][0]["start"] if data["submatches"] else 0
    line = raw.decode(errors="replace").replace("\0", "\ufffd")
    if len(line) > LINE_CHARS:
        begin = max(0, len(raw[:start].decode(errors="replace")) - LINE_CHARS // 4)
        end = begin + LINE_CHARS
        line = (
            f"{'…' if begin else ''}{line[begin:end]}{'…' if end < len(line) else ''} [line of {len(line)} characters]"
        )
    return f"{data['line_number']}{mark}{line}"


def _raw(value: dict[str, str]) -> bytes:
    """Return the bytes of rg's text object, which is base64 where it is not UTF-8."""
    return base64.b64decode(value["bytes"]) if "bytes" in value else value["text"].encode()


def _text(value: dict[str, str]) -> str:
    return _raw(value).decode(errors="replace")


def _within(rows: Iterator[str]) -> list[str]:
    """Return the rows that there is room for."""
    kept: list[str] = []
    size = 0
    for row in rows:
        size += len(row.encode()) + 1
        if size > SHOWN_BYTES:
            break
        kept.append(row)
    return kept
