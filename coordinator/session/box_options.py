"""What a command line asks of a box beyond image and workspace: options → **box_options** → order."""

import json
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath

from coordinator.errors import ConfigError
from coordinator.session.mcp_settings import NO_MCP, McpOptions
from worker.contract.extras import ENV_FILE, FILES_DIR, BoxExtras, FileIn
from worker.contract.sources import ARCHIVE_FILE

_HOST = re.compile(r"(?:\*|(?:\*\.)?[A-Za-z0-9_](?:[A-Za-z0-9_.-]*[A-Za-z0-9_.])?)(?::[0-9]{1,5}(?:,[0-9]{1,5})*)?")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
MAX_VARIABLE_BYTES = 131_072
"""Of `NAME=VALUE` and the NUL behind it; with a longer one no command begins. Source: execve(2)."""
OURS = ("SANDHOG_", "OPENAI_")
"""Variables of these names are never handed on by name alone."""


@dataclass(frozen=True)
class BoxOptions:
    """The order's part, and what goes with it through the session's directory."""

    extras: BoxExtras = field(default_factory=BoxExtras)
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Values by name. The box sees them, the transcript does not."""
    sources: tuple[Path, ...] = ()
    """The content of the order's files, in their order."""
    archive: Path | None = None
    """What the workspace is unpacked from, where the order says so."""
    mcp: McpOptions = NO_MCP
    """The session's MCP servers; `extras.mcp` is their hash."""

    @property
    def secrets(self) -> tuple[str, ...]:
        """Values that must not be kept."""
        return (*self.env.values(), *self.mcp.secrets)

    def lay_out(self, session_dir: Path) -> None:
        """Put values and files where the node finds them.

        Raises:
            OSError: they cannot be read or written.
        """
        if self.env:
            descriptor = os.open(session_dir / ENV_FILE, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                json.dump(dict(self.env), file)
        if self.sources:
            (session_dir / FILES_DIR).mkdir(mode=0o700)
        for number, source in enumerate(self.sources):
            shutil.copyfile(source, session_dir / FILES_DIR / str(number))
        if self.archive is not None:
            shutil.copyfile(self.archive, session_dir / ARCHIVE_FILE)
        self.mcp.lay_out(session_dir)

    def forget(self, session_dir: Path) -> None:
        """Remove the values once the session has ended."""
        (session_dir / ENV_FILE).unlink(missing_ok=True)
        self.mcp.forget(session_dir)

    def with_mcp(self, mcp: McpOptions) -> "BoxOptions":
        """Return these options with MCP servers."""
        return replace(self, mcp=mcp, extras=self.extras.model_copy(update={"mcp": mcp.digest}))


def read_env(given: Sequence[str], files: Sequence[Path], environment: Mapping[str, str]) -> dict[str, str]:
    """The values of `NAME`, `NAME=VALUE` and of files with a `NAME=VALUE` a line.

    Raises:
        ConfigError: a name is none or has no value, or a value is too long; no value is ever shown.
    """
    values: dict[str, str] = {}
    for path in files:
        values.update(_env_file(path))
    for text in given:
        name, equals, value = text.partition("=")
        if not _NAME.fullmatch(name):
            raise ConfigError(f"--env: {name!r} is no name of a variable.")
        values[name] = value if equals else _from(environment, name)
    broken = next((name for name, value in values.items() if "\0" in value), None)
    if broken is not None:
        raise ConfigError(f"--env: the value of {broken} has a NUL.")
    lengths = {name: len(f"{name}={value}\0".encode("utf-8", "replace")) for name, value in values.items()}
    longest = max(lengths, key=lengths.__getitem__, default="")
    if lengths.get(longest, 0) > MAX_VARIABLE_BYTES:
        words = f"--env: {longest} has {lengths[longest]} bytes, and a command can be given {MAX_VARIABLE_BYTES}"
        raise ConfigError(f"{words}; let it read a file.")
    return values


def _from(environment: Mapping[str, str], name: str) -> str:
    if name.startswith(OURS):
        raise ConfigError(f"--env: {name} is for this program, not for a box; say --env {name}=VALUE if it is.")
    if name not in environment:
        raise ConfigError(f"--env: {name} is not set here.")
    return environment[name]


def _env_file(path: Path) -> dict[str, str]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as exc:
        raise ConfigError(f"{path} cannot be read: {getattr(exc, 'strerror', None) or 'it is no UTF-8'}.") from None
    values = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        name, equals, value = line.strip().removeprefix("export ").partition("=")
        if not equals or not _NAME.fullmatch(name):
            raise ConfigError(f"{path}, line {number}: not NAME=VALUE.")
        values[name] = _unquoted(value)
    return values


def _unquoted(value: str) -> str:
    is_quoted = len(value) > 1 and value[0] == value[-1] and value[0] in "\"'"
    return value[1:-1] if is_quoted else value


def read_hosts(given: Sequence[str], option: str) -> tuple[str, ...]:
    """The hosts as given; the node reads them more strictly.

    Raises:
        ConfigError: one of them cannot be a host.
    """
    for text in given:
        if not _HOST.fullmatch(text) or not re.search(r"[A-Za-z_*]", text.partition(":")[0]):
            wanted = "a name such as example.org, *.example.org or example.org:8443"
            raise ConfigError(f"{option}: {text!r} is no host: give {wanted}.")
    return tuple(given)


def read_files(given: Sequence[str]) -> tuple[tuple[FileIn, ...], tuple[Path, ...]]:
    """What `SRC:DST` says: where in the workspace, and from where.

    Raises:
        ConfigError: the source is no readable file, or the place is not in the workspace.
    """
    files, sources = [], []
    for text in given:
        source_text, colon, place = text.rpartition(":")
        source = Path(source_text)
        if not colon or not source.is_file() or not os.access(source, os.R_OK):
            raise ConfigError(f"--file: {text!r} is not SRC:DST with a file that can be read.")
        path = inside(place, "--file")
        files.append(FileIn(path=path, is_executable=os.access(source, os.X_OK)))
        sources.append(source.absolute())
    if len({file.path for file in files}) != len(files):
        raise ConfigError("--file: two files go to the same place.")
    return tuple(files), tuple(sources)


def inside(text: str, option: str) -> str:
    """The path relative to the workspace.

    Raises:
        ConfigError: it leads out of it.
    """
    place = PurePosixPath(text)
    if place.is_absolute() and place.is_relative_to("/workspace"):
        place = place.relative_to("/workspace")
    if place.is_absolute() or ".." in place.parts or not place.parts or "\0" in text:
        raise ConfigError(f"{option}: {text!r} is no path inside the workspace.")
    return str(place)
