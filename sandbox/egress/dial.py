"""From a name to a connection: match → resolve → judge → connect to the very address that was judged."""

import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from sandbox.egress.addresses import Address, Network, parse_address, why_refused
from sandbox.egress.rules import Rule

MAX_ADDRESSES = 8
"""Of one name at most so many are looked at and tried."""

Resolver = Callable[[str], list[str]]
"""All addresses of a name as text. Raises OSError. May take long."""


class Refused(Exception):
    """The policy does not let this connection through; the message tells the client why."""


class Unreachable(Exception):
    """The host is allowed and cannot be reached; the message tells the client why."""


def resolve(name: str) -> list[str]:
    """What the machine's own resolver says."""
    found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


@dataclass(frozen=True)
class Policy:
    """What one box may reach."""

    rules: tuple[Rule, ...]
    allow_private: frozenset[str] = frozenset()
    """Names, in the form of `host_name`, that may be at private, loopback or own addresses."""
    deny: tuple[Network, ...] = ()
    """Networks that are refused even where all else allows them."""
    resolver: Resolver = field(default=resolve)

    def check(self, host: str, port: int) -> None:
        """Come back if host and port are on the list.

        Raises:
            Refused: they are not.
        """
        if any(rule.allows(host, port) for rule in self.rules):
            return
        listed = ", ".join(str(rule) for rule in self.rules[:20])
        raise Refused(f"{host} port {port} is not on this box's list of allowed hosts ({listed})")

    def addresses(self, host: str) -> list[Address]:
        """The addresses of an allowed host that may be connected to, asked for now.

        Raises:
            Refused: it has none but forbidden ones.
            Unreachable: it has none.
        """
        try:
            texts = self.resolver(host)[:MAX_ADDRESSES]
            found = [parse_address(text) for text in texts]
        except (OSError, ValueError, UnicodeError) as error:
            raise Unreachable(f"the name {host} cannot be resolved: {error}") from error
        if not found:
            raise Unreachable(f"the name {host} has no address")
        allow_private = host in self.allow_private
        reasons = [why_refused(address, allow_private=allow_private, deny=self.deny) for address in found]
        good = [address for address, reason in zip(found, reasons, strict=True) if not reason]
        if not good:
            # Which address it was is none of the box's business.
            raise Refused(f"{host} is at an address that boxes may not reach: {reasons[0]}")
        return good


def dial(policy: Policy, host: str, port: int, timeout_s: float) -> socket.socket:
    """A connected socket that does not block. The name is resolved once; what was judged is what is connected to.

    Raises:
        Refused, Unreachable.
    """
    policy.check(host, port)
    deadline = time.monotonic() + timeout_s
    failure = "no address answered in time"
    for address in policy.addresses(host):
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            break
        family = socket.AF_INET if address.version == 4 else socket.AF_INET6
        try:
            connection = socket.socket(family, socket.SOCK_STREAM)
        except OSError as error:
            raise Unreachable(f"the node has no socket left: {error}") from error
        try:
            connection.settimeout(left_s)
            connection.connect((str(address), port))
            connection.setblocking(False)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError as error:
            connection.close()
            failure = error.strerror or str(error)
            continue
        return connection
    raise Unreachable(f"{host} port {port} cannot be reached: {failure}")
