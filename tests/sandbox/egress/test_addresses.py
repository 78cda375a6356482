"""What a name may resolve to."""

import socket
from ipaddress import IPv4Address, IPv6Address, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandbox.egress.addresses import is_own, parse_address, why_refused

PUBLIC = ("93.184.216.34", "1.1.1.1", "2606:4700:4700::1111", "2a00:1450:4001:81b::200e")
PRIVATE = (
    "127.0.0.1", "127.9.9.9", "10.0.0.1", "172.16.0.1", "172.31.255.255", "192.168.1.1", "100.64.0.1", "198.18.0.1",
    "192.0.2.1", "::1", "fc00::1", "fd12::1", "fec0::1", "2001:db8::1",
)  # fmt: skip
NEVER = (
    "0.0.0.0", "0.1.2.3", "169.254.169.254", "169.254.0.1", "168.63.129.16", "100.100.100.200", "192.0.0.192",
    "224.0.0.1", "239.255.255.250", "240.0.0.1", "255.255.255.255", "::", "fe80::1", "fe80::1%eth0", "ff02::1",
    "fd00:ec2::254", "fd20:ce::254",
    # In disguise.
    "::127.0.0.1", "::169.254.169.254", "::ffff:169.254.169.254", "64:ff9b::a9fe:a9fe", "64:ff9b:1::7f00:1",
    "2002:7f00:1::", "2002:a9fe:a9fe::1", "2001:0:1:2:3:4:5:6", "::ffff:0:127.0.0.1", "2a00::5efe:7f00:1",
    "2a00::200:5efe:10.0.0.1", "192.88.99.1",
)  # fmt: skip


def refused(text: str, allow_private: bool = False, deny: str | None = None) -> str:
    networks = (ip_network(deny),) if deny else ()
    return why_refused(parse_address(text), allow_private=allow_private, deny=networks)


@pytest.mark.parametrize("text", PUBLIC)
def test_a_public_address_is_let_through(text: str) -> None:
    assert refused(text) == ""


@pytest.mark.parametrize("text", [*PRIVATE, "::ffff:127.0.0.1", "::ffff:10.0.0.1", "64:ff9b::a00:1"])
def test_a_private_address_only_where_the_operator_named_the_host(text: str) -> None:
    assert refused(text)
    assert refused(text, allow_private=True) == ""


@pytest.mark.parametrize("text", NEVER)
def test_metadata_multicast_and_disguises_never(text: str) -> None:
    assert refused(text)
    assert refused(text, allow_private=True)


@pytest.mark.parametrize("text", ["203.0.113.7", "::ffff:203.0.113.7", "64:ff9b::cb00:7107"])
def test_a_denied_network_is_denied_in_every_disguise(text: str) -> None:
    assert "deny" in refused(text, allow_private=True, deny="203.0.113.0/24")


def test_an_address_of_this_machine_is_refused_even_if_it_is_public() -> None:
    for text in PUBLIC:
        assert "this machine" in why_refused(parse_address(text), allow_private=False, own=lambda _: True)


def test_this_machine_knows_its_addresses() -> None:
    # Which interfaces there are differs; that the question is answered by the kernel does not.
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.bind(("127.0.0.1", 0))
        assert is_own(parse_address(probe.getsockname()[0]))
    assert not is_own(IPv4Address("93.184.216.34"))
    assert not is_own(IPv6Address("2606:4700:4700::1111"))


@given(st.ip_addresses(v=4))
def test_what_an_ipv4_address_may_not_be_its_disguises_may_not_be(address: IPv4Address) -> None:
    reason = why_refused(address, allow_private=False)
    for prefix in ("::ffff:", "64:ff9b::"):
        assert bool(why_refused(parse_address(f"{prefix}{address}"), allow_private=False)) is bool(reason)
    high, low = divmod(int(address), 65536)
    for disguise in (f"::{high:x}:{low:x}", f"2002:{high:x}:{low:x}::1", f"64:ff9b:1::{high:x}:{low:x}"):
        assert why_refused(parse_address(disguise), allow_private=True) or disguise == "::0:1"
    if not address.is_global or address.is_multicast:
        assert reason
