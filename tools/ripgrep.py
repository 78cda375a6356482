"""Ripgrep: how Grep and Glob run the guest folder's `rg`, and what its exits mean.

`rg` runs by its arguments, without a shell. Hidden files are searched; `.git` and what ignore files exclude are not.
"""

from dataclasses import dataclass, replace

from sandbox.requests import RunAnswer, RunRequest, StatAnswer
from sandbox.wire import RG
from tools.base import ErrorCode, RunContext, ToolFailure
from tools.refusals import refusals_as_failures

TIMEOUT_S = 60.0
ARGUMENT_BYTES = 100_000
"""Below what the kernel takes for one argument of a program."""
KEEP_BYTES = 512 * 1024
"""Head of the output that is looked at; beyond it only the totals count."""
SCOPE = "hidden files are searched; .git and what .gitignore, .ignore and .rgignore exclude are not"
LEFT_OUT = ".git; what .gitignore, .ignore, .rgignore exclude"
LEFT_OUT_BY_GLOB = f"{LEFT_OUT}, unless the glob names it"
COMMON = ("--no-config", "--color=never", "--hidden", "--no-require-git")
_NOT_GIT = "--glob=!.git"
_MODEL_FAULTS = (
    "regex parse error",
    "error parsing glob",
    "is not allowed in a regex",
    "regex exceeds size",
    "PCRE2",
    "unrecognized file type",
)


@dataclass(frozen=True)
class Choice:
    """Which files of a directory are searched."""

    options: tuple[str, ...]
    left_out: str = LEFT_OUT
    """What is not, in words."""


def only_files(pattern: str | None, file_type: str | None = None) -> Choice:
    """Return the choice of the files whose path matches, or that are of a type; of neither: all.

    Args:
        pattern: Glob; with `!` in front it leaves out, and only then goes together with a type.
        file_type: One that ripgrep knows by name.
    """
    typed = () if file_type is None else (f"--type={file_type}",)
    if pattern is None:
        return Choice((*typed, _NOT_GIT))
    name = pattern.removeprefix("./")
    while name.startswith("**/"):
        name = name.removeprefix("**/")
    if name.startswith("!"):
        return Choice((*typed, f"--glob={pattern}", _NOT_GIT))
    if "/" in name or ":" in name:
        # Where such a pattern names an ignored file, rg takes it for asked for.
        return Choice((f"--glob={pattern}", _NOT_GIT), LEFT_OUT_BY_GLOB)
    # A pattern of names alone goes by a file type, which does not overrule the ignore files as a glob does.
    return Choice((f"--type-add=wanted:{'*' if name == '**' else name}", "--type=wanted", _NOT_GIT))


@dataclass(frozen=True)
class Search:
    """What one run of `rg` found."""

    answer: RunAnswer
    root: str
    """Directory or file that was searched, canonical."""
    left_out: str
    """What of a directory was left out by rule; "" for a file."""
    problems: str
    """What could not be searched, in rg's words; "" when all could."""

    @property
    def stdout(self) -> str:
        """The output's head, whole lines only, undecodable bytes replaced."""
        head = self.answer.stdout.head
        if self.answer.stdout.dropped_bytes:
            head = head[: head.rfind(b"\n") + 1]
        return head.decode(errors="replace")

    def shown_path(self, path: str) -> str:
        """Return a path of the output as the model can use it: relative to the working directory if it is below."""
        full = path if path.startswith("/") else f"{self.root.rstrip('/')}/{path.removeprefix('./')}"
        below = self.answer.cwd.rstrip("/") + "/"
        return full.removeprefix(below)


def search(
    context: RunContext, path: str, options: tuple[str, ...], files: Choice, *, only_directory: bool = False
) -> Search:
    """Run `rg` on a path and return what it printed.

    Raises:
        ToolFailure: no such path, a pattern rg does not take, timeout, cancel, or rg failed.
        BoxLost: the box ended.
    """
    if "\0" in path or any("\0" in option for option in (*options, *files.options)):
        raise ToolFailure(ErrorCode.INVALID_PARAM, "path and pattern must not hold a NUL character")
    if max(len(option.encode()) for option in (*options, *files.options)) > ARGUMENT_BYTES:
        raise ToolFailure(ErrorCode.INVALID_PARAM, f"pattern and glob may have {ARGUMENT_BYTES} bytes at most, each")
    with refusals_as_failures():
        place = context.box.stat(context.mark.session, path)
        is_directory = _is_directory(place, path, only_directory)
        request = RunRequest(
            # Searching changes nothing: a join of a search that never started may as well start it.
            mark=replace(context.mark, join=False),
            argv=(RG, *COMMON, *options, *files.options, "--", "./" if is_directory else place.path),
            cwd=place.path if is_directory else None,
            timeout_ms=int(TIMEOUT_S * 1000),
            keep_bytes=KEEP_BYTES,
        )
        answer = context.box.run(request)
    return Search(answer, place.path, files.left_out if is_directory else "", _problems(answer))


def _is_directory(place: StatAnswer, path: str, only_directory: bool) -> bool:
    match place.kind:
        case "directory":
            return True
        case "file" if not only_directory:
            return False
        case "missing":
            raise ToolFailure(ErrorCode.NOT_FOUND, f"{path} does not exist")
        case "file":
            raise ToolFailure(ErrorCode.INVALID_PARAM, f"{path} is a file; path must be a directory")
        case kind:
            raise ToolFailure(ErrorCode.NOT_REGULAR_FILE, f"{path} is a {kind}, which cannot be searched")


def _problems(answer: RunAnswer) -> str:
    if answer.cancelled:
        raise ToolFailure(ErrorCode.CANCELLED, "the search was cancelled")
    if answer.timed_out:
        raise ToolFailure(ErrorCode.TIMEOUT, f"the search took longer than {TIMEOUT_S:.0f} s; narrow path or glob")
    if answer.exit_code in {0, 1}:
        return ""
    words = answer.stderr.head.decode(errors="replace").strip()
    if any(fault in words for fault in _MODEL_FAULTS):
        raise ToolFailure(ErrorCode.INVALID_PARAM, words.removeprefix("rg: "))
    lines = words.splitlines()
    first = "\n".join(lines[:3]) + (f"\nand {len(lines) - 3} more" if len(lines) > 3 else "")
    if answer.exit_code is None or "os error" not in words:
        how = f"signal {answer.signal}" if answer.exit_code is None else f"exit code {answer.exit_code}"
        raise ToolFailure(ErrorCode.EXECUTION_ERROR, f"rg ended with {how}: {first or 'it said nothing'}")
    return first
