"""Principals: who may ask for sessions, proven by a token, and what they may have at most."""

import hashlib
import hmac
from datetime import UTC, datetime
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from coordinator.session.ceilings import NO_CEILING, Ceiling

NAME_PATTERN = r"^[a-z0-9][a-z0-9_-]{0,62}$"


class Quota(BaseModel):
    """How many sessions a principal may have; None is no bound."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    running: int | None = Field(default=None, ge=1)
    """At once, in the whole cluster; further ones wait."""
    queued: int | None = Field(default=None, ge=0)
    """Waiting at once, in the whole cluster, where `running` is bounded; further ones are refused."""
    created_per_hour: int | None = Field(default=None, ge=1)
    """In any hour, in the whole cluster."""
    weight: int = Field(default=1, ge=1, le=100)
    """Its share of the turns while all places are taken, against that of others."""

    @property
    def live(self) -> int | None:
        """How many may run or wait at once."""
        return None if self.running is None or self.queued is None else self.running + self.queued


NO_QUOTA = Quota()


class Allowance(BaseModel):
    """What a principal's sessions may have: the content of a ceiling file."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    ceiling: Ceiling = NO_CEILING
    """Tools, policies, images, profiles and steps."""
    quota: Quota = NO_QUOTA
    roots: frozenset[str] | None = None
    """Names of the configured directories whose content may be worked on; None is all."""
    bind: bool = False
    """Sessions may work on such a directory itself, not only on a copy."""
    models: frozenset[str] | None = None
    """Names of models; None is any."""
    setup: bool = True
    """Commands may make the image ready, as root and with network."""
    allow_hosts: frozenset[str] | None = None
    """Hosts that boxes may reach, as they are written in a request; None is any."""
    env_names: frozenset[str] = frozenset()
    """Variables of the server's own environment that may be handed to a box."""
    repos: tuple[str, ...] | None = None
    """Beginnings of the addresses that may be cloned, such as `https://example.org/team/`; None is any."""
    credentials: frozenset[str] = frozenset()
    """Names of the nodes' git credentials that may be used."""
    webhooks: bool = True
    is_operator: bool = False
    """Sees and steers the sessions of all principals."""
    attributes: dict[str, str] = {}
    """What else is known of the principal; told to own tools."""


class StoredToken(BaseModel):
    """A token as it lies on the volume: enough to know it again, not to use it."""

    model_config = ConfigDict(frozen=True, extra="ignore", use_attribute_docstrings=True)

    id: str
    """Its public part."""
    sha256: str
    """Of the whole token; a token has 256 random bits, so that no slow hash is needed."""
    created_at: datetime


class Principal(BaseModel):
    """Who sessions act for."""

    model_config = ConfigDict(frozen=True, extra="ignore", use_attribute_docstrings=True)

    name: str = Field(pattern=NAME_PATTERN)
    allowance: Allowance = Allowance()
    tokens: tuple[StoredToken, ...] = ()

    def sees(self, owner: str) -> bool:
        """Whether a session of that owner exists for this principal."""
        return owner == self.name or self.allowance.is_operator


class PrincipalsFile(BaseModel):
    """Everything in `principals.json`."""

    model_config = ConfigDict(frozen=True, extra="ignore", use_attribute_docstrings=True)

    v: Literal[1] = 1
    principals: tuple[Principal, ...] = ()


def token_digest(token: str) -> str:
    """Return what is kept of a token."""
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).hexdigest()


def stored(token: str, token_id: str, created_at: datetime | None = None) -> StoredToken:
    """Return the form in which a token is kept."""
    return StoredToken(id=token_id, sha256=token_digest(token), created_at=created_at or datetime.now(UTC))


def whose(digest: str, principals: tuple[Principal, ...]) -> Principal | None:
    """Return the principal of the token with that digest, None if it is nobody's; takes as long whichever it is."""
    found: Principal | None = None
    for principal in principals:
        for one in principal.tokens:
            if hmac.compare_digest(one.sha256, digest):
                found = principal
    return found
