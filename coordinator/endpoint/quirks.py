"""How endpoints differ from one another, in one table: settings → **quirks** → request, history.

The first row that fits an endpoint's host, else the first that fits the model's name, says how it is asked. A setting
(`SANDHOG_ENDPOINT_QUIRKS`, a JSON object) changes single fields for an endpoint that no row knows.
"""

import json
import re
from dataclasses import dataclass, field, fields, replace
from typing import ClassVar, Literal, get_args
from urllib.parse import urlsplit

from pydantic import ConfigDict, TypeAdapter, ValidationError

from coordinator.errors import ConfigError

Echoable = Literal["reasoning_content", "reasoning_details", "reasoning", "extra_content"]
"""A field beside text and calls that some endpoint wants back."""
ECHOABLE: frozenset[str] = frozenset(get_args(Echoable))


@dataclass(frozen=True)
class Quirks:
    """What one endpoint wants otherwise than most do."""

    # For the setting; a model of pydantic's would take its time at each start.
    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    max_tokens_name: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    """What the bound on a reply's tokens is called."""
    stream_options: bool = True
    """Whether a streamed request may ask for its usage."""
    parallel_tool_calls: bool = True
    """Whether the field of that name is taken."""
    tool_choice: bool = True
    """Whether the field of that name is taken."""
    required_word: Literal["required", "any"] = "required"
    """What `tool_choice` calls a call that must be made."""
    named_tool_choice: bool = True
    """Whether `tool_choice` may name a tool; else a call of any tool is demanded."""
    seed_name: Literal["seed", "random_seed"] = "seed"
    """What the seed is called."""
    system_role: Literal["system", "developer"] = "system"
    """The role of the first message."""
    null_content: bool = True
    """Whether a message with calls and no text may have `content: null`; else it is ""."""
    echoed: tuple[Echoable, ...] = ()
    """Fields of the model's messages and calls that are sent back: reasoning, signatures."""
    echoes_empty: bool = False
    """Whether an echoed field of a message with calls is sent also where it was missing."""


@dataclass(frozen=True)
class _Row:
    """One endpoint or family of models."""

    why: str
    """Whose it is, and what it refuses otherwise."""
    quirks: Quirks
    hosts: tuple[str, ...] = ()
    """Names of hosts, their subdomains included."""
    models: re.Pattern[str] = field(default=re.compile(r"(?!)"))
    """Fits a part of the model's name."""


TABLE: tuple[_Row, ...] = (
    _Row(
        "DeepSeek: 400 where the reasoning of a message with calls does not come back, even when it was empty",
        Quirks(echoed=("reasoning_content",), echoes_empty=True),
        hosts=("api.deepseek.com",),
    ),
    _Row(
        "Gemini: 400 where a call's thought signature does not come back",
        Quirks(echoed=("extra_content",)),
        hosts=("generativelanguage.googleapis.com", "aiplatform.googleapis.com"),
    ),
    _Row(
        "Mistral: 422 for every field that it does not know; its word for a call that must be made is any",
        Quirks(stream_options=False, required_word="any", seed_name="random_seed"),
        hosts=("api.mistral.ai", "codestral.mistral.ai"),
    ),
    _Row(
        "Moonshot, MiniMax, Z.ai: models that think between calls need their thoughts",
        Quirks(echoed=("reasoning_content", "reasoning_details")),
        hosts=("api.moonshot.ai", "api.moonshot.cn", "api.minimax.io", "api.minimaxi.com", "api.z.ai"),
    ),
    _Row(
        "OpenRouter: passes thoughts on to the models that need them",
        Quirks(echoed=("reasoning_details",)),
        hosts=("openrouter.ai",),
    ),
    _Row(
        "OpenAI's o models: 400 for max_tokens and for parallel_tool_calls; they make one call at a time",
        Quirks(max_tokens_name="max_completion_tokens", system_role="developer", parallel_tool_calls=False),
        models=re.compile(r"(?:^|/)o[1-9](?:-|$)", re.IGNORECASE),
    ),
    _Row(
        "OpenAI's other reasoning models: 400 for max_tokens",
        Quirks(max_tokens_name="max_completion_tokens", system_role="developer"),
        models=re.compile(r"(?:^|/)gpt-[5-9](?!.*chat)", re.IGNORECASE),
    ),
    _Row(
        "OpenAI, Azure: max_tokens is the old name",
        Quirks(max_tokens_name="max_completion_tokens"),
        hosts=("api.openai.com", "openai.azure.com"),
    ),
    _Row(
        "Models that think between calls, wherever they are served",
        Quirks(echoed=("reasoning_content", "reasoning_details", "reasoning")),
        models=re.compile(r"kimi-k2.*think|minimax-m[2-9]|glm-(?:4\.[5-9]|[5-9])|gpt-oss", re.IGNORECASE),
    ),
    _Row(
        "Gemini behind a gateway",
        Quirks(echoed=("extra_content",)),
        models=re.compile(r"gemini-[3-9]", re.IGNORECASE),
    ),
)
"""Source: the endpoints' own documentation and error messages. The first row that fits counts."""


def quirks_of(base_url: str | None, model: str, changes: str = "") -> Quirks:
    """How an endpoint is asked.

    Args:
        base_url: Its root; None for OpenAI's own.
        model: The model's name.
        changes: A JSON object with fields of `Quirks` that count instead of the table's; "" for none.

    Raises:
        ConfigError: `changes` is not such an object.
    """
    host = "api.openai.com" if base_url is None else (urlsplit(base_url).hostname or "")
    fitting = (row.quirks for row in TABLE if _is_host(host, row.hosts) or row.models.search(model))
    found = next(fitting, Quirks())
    if not changes.strip():
        return found
    try:
        changed = TypeAdapter(Quirks).validate_json(changes)
    except ValidationError as exc:
        fault = exc.errors()[0]
        where = ".".join(str(part) for part in fault["loc"]) or "not a JSON object"
        known = ", ".join(each.name for each in fields(Quirks))
        raise ConfigError(f"SANDHOG_ENDPOINT_QUIRKS: {where}: {fault['msg']}. Its fields: {known}.") from exc
    return replace(found, **{name: getattr(changed, name) for name in json.loads(changes)})


def _is_host(host: str, hosts: tuple[str, ...]) -> bool:
    return any(host == known or host.endswith(f".{known}") for known in hosts)
