"""MCP servers of a session: a settings file in the usual form → **mcp_settings** → the session's directory → node."""

import hashlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError, model_validator

from coordinator.errors import ConfigError
from worker.contract.mcp import MCP_FILE, McpServer, McpServers

MOST_SERVERS = 32
SHORTEST_SECRET = 6
"""Shorter values are not looked for in what servers say."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,39}")
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")


class _Entry(BaseModel):
    """One server as it stands in the file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    type: Literal["stdio", "http", "streamable-http", "streamable_http"] | None = None
    command: str = ""
    args: tuple[str, ...] = ()
    env: dict[str, str] = {}
    url: str = ""
    headers: dict[str, str] = {}
    where: Literal["box", "worker"] = "box"
    timeout_s: float = Field(default=60.0, gt=0, le=600)
    start_s: float = Field(default=30.0, gt=0, le=300)
    trust_read_only: bool = False
    allow_private: bool = False
    disabled: bool = False

    @model_validator(mode="after")
    def _is_one_kind(self) -> "_Entry":
        if bool(self.command) == bool(self.url):
            raise ValueError("write either a command or a url")
        if self.url and not self.url.startswith(("http://", "https://")):
            raise ValueError("the url must begin with http:// or https://")
        if self.type is not None and (self.type == "stdio") != bool(self.command):
            raise ValueError("the type does not go with what is given: a command is stdio, a url is http")
        return self


@dataclass(frozen=True)
class McpOptions:
    """A session's servers, with their secrets."""

    servers: McpServers = field(default_factory=McpServers, repr=False)

    @property
    def digest(self) -> str:
        """Hash of them; "" for none."""
        text = self.servers.model_dump_json()
        return hashlib.sha256(text.encode()).hexdigest()[:16] if self.servers.servers else ""

    @property
    def secrets(self) -> tuple[str, ...]:
        """What must not be kept or shown."""
        return tuple(value for server in self.servers.servers for value in server.secrets)

    def lay_out(self, session_dir: Path) -> None:
        """Put them where the node finds them.

        Raises:
            OSError: they cannot be written.
        """
        if not self.servers.servers:
            return
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        with os.fdopen(os.open(session_dir / MCP_FILE, flags, 0o600), "w", encoding="utf-8") as file:
            file.write(self.servers.model_dump_json())

    def forget(self, session_dir: Path) -> None:
        """Remove them once the session has ended."""
        (session_dir / MCP_FILE).unlink(missing_ok=True)


NO_MCP = McpOptions()


def read_mcp_config(path: Path | None, environment: Mapping[str, str]) -> McpOptions:
    """Return the servers of a settings file; `${NAME}` and `${NAME:-default}` are taken from the environment.

    Without a file there are none.

    Raises:
        ConfigError: the file cannot be used; says what to change, and shows no value.
    """
    if path is None:
        return NO_MCP
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as exc:
        raise ConfigError(f"--mcp-config {path}: it cannot be read: {exc}.") from None
    entries = content.get("mcpServers") if isinstance(content, dict) else None
    if not isinstance(entries, dict) or set(content) != {"mcpServers"}:
        raise ConfigError(f'--mcp-config {path}: write {{"mcpServers": {{NAME: {{…}}}}}} and nothing beside it.')
    if len(entries) > MOST_SERVERS:
        raise ConfigError(f"--mcp-config {path}: it has {len(entries)} servers; at most {MOST_SERVERS} are allowed.")
    servers = [_server(name, entry, environment, path) for name, entry in entries.items()]
    return McpOptions(McpServers(servers=tuple(one for one in servers if one is not None)))


def _server(name: str, entry: JsonValue, environment: Mapping[str, str], path: Path) -> McpServer | None:
    where = f"--mcp-config {path}, server {name!r}"
    if not _NAME.fullmatch(name):
        raise ConfigError(f"{where}: a name is 1 to 40 letters, digits, dots, _ and -.")
    try:
        read = _Entry.model_validate(entry)
    except ValidationError as exc:
        fault = exc.errors(include_url=False, include_input=False, include_context=False)[0]
        key = ".".join(str(part) for part in fault["loc"])
        allowed = ", ".join(_Entry.model_fields)
        words = f"there is no such key; allowed are {allowed}" if fault["type"] == "extra_forbidden" else fault["msg"]
        raise ConfigError(f"{where}{', key ' + key if key else ''}: {words}.") from None
    if read.disabled:
        return None
    values = _Values(environment, where)
    made = McpServer(
        name=name,
        command=values.expand(read.command),
        args=tuple(values.expand(one) for one in read.args),
        env={key: values.expand(value) for key, value in read.env.items()},
        where=read.where,
        url=values.expand(read.url),
        headers={key: values.expand(value) for key, value in read.headers.items()},
        timeout_s=read.timeout_s,
        start_s=read.start_s,
        trusts_read_only=read.trust_read_only,
        allow_private=read.allow_private,
    )
    return made.model_copy(update={"secrets": tuple(values.used)})


class _Values:
    """Puts variables' values in, and remembers them: they are secrets."""

    def __init__(self, environment: Mapping[str, str], where: str) -> None:
        self.used: list[str] = []
        self._environment = environment
        self._where = where

    def expand(self, text: str) -> str:
        """Return the text with its variables' values.

        Raises:
            ConfigError: one is not set.
        """
        return _VARIABLE.sub(self._value, text)

    def _value(self, match: re.Match[str]) -> str:
        name, default = match.groups()
        value = self._environment.get(name, default)
        if value is None:
            raise ConfigError(f"{self._where}: the variable {name} is not set here.")
        if name in self._environment and len(value) >= SHORTEST_SECRET and value not in self.used:
            self.used.append(value)
        return value
