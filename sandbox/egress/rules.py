"""Which hosts a box may reach: names and ports, never addresses."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from sandbox.errors import SandboxError

DEFAULT_PORTS = frozenset({80, 443})
MAX_NAME_CHARS = 253

_LABEL = re.compile(r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?")
# What the C library, curl or a browser would read as a number: 1, 017, 0x7f.
_NUMERIC = re.compile(r"[0-9]+|0x[0-9a-f]*")


class BadRule(SandboxError):
    """An allowed host that cannot be read; the message says what one looks like."""


@dataclass(frozen=True)
class Rule:
    """One allowed host."""

    name: str
    """Lower case, without a dot at the end."""
    is_wildcard: bool = False
    """All names below `name`, but not `name` itself; with no name, all."""
    ports: frozenset[int] = DEFAULT_PORTS

    def allows(self, host: str, port: int) -> bool:
        """True for a host, in the form of `host_name`, and port that this rule lets through."""
        if port not in self.ports:
            return False
        if self.is_wildcard:
            return not self.name or host.endswith("." + self.name)
        return host == self.name

    def __str__(self) -> str:
        ports = "" if self.ports == DEFAULT_PORTS else ":" + ",".join(str(port) for port in sorted(self.ports))
        return f"{'*' if self.is_wildcard else ''}{'.' if self.is_wildcard and self.name else ''}{self.name}{ports}"


def host_name(text: str) -> str | None:
    """A name in its one form (lower case, no dot at the end); None for an address in any spelling, or no name."""
    name = text.lower() if text.isascii() else ""
    name = name.removesuffix(".")
    labels = name.split(".")
    if len(name) > MAX_NAME_CHARS or not all(_LABEL.fullmatch(label) for label in labels):
        return None
    # As in the URL standard: a name whose last label is a number is an IPv4 address or nothing.
    if _NUMERIC.fullmatch(labels[-1]):
        return None
    return name


def port_number(text: str) -> int | None:
    """A port in decimal digits; None when it is none."""
    if not re.fullmatch(r"[0-9]{1,5}", text):
        return None
    return int(text) if 0 < int(text) < 65536 else None


def parse_rule(text: str) -> Rule:
    """The rule that `host`, `*.host`, `host:port`, `host:port,port` or `*` (all) stands for.

    Without ports they are 80 and 443.

    Raises:
        BadRule: the text is none of these.
    """
    name_text, colon, ports_text = text.strip().partition(":")
    is_wildcard = name_text.startswith("*.")
    name = "" if name_text == "*" else host_name(name_text.removeprefix("*."))
    ports = [port_number(part) for part in ports_text.split(",")] if colon else list(DEFAULT_PORTS)
    known = frozenset(port for port in ports if port is not None)
    if name is None or len(known) != len(ports):
        raise BadRule(
            f"{text!r} is no allowed host: give a name such as example.org, *.example.org or example.org:8443"
        )
    return Rule(name, is_wildcard or not name, known)


def parse_rules(texts: Iterable[str]) -> tuple[Rule, ...]:
    """All rules.

    Raises:
        BadRule: one of them cannot be read.
    """
    return tuple(parse_rule(text) for text in texts)
