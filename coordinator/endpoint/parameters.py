"""How a session wants its model asked: flags, batch rows, API bodies → **parameters** → request."""

import json
import re
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue, StringConstraints, field_validator

from coordinator.errors import ConfigError

ToolChoice = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
"""auto, none, required, or a tool's name."""

RESERVED_FIELDS = frozenset(
    {"messages", "tools", "functions", "function_call", "model", "stream", "stream_options", "n", "tool_choice"}
)
"""Fields of a request that `extra_body` may not set: this program's own, and those with a parameter of their own."""

_HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}")
_KEPT_HEADERS = frozenset(
    {
        "host",
        "connection",
        "content-length",
        "content-type",
        "content-encoding",
        "transfer-encoding",
        "te",
        "trailer",
        "upgrade",
        "accept-encoding",
    }
)
"""Headers that belong to the connection."""


class ModelParameters(BaseModel):
    """What is the same for all requests of one session; None leaves it to the endpoint."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, defer_build=True)

    system: Annotated[str, StringConstraints(max_length=100_000)] = ""
    """Text behind the system prompt."""
    temperature: Annotated[float, Field(ge=0, le=10, allow_inf_nan=False)] | None = None
    """0 for the likeliest words."""
    top_p: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)] | None = None
    """The share of likely words that is drawn from."""
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    """Tokens of one reply at most."""
    reasoning_effort: Annotated[str, StringConstraints(pattern=r"^[a-z0-9_-]{1,32}$")] | None = None
    """The endpoint's own word: none, minimal, low, medium, high, …"""
    seed: int | None = None
    """For replies that can be had again, where the endpoint can."""
    stop: Annotated[tuple[Annotated[str, StringConstraints(max_length=10_000)], ...], Field(max_length=16)] = ()
    """Texts that end a reply."""
    tool_choice: ToolChoice | None = None
    """auto, none, required, or the tool that every reply must call."""
    first_tool_choice: ToolChoice | None = None
    """The same for the session's first reply only."""
    parallel_tool_calls: Literal[False] | None = None
    """False: one call a reply."""
    extra_body: Annotated[dict[str, JsonValue], Field(max_length=100)] = {}
    """Further fields of each request's body, an endpoint's own."""
    headers: Annotated[dict[str, str], Field(max_length=50, repr=False)] = {}
    """Further headers of each request; their values are kept out of transcripts."""

    @field_validator("extra_body")
    @classmethod
    def _sets_nothing_of_ours(cls, value: dict[str, JsonValue]) -> dict[str, JsonValue]:
        ours = sorted(RESERVED_FIELDS & set(value))
        if ours:
            raise ValueError(f"it may not set {', '.join(ours)}")
        try:
            json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
        except ValueError as exc:
            raise ValueError("it holds half a surrogate pair, or a number that JSON has not") from exc
        return value

    @field_validator("headers")
    @classmethod
    def _can_be_sent(cls, value: dict[str, str]) -> dict[str, str]:
        # No value is ever named: it may be a key.
        for name, text in value.items():
            if not _HEADER.fullmatch(name) or name.lower() in _KEPT_HEADERS:
                raise ValueError(f"{name!r} cannot be set")
            if not text.isascii() or not text.isprintable() or text != text.strip():
                raise ValueError(f"the value of {name} is not one line of ASCII without blanks around it")
        return value

    @property
    def secrets(self) -> tuple[str, ...]:
        """What must not stand in a transcript."""
        return tuple(self.headers.values())

    def check_tools(self, names: list[str]) -> None:
        """Refuses a choice of a tool that there is not.

        What an MCP server has (`server__tool`) is known only once it runs, and let through.

        Raises:
            ConfigError: Naming the tools that there are.
        """
        for choice in (self.tool_choice, self.first_tool_choice):
            if choice is None or "__" in choice:
                continue
            if choice not in ("auto", "none", "required", *names):
                raise ConfigError(f"tool_choice {choice}: it is auto, none, required or one of {', '.join(names)}.")


# Without its validator, which takes its time to be built: most sessions give no parameters.
DEFAULT_PARAMETERS = ModelParameters.model_construct()
"""All left to the endpoint."""
