"""Grep: text in files by a regular expression."""

import base64
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, NamedTuple, Self

from pydantic import Field, JsonValue, model_validator

from tools.base import Parameters, RunContext, Stats, Tool, ToolResult
from tools.ripgrep import SCOPE, TIMEOUT_S, Search, only_files, search

LINE_CHARS = 400
"""Characters of one line that are shown, around its first match."""
TOO_LONG = (
    "the lines are too long to be fetched; mode `files` tells where they are, and Bash can cut them: "
    "grep -o '.\\{0,80\\}WORD.\\{0,80\\}' FILE"
)


class GrepParameters(Parameters):
    """Arguments of Grep."""

    pattern: str = Field(min_length=1)
    """Regular expression in ripgrep's (Rust's) syntax, matched line by line unless `multiline` is set."""
    path: str = Field(default=".", min_length=1)
    """File or directory to search."""
    glob: str | None = Field(default=None, min_length=1)
    """Only files whose name or path matches, such as `*.py` or `src/**/*.ts`; with `!` in front, only others."""
    type: str | None = Field(default=None, min_length=1)
    """Only files of a type that ripgrep knows, such as `py`, `js`, `rust`, `md`. Not together with `glob`, unless
    that has `!` in front."""
    mode: Literal["content", "files", "count"] = "content"
    """`content` shows matching lines, `files` only the files' paths, `count` the matching lines of each file."""
    context: int = Field(default=0, ge=0, le=50)
    """Lines to show before and after each match; for `content`."""
    ignore_case: bool = False
    """Take upper and lower case as the same."""
    multiline: bool = False
    """Let a match go over several lines; `.` matches line ends then, too, and `count` counts matches."""
    limit: int = Field(default=100, ge=1, le=2000)
    """How many matching lines (`content`) or files to show at most."""

    @model_validator(mode="after")
    def _is_one_choice(self) -> Self:
        # Of both, rg would take a file that is either.
        if self.type is not None and self.glob is not None and not self.glob.startswith("!"):
            raise ValueError("give either type or glob; only a glob with `!` in front goes together with a type")
        return self


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
        files = only_files(arguments.glob, arguments.type)
        found = search(context, arguments.path, _options(arguments), files)
        if arguments.mode == "content":
            return _result(arguments, found, _content(found, arguments.limit, context.page_bytes))
        return _result(arguments, found, _listing(found, arguments, context.page_bytes))


@dataclass
class _Hits:
    """What is shown, and how much there was."""

    lines: list[str] = field(default_factory=list)
    shown: int = 0
    total: int = 0
    """Matching lines (`content`) or files."""
    unit: str = "files"
    data: dict[str, JsonValue] = field(default_factory=dict)


class _Row(NamedTuple):
    text: str
    is_match: bool = False
    is_path: bool = False


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
    if arguments.multiline:
        options += ["--multiline", "--multiline-dotall"]
    return tuple(options)


def _result(arguments: GrepParameters, found: Search, hits: _Hits) -> ToolResult:
    notes = [f"[not searched: {found.problems}]"] if found.problems else []
    if not hits.total:
        notes.insert(0, f"No line matches {arguments.pattern!r} in {arguments.path} ({SCOPE}).")
    elif hits.shown < hits.total:
        way = "narrow pattern, path, glob or type, or raise limit" if hits.shown else TOO_LONG
        notes.insert(0, f"[{hits.shown} of {hits.total} {hits.unit} shown; {way}]")
    if found.left_out:
        hits.data["left_out"] = found.left_out
    return ToolResult(
        status="partial" if hits.shown < hits.total or found.problems else "success",
        text="\n".join([*hits.lines, *notes]),
        data={"total": hits.total, "shown": hits.shown, **hits.data},
        stats=Stats(),
        context={"cwd": found.answer.cwd},
    )


def _listing(found: Search, arguments: GrepParameters, page_bytes: int) -> _Hits:
    """Return the paths, or the paths with their counts."""
    total = found.answer.stdout.total_lines
    rows = found.stdout.splitlines()
    hits = _Hits(total=total, lines=_within((found.shown_path(row) for row in rows[: arguments.limit]), page_bytes))
    hits.shown = len(hits.lines)
    if arguments.mode == "count" and len(rows) == total:
        hits.data["matches" if arguments.multiline else "matching_lines"] = sum(
            int(row.rpartition(":")[2]) for row in rows
        )
    return hits


def _content(found: Search, limit: int, page_bytes: int) -> _Hits:
    """Return the matching lines under their files' paths."""
    hits = _Hits(unit="matching lines")
    size = 0
    for row in _rows(found):
        if (hits.shown >= limit and (row.is_match or row.is_path)) or size > page_bytes:
            break
        text = f"\n{row.text}" if row.is_path and hits.lines else row.text
        hits.lines.append(text)
        hits.shown += row.is_match
        size += len(text.encode()) + 1
    _take_totals(found, hits)
    return hits


def _rows(found: Search) -> Iterator[_Row]:
    """Return what is shown of rg's JSON messages, line by line; of a match over several lines each is one."""
    for message in _messages(found.stdout):
        kind, data = message["type"], message["data"]
        match kind:
            case "begin":
                yield _Row(found.shown_path(_text(data["path"])), is_path=True)
            case "match" | "context":
                first_match = data["submatches"][0]["start"] if data["submatches"] else 0
                lines = _raw(data["lines"]).removesuffix(b"\n").split(b"\n")
                for number, line in enumerate(lines, data["line_number"]):
                    mark = ":" if kind == "match" else "-"
                    start = min(first_match, len(line)) if number == data["line_number"] else 0
                    yield _Row(f"{number}{mark}{_shown(line, start)}", is_match=kind == "match")
            case "end" if data["binary_offset"] is not None:
                yield _Row("(a binary file)")
            case _:
                continue


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


def _shown(raw: bytes, start: int) -> str:
    """Return a line, of a long one what is around the byte `start`."""
    raw = raw.removesuffix(b"\r")
    line = raw.decode(errors="replace").replace("\0", "\ufffd")
    if len(line) <= LINE_CHARS:
        return line
    begin = max(0, len(raw[:start].decode(errors="replace")) - LINE_CHARS // 4)
    end = begin + LINE_CHARS
    return f"{'…' if begin else ''}{line[begin:end]}{'…' if end < len(line) else ''} [line of {len(line)} characters]"


def _raw(value: dict[str, str]) -> bytes:
    """Return the bytes of rg's text object, which is base64 where it is not UTF-8."""
    return base64.b64decode(value["bytes"]) if "bytes" in value else value["text"].encode()


def _text(value: dict[str, str]) -> str:
    return _raw(value).decode(errors="replace")


def _within(rows: Iterator[str], page_bytes: int) -> list[str]:
    """Return the rows that there is room for."""
    kept: list[str] = []
    size = 0
    for row in rows:
        size += len(row.encode()) + 1
        if size > page_bytes:
            break
        kept.append(row)
    return kept
