"""Read: lines of one file, numbered."""

from pathlib import PurePosixPath
from typing import ClassVar, Literal, NamedTuple

from pydantic import Field, JsonValue

from sandbox.requests import ReadAnswer, ReadRequest
from tools.base import ErrorCode, Parameters, RunContext, Stats, Tool, ToolFailure, ToolResult
from tools.cutting import cut_line
from tools.printed import Printed, decoded
from tools.refusals import refusals_as_failures

LINE_CHARS = 2_000
"""Characters of one line that are shown."""
MOST_LINES = 2_000_000_000
"""More than any file that is read can have."""
FETCHED_BYTES = 262_144
"""Of a file at once: more than is shown, since of long lines only a part is."""
NO_ENCODING = "unknown"
NOT_UTF8 = "not UTF-8: \ufffd stands for other bytes, which Edit keeps; it takes ASCII text there"
IMAGES = frozenset({".png", ".jpg", ".jpeg", ".gif", ".bmp", ".webp", ".ico", ".tif", ".tiff"})


class ReadParameters(Parameters):
    """Arguments of Read."""

    path: str = Field(min_length=1)
    """File to read; absolute, or relative to the working directory."""
    offset: int = Field(default=1, ge=1, le=MOST_LINES)
    """First line to show, counted from 1."""
    limit: int = Field(default=2000, ge=1, le=MOST_LINES)
    """How many lines to show at most."""


class _Page(NamedTuple):
    text: str
    last_line: int


class Read(Tool[ReadParameters]):
    """Shows lines of a text file."""

    name = "Read"
    description = (
        "Read lines of a text file in the sandbox, each with its number and a tab before it. Long files come in parts: "
        "go on with `offset`. UTF-16 with its byte order mark is shown as text, too. For directories use Glob; for "
        "images, notebooks and other binary files use Bash."
    )
    parameters = ReadParameters
    effect: ClassVar[Literal["reads", "changes", "runs_commands"]] = "reads"
    is_bounded = True

    def is_concurrency_safe(self, arguments: ReadParameters) -> bool:
        """Reading changes nothing."""
        return True

    def run(self, arguments: ReadParameters, context: RunContext) -> ToolResult:
        """Return the numbered lines; `partial` when the file goes on after them."""
        request = ReadRequest(
            context.mark, arguments.path, arguments.offset, arguments.limit, max(FETCHED_BYTES, context.result_bytes)
        )
        try:
            with refusals_as_failures():
                answer = context.box.read(request)
        except ToolFailure as failure:
            if failure.code is ErrorCode.BINARY_FILE:
                _refuse_by_kind(arguments.path)
            raise
        text = decoded(answer.text, ends_whole=not answer.line_cut)
        if text.is_binary or not _is_image(answer.path):
            # What only has an image's name, such as a pointer to one, is text.
            _refuse_by_kind(answer.path)
        result = _result(answer, text, arguments.offset, context.page_bytes)
        if context.seen is not None:
            last_line = result.data["last_line"]
            context.seen.shown(answer, last_line if isinstance(last_line, int) else 0)
        return result


def lines_left(before: str, after: str) -> list[tuple[int, int]]:
    """Return the lines, each as a range, of a text of numbered lines that are still whole in a cut of it."""
    whole = set(before.split("\n"))
    numbers = [line.partition("\t")[0] for line in after.split("\n") if "\t" in line and line in whole]
    return [(int(number), int(number)) for number in numbers if number.strip().isdecimal()]


def _is_image(path: str) -> bool:
    return PurePosixPath(path).suffix.lower() in IMAGES


def _refuse_by_kind(path: str) -> None:
    """Raise what is better to say of a file whose name tells that its lines are of no use."""
    if _is_image(path):
        raise ToolFailure(
            ErrorCode.BINARY_FILE, f"{path} is an image, and only text can be shown. Use Bash, such as `file`, on it."
        )
    if path.lower().endswith(".ipynb"):
        raise ToolFailure(
            ErrorCode.INVALID_PARAM,
            f"{path} is a notebook, whose raw JSON is of little use. Print its cells with Bash: `jq -r "
            f"'.cells[].source | join(\"\")'` or python3 with json; Grep finds text in it.",
        )


def _result(answer: ReadAnswer, decoded_text: Printed, offset: int, page_bytes: int) -> ToolResult:
    if answer.total_lines == 0:
        return _made(answer, "(the file is empty)", 0)
    if answer.last_line < answer.first_line:
        raise ToolFailure(
            ErrorCode.INVALID_PARAM, f"offset {offset} is beyond the end: {answer.path} has {answer.total_lines} lines"
        )
    page = _numbered(answer, decoded_text.text, page_bytes)
    text = page.text
    if page.last_line < answer.total_lines:
        text += (
            f"[lines {answer.first_line} to {page.last_line} of {answer.total_lines}; "
            f"go on with offset {page.last_line + 1}]\n"
        )
    if decoded_text.is_binary:
        text += f"[{NOT_UTF8}]\n"
    result = _made(answer, text, page.last_line)
    encoding = NO_ENCODING if decoded_text.is_binary else answer.encoding
    return result.model_copy(update={"data": {**result.data, "encoding": encoding}}) if encoding else result


def _numbered(answer: ReadAnswer, text: str, page_bytes: int) -> _Page:
    """Return as many of the answer's lines as there is room for, at least one."""
    lines = text.removesuffix("\n").split("\n")
    if answer.first_line == 1:
        lines[0] = lines[0].removeprefix("\ufeff")
    shown: list[str] = []
    size = 0
    for number, line in enumerate(lines, answer.first_line):
        body = cut_line(line.removesuffix("\r"), LINE_CHARS) + (" [longer still]" if answer.line_cut else "")
        entry = f"{number:>6}\t{body}\n"
        size += len(entry.encode())
        if shown and size > page_bytes:
            break
        shown.append(entry)
    return _Page("".join(shown), answer.first_line + len(shown) - 1)


def _made(answer: ReadAnswer, text: str, last_line: int) -> ToolResult:
    data: dict[str, JsonValue] = {
        "path": answer.path,
        "first_line": answer.first_line,
        "last_line": last_line,
        "total_lines": answer.total_lines,
    }
    return ToolResult(
        status="partial" if last_line < answer.total_lines else "success",
        text=text,
        data=data,
        stats=Stats(bytes=answer.version.size),
    )
