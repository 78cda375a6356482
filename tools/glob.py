"""Glob: files by the pattern of their path, newest first."""

from typing import ClassVar, Literal

from pydantic import Field

from tools.base import ErrorCode, Parameters, RunContext, Tool, ToolFailure, ToolResult
from tools.ripgrep import SCOPE, TIMEOUT_S, only_files, search

_PATTERN_CHARACTERS = frozenset("*?[]{}!\\")


class GlobParameters(Parameters):
    """Arguments of Glob."""

    pattern: str = Field(min_length=1)
    """Such as `**/*.{ts,tsx}` or `src/**/test_*.py`. Without a slash it matches names at any depth."""
    path: str = Field(default=".", min_length=1)
    """Directory to look in; the pattern is relative to it."""
    limit: int = Field(default=100, ge=1, le=2000)
    """How many paths to show at most."""


class Glob(Tool[GlobParameters]):
    """Finds files by name."""

    name = "Glob"
    description = (
        f"Find files of the sandbox by a glob pattern, newest first, with the total when there are more ({SCOPE})."
    )
    parameters = GlobParameters
    effect: ClassVar[Literal["reads", "changes", "runs_commands"]] = "reads"

    def is_concurrency_safe(self, arguments: GlobParameters) -> bool:
        """Looking changes nothing."""
        return True

    def timeout_s(self, arguments: GlobParameters) -> float:
        """Return the limit of one search."""
        return TIMEOUT_S

    def run(self, arguments: GlobParameters, context: RunContext) -> ToolResult:
        """Return the newest paths; `partial` when there are more."""
        path, pattern = _split(arguments)
        found = search(context, path, ("--files", "--sortr=modified"), only_files(pattern), only_directory=True)
        total = found.answer.stdout.total_lines
        paths = [found.shown_path(line) for line in found.stdout.splitlines()[: arguments.limit]]
        notes = [f"[not searched: {found.problems}]"] if found.problems else []
        if not paths:
            notes.insert(0, f"No file matches {arguments.pattern!r} below {path} ({SCOPE}).")
        elif len(paths) < total:
            notes.insert(0, f"[the {len(paths)} newest of {total} files; narrow the pattern or raise limit]")
        return ToolResult(
            status="partial" if len(paths) < total or found.problems else "success",
            text="\n".join([*paths, *notes]),
            data={"total": total, "shown": len(paths), "left_out": found.left_out},
            context={"cwd": found.answer.cwd},
        )


def _split(arguments: GlobParameters) -> tuple[str, str]:
    """Return directory and pattern; the fixed beginning of a pattern is part of its directory."""
    pattern = arguments.pattern.removeprefix("./")
    if pattern.startswith("!"):
        raise ToolFailure(ErrorCode.INVALID_PARAM, "pattern must say what to find; it cannot start with `!`")
    if ".." in pattern.split("/"):
        raise ToolFailure(ErrorCode.INVALID_PARAM, "pattern cannot hold `..`; give the directory as path")
    parts = pattern.split("/")
    fixed = next((at for at, part in enumerate(parts) if _PATTERN_CHARACTERS & set(part)), len(parts) - 1)
    base = [] if pattern.startswith("/") or not fixed else [arguments.path]
    directory = "/".join([*base, *parts[:fixed]]) or ("/" if fixed else arguments.path)
    # A name alone would match at any depth; behind its directory it means that one place.
    rest = "/".join(parts[fixed:])
    return directory, f"/{rest}" if fixed and "/" not in rest else rest
