"""What is known of models: prices and windows, by name: settings → **model_table** → limits, context.

The file is TOML; each table's name is a model's, or a pattern (`*`, `?`, `[…]`); the first that fits counts:

    ["large-*"]
    input_usd = 2.5      # for a million tokens sent
    output_usd = 10.0    # for a million tokens made
    cached_usd = 1.25    # for a million tokens sent that were cached; as input_usd if missing
    context_tokens = 128000
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from coordinator.endpoint.reply import Usage
from coordinator.errors import ConfigError

MILLION = 1_000_000


class ModelFacts(BaseModel):
    """What is known of one model; None is not known."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, defer_build=True)

    input_usd: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    """US dollars for a million tokens sent."""
    output_usd: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    """US dollars for a million tokens made."""
    cached_usd: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    """US dollars for a million tokens sent that the endpoint had cached; None is `input_usd`."""
    context_tokens: int | None = Field(default=None, ge=1)
    """How many tokens a request and its reply may have together."""

    @model_validator(mode="after")
    def _prices_are_whole(self) -> "ModelFacts":
        if (self.input_usd is None) != (self.output_usd is None):
            raise ValueError("input_usd and output_usd belong together")
        if self.cached_usd is not None and self.input_usd is None:
            raise ValueError("cached_usd needs input_usd")
        return self

    @property
    def has_prices(self) -> bool:
        """Whether its cost can be told."""
        return self.input_usd is not None

    def cost_usd(self, usage: Usage) -> float:
        """Return what requests cost; 0 without prices."""
        if self.input_usd is None or self.output_usd is None:
            return 0.0
        cached_usd = self.input_usd if self.cached_usd is None else self.cached_usd
        fresh = usage.prompt_tokens - usage.cached_tokens
        parts = fresh * self.input_usd + usage.cached_tokens * cached_usd + usage.completion_tokens * self.output_usd
        return parts / MILLION


@dataclass(frozen=True)
class ModelTable:
    """Facts by name or pattern, in the file's order."""

    facts: Mapping[str, ModelFacts] = field(default_factory=dict)
    context_tokens: int | None = None
    """Window of models for which the file says none."""

    def of(self, model: str) -> ModelFacts:
        """Return what is known of a model; little where no name or pattern fits."""
        found = next((facts for name, facts in self.facts.items() if fnmatchcase(model, name)), ModelFacts())
        return found if found.context_tokens else found.model_copy(update={"context_tokens": self.context_tokens})


def read_model_table(path: Path | None, context_tokens: int | None = None) -> ModelTable:
    """Return a file's table; an empty one for None.

    Args:
        path: The file.
        context_tokens: Window of models for which it says none.

    Raises:
        ConfigError: It cannot be read, or something in it is not as it should be.
    """
    if path is None:
        return ModelTable(context_tokens=context_tokens)
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as exc:
        raise ConfigError(f"SANDHOG_MODELS_FILE: {path} cannot be read: {exc}") from exc
    return ModelTable({name: _facts(path, name, table) for name, table in tables.items()}, context_tokens)


def _facts(path: Path, name: str, table: object) -> ModelFacts:
    try:
        return ModelFacts.model_validate(table)
    except ValidationError as exc:
        fault = exc.errors(include_url=False)[0]
        where = ".".join([name, *(str(part) for part in fault["loc"])])
        raise ConfigError(f"SANDHOG_MODELS_FILE: {path}: {where}: {fault['msg']}") from exc
