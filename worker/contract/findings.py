"""What a look at an installation found: node and coordinator → **findings** → `sandhog doctor`."""

from enum import StrEnum

from pydantic import BaseModel, ConfigDict, TypeAdapter


class State(StrEnum):
    """How well something stands."""

    OK = "ok"
    WARNING = "warning"
    """It works, or cannot be judged; something should be looked at."""
    FAILURE = "failure"
    """Sessions will fail, or are not as safe as they should be."""


class Finding(BaseModel):
    """One thing that was looked at."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    area: str
    """What it belongs to: settings, redis, engine, box, …"""
    state: State
    said: str
    """What was found, with its values."""
    fix: str = ""
    """What to do; empty where all is well."""


FINDINGS = TypeAdapter(list[Finding])


def ok(area: str, said: str) -> Finding:
    """Return that something is well."""
    return Finding(area=area, state=State.OK, said=said)


def warning(area: str, said: str, fix: str) -> Finding:
    """Return that something should be looked at."""
    return Finding(area=area, state=State.WARNING, said=said, fix=fix)


def failure(area: str, said: str, fix: str) -> Finding:
    """Return that something does not work."""
    return Finding(area=area, state=State.FAILURE, said=said, fix=fix)
