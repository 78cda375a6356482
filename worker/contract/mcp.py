"""MCP servers of a session: settings file → **these, in the session's directory** → node → tools for the model."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue

MCP_FILE = "mcp.json"
"""In the session's directory, for its owner only: the servers, with their secrets. They never travel in a message."""


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", use_attribute_docstrings=True)


class McpServer(_Part):
    """One server: either a command, or an address."""

    name: str
    command: str = ""
    args: tuple[str, ...] = ()
    env: dict[str, str] = Field(default={}, repr=False)
    where: Literal["box", "worker"] = "box"
    """Where the command runs."""
    url: str = ""
    """Of a streamable HTTP server; reached from the worker."""
    headers: dict[str, str] = Field(default={}, repr=False)
    timeout_s: float = 60.0
    """For one call."""
    start_s: float = 30.0
    """For its start and its list of tools."""
    trusts_read_only: bool = False
    """Its tools that say they only read are taken at their word."""
    allow_private: bool = False
    """Its address may be a private one."""
    secrets: tuple[str, ...] = Field(default=(), repr=False)
    """Values among these that must not be shown to the model."""

    @property
    def is_outside(self) -> bool:
        """Whether its tools act outside of the box."""
        return bool(self.url) or self.where == "worker"


class McpServers(_Part):
    """The content of `MCP_FILE`."""

    servers: tuple[McpServer, ...] = ()


class McpToolSpec(_Part):
    """A tool of a server, as a model may be shown it."""

    name: str
    """`server__tool`, fit for every endpoint."""
    description: str
    parameters: dict[str, JsonValue]
    """JSON schema of its arguments."""
    reads: bool = False
    """It only reads, on the word of a server that is trusted."""
    is_outside: bool = False
    """It acts outside of the box."""
    timeout_s: float = 60.0


class McpListing(_Part):
    """The tools of a session's servers at one moment."""

    digest: str = ""
    """Changes with the tools."""
    tools: tuple[McpToolSpec, ...] = ()
    notes: tuple[str, ...] = ()
    """What a person should know: servers that do not start, tools that are left out."""
