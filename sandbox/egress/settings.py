"""What a node's operator says about the way out, and what a box with one gets of it."""

from dataclasses import dataclass, field

from sandbox.egress.addresses import Network
from sandbox.egress.carrier import Egress
from sandbox.egress.dial import Policy, Resolver, resolve
from sandbox.egress.limits import EgressLimits
from sandbox.egress.rules import parse_rules
from sandbox.link import CarrierOf
from sandbox.wire import PROXY_PORT


@dataclass(frozen=True)
class EgressSettings:
    """For all boxes of a node. What one box may reach stands in its specification."""

    allow_private: frozenset[str] = frozenset()
    """Names, in the form of `rules.host_name`, that may be at private, loopback or own addresses: a mirror inside."""
    deny: tuple[Network, ...] = ()
    """Networks that are refused whatever else holds: public addresses that lead inside."""
    limits: EgressLimits = field(default_factory=EgressLimits)
    resolver: Resolver = field(default=resolve)

    def carrier_of(self, box_id: str, hosts: tuple[str, ...]) -> CarrierOf | None:
        """What carries the connections of a box that may reach these hosts; None where there are none.

        Raises:
            BadRule: a host cannot be read.
        """
        rules = parse_rules(hosts)
        if not rules:
            return None
        policy = Policy(rules, self.allow_private, self.deny, self.resolver)
        return Egress(box_id, policy, self.limits).carrier


def proxy_variables(hosts: tuple[str, ...]) -> dict[str, str]:
    """The environment that leads programs to the proxy port; empty for a box that may reach no host."""
    if not hosts:
        return {}
    proxy, without = f"http://127.0.0.1:{PROXY_PORT}", "localhost,127.0.0.1,::1"
    named = {name: proxy for name in ("http_proxy", "https_proxy", "all_proxy")} | {"no_proxy": without}
    return named | {name.upper(): value for name, value in named.items()}
