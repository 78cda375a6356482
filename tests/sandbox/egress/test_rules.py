"""Allowed hosts as they are written, and what they let through."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandbox.egress.rules import BadRule, host_name, parse_rule


@pytest.mark.parametrize(
    ("rule", "host", "port", "is_allowed"),
    [
        ("example.org", "example.org", 443, True),
        ("example.org", "example.org", 80, True),
        ("example.org", "example.org", 22, False),
        ("example.org", "www.example.org", 443, False),
        ("example.org", "notexample.org", 443, False),
        ("example.org", "example.org.evil.net", 443, False),
        ("EXAMPLE.org.", "example.org", 443, True),
        ("*.example.org", "a.b.example.org", 443, True),
        ("*.example.org", "example.org", 443, False),
        ("*.example.org", "evilexample.org", 443, False),
        ("example.org:8443", "example.org", 8443, True),
        ("example.org:8443", "example.org", 443, False),
        ("example.org:1,65535", "example.org", 65535, True),
        ("*", "any.thing", 443, True),
        ("*", "any.thing", 25, False),
        ("*:25", "any.thing", 25, True),
    ],
)
def test_a_rule_lets_through_what_it_names(rule: str, host: str, port: int, is_allowed: bool) -> None:
    assert parse_rule(rule).allows(host, port) is is_allowed
    assert parse_rule(str(parse_rule(rule))) == parse_rule(rule)


@pytest.mark.parametrize(
    "text",
    ["", " ", "*.", "*.*", "a.*", "http://a.org", "a.org/", "a.org:", "a.org:0", "a.org:65536", "a.org:80,",
     "a.org:+80", "a.org:٨٠", "127.0.0.1", "*.0.0.1", "127.1", "0x7f.1", "1", "0x", "[::1]", "::1", "a..org", "-a.org",
     "a-.org", "ä.org", "a b.org", "a\0.org", "a\n.org", "a" * 64 + ".org", ".".join(["a" * 60] * 5)],
)  # fmt: skip
def test_what_is_no_rule_is_refused(text: str) -> None:
    with pytest.raises(BadRule):
        parse_rule(text)


@given(st.text(max_size=80))
def test_a_name_has_one_form(text: str) -> None:
    name = host_name(text)
    if name is not None:
        assert host_name(name) == name
        assert name == name.lower()
        assert not set(name) - set("abcdefghijklmnopqrstuvwxyz0123456789-_.")


@given(st.integers(0, 2**32 - 1), st.sampled_from(["{}", "{:#x}", "0{:o}", "1.{}", "0x1.{:#x}", "{}."]))
def test_a_number_is_never_a_name(number: int, form: str) -> None:
    assert host_name(form.format(number)) is None
