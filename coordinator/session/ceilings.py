"""Ceilings: the most that the sessions of a principal may have; asked once, when a session is made."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from pydantic import BaseModel, ConfigDict, Field

from coordinator.errors import ConfigError
from coordinator.session.limits import Limits
from tools.registry import Registry
from worker.contract.orders import Policy


class Ceiling(BaseModel):
    """What a principal's sessions may have at most; None anywhere is no bound. Without any it is a local user's."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    tools: frozenset[str] | None = None
    """Names of the tools."""
    policies: frozenset[Policy] | None = None
    """The policies that may be chosen."""
    images: tuple[str, ...] | None = None
    """Image references; one that ends in `*` stands for all that begin so."""
    profiles: frozenset[str] | None = None
    """Names of the boxes' limits."""
    may_make_images: bool = True
    """Whether sessions may have set-up commands and Dockerfiles, which run as root in boxes of their own."""
    max_steps: int | None = Field(default=None, ge=1)
    """Model replies of one session."""
    max_calls: int | None = Field(default=None, ge=1)
    """Tool calls of one session."""
    max_tokens_in: int | None = Field(default=None, ge=1)
    """Tokens sent in one session."""
    max_tokens_out: int | None = Field(default=None, ge=1)
    """Tokens made in one session."""
    max_cost_usd: float | None = Field(default=None, gt=0)
    """US dollars of one session."""
    max_time_s: float | None = Field(default=None, gt=0)
    """Seconds of one session."""

    def may_use(self, image: str) -> bool:
        """Whether a session may have an image."""
        return self.images is None or any(_is_image(image, allowed) for allowed in self.images)

    def cut(self, limits: Limits) -> Limits:
        """Return a session's limits, none above the ceiling."""
        most = {name: getattr(self, f"max_{name}") for name in Limits.model_fields}
        wanted = limits.model_dump()
        both = {name: [value for value in (wanted[name], most[name]) if value is not None] for name in most}
        return Limits.model_validate({name: min(values, default=None) for name, values in both.items()})


NO_READING = ("changes", "acts_outside")
"""Effects of tools that a session that only reads is not shown."""
NO_CEILING = Ceiling()
"""Of a local user."""


@dataclass(frozen=True)
class Wants:
    """What is asked for a session."""

    policy: Policy
    image: str
    limits: Limits
    profile: str = "medium"
    tools: frozenset[str] | None = None
    """None is all."""
    makes_image: bool = False
    """Whether a set-up or a Dockerfile makes the box's image."""


def within(wants: Wants, ceiling: Ceiling, principal: str) -> Wants:
    """Return what the session gets: numbers and sets cut to the ceiling.

    Raises:
        ConfigError: a policy, image or profile above it; never changed silently, since it would be another session.
    """
    _refuse_unless(wants.policy, ceiling.policies, "policy", principal)
    _refuse_unless(wants.profile, ceiling.profiles, "profile", principal)
    if ceiling.images is not None and not ceiling.may_use(wants.image):
        raise _refusal("image", wants.image, ceiling.images, principal)
    if wants.makes_image and not ceiling.may_make_images:
        raise ConfigError(f"{principal} may not use set-up commands or a Dockerfile.")
    return replace(wants, tools=in_both(wants.tools, ceiling.tools), limits=ceiling.cut(wants.limits))


def in_both(one: frozenset[str] | None, other: frozenset[str] | None) -> frozenset[str] | None:
    """Return the names of tools that are in both; None is all."""
    if one is None or other is None:
        return other if one is None else one
    return one & other


def usable_tools(registry: Registry, tools: frozenset[str] | None, *, is_read_only: bool) -> Registry:
    """Return the tools of a registry that a session may use at all: what is always denied is not shown to the model."""
    return Registry(
        tool
        for tool in registry.tools()
        if (tools is None or tool.name in tools) and not (is_read_only and tool.effect in NO_READING)
    )


def _refuse_unless(value: str, allowed: Iterable[str] | None, what: str, principal: str) -> None:
    if allowed is not None and value not in allowed:
        raise _refusal(what, value, allowed, principal)


def _refusal(what: str, value: str, allowed: Iterable[str], principal: str) -> ConfigError:
    names = ", ".join(sorted(str(one) for one in allowed)) or "none"
    return ConfigError(f"{principal} may not use the {what} {value}; allowed: {names}.")


def _is_image(image: str, allowed: str) -> bool:
    return image.startswith(allowed[:-1]) if allowed.endswith("*") else image == allowed
