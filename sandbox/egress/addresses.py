"""What a name may resolve to: public addresses that are not this machine's, whatever they are disguised as."""

import socket
from collections.abc import Callable, Iterable
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

_NEVER: tuple[tuple[Network, str], ...] = (
    (ip_network("169.254.0.0/16"), "link-local, where clouds keep their metadata"),
    (ip_network("fe80::/10"), "link-local"),
    (ip_network("168.63.129.16/32"), "a cloud's metadata service"),
    (ip_network("100.100.100.200/32"), "a cloud's metadata service"),
    (ip_network("192.0.0.192/32"), "a cloud's metadata service"),
    (ip_network("fd00:ec2::/32"), "a cloud's metadata service"),
    (ip_network("fd20:ce::/32"), "a cloud's metadata service"),
    (ip_network("0.0.0.0/8"), "this machine"),
    (ip_network("::/128"), "this machine"),
    (ip_network("224.0.0.0/4"), "multicast"),
    (ip_network("ff00::/8"), "multicast"),
    (ip_network("240.0.0.0/4"), "reserved"),
)
"""Refused also for names that may be private, as are disguises."""

_DISGUISES: tuple[tuple[Network, str], ...] = (
    (ip_network("::/96"), "an IPv4-compatible address"),
    (ip_network("::ffff:0:0:0/96"), "an IPv4-translated address"),
    (ip_network("64:ff9b:1::/48"), "a local NAT64 address"),
    (ip_network("2001::/32"), "a Teredo address"),
    (ip_network("2002::/16"), "a 6to4 address"),
    (ip_network("192.88.99.0/24"), "a 6to4 relay"),
)
_MAPPED = ip_network("::ffff:0:0/96")
_NAT64 = ip_network("64:ff9b::/96")
_ISATAP = (0x00005EFE, 0x02005EFE)
_GLOBAL_UNICAST = ip_network("2000::/3")


def parse_address(text: str) -> Address:
    """The address, a zone left out.

    Raises:
        ValueError: it is none.
    """
    return ip_address(text.partition("%")[0])


def is_own(address: Address) -> bool:
    """True when an interface of this machine has the address now: only then can a socket be bound to it."""
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((str(address), 0))
    except OSError:
        return False
    return True


def why_refused(
    address: Address,
    *,
    allow_private: bool,
    deny: Iterable[Network] = (),
    own: Callable[[Address], bool] = is_own,
) -> str:
    """Why a box may not be connected to this address; "" when it may.

    Args:
        address: What a name resolved to.
        allow_private: Private, loopback and own addresses are let through; the operator named the host.
        deny: Networks that are refused whatever else holds.
        own: Tells this machine's addresses.
    """
    plain = _undisguised(address)
    if any(seen in network for seen in (address, plain) for network in deny):
        return "in a network that this node's settings deny"
    if plain == IPv6Address("::1"):
        return "" if allow_private else "loopback"
    for network, what in _NEVER + _DISGUISES:
        if plain in network:
            return what
    if isinstance(plain, IPv6Address) and (int(plain) >> 32) & 0xFFFFFFFF in _ISATAP:
        return "an ISATAP address"
    return "" if allow_private else _why_private(plain, own)


def _undisguised(address: Address) -> Address:
    """The IPv4 address that a mapped or NAT64 address leads to; any other as it is."""
    if isinstance(address, IPv6Address) and (address in _MAPPED or address in _NAT64):
        return IPv4Address(int(address) & 0xFFFFFFFF)
    return address


def _why_private(address: Address, own: Callable[[Address], bool]) -> str:
    if address.is_loopback:
        return "loopback"
    if not address.is_global or (isinstance(address, IPv6Address) and address not in _GLOBAL_UNICAST):
        return "not a public address"
    if own(address):
        return "an address of this machine"
    return ""
