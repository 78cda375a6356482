"""`sandhog explain`: what would happen to a command, and the check of a policy file."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from coordinator.cli import cli
from coordinator.commands.explain import explain, rules_of
from coordinator.errors import ConfigError
from tools.permission import GUARDED
from tools.registry import builtin_registry

RULES = """
[[rule]]
tool = "Bash"
command = "make ..."
decision = "allow"

[[test]]
command = "make all"
expect = "allow"
"""


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    path = tmp_path / "policy.toml"
    path.write_text(RULES)
    return path


def said(*arguments: str) -> str:
    result = CliRunner().invoke(cli, ["explain", *arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_a_command_is_explained_with_the_part_that_decides_and_each_of_its_commands() -> None:
    assert said("ls && make | sudo x").splitlines() == [
        "deny: `sudo` asks for another user's rights; the guarded policy refuses that",
        "  │ ls && make | sudo x",
        "  ·              ^^^^^^",
        "its commands:",
        "  ✓ ls: `ls` only reads",
        "  ? make: `make` is not known to only read with these arguments",
        "  ✗ sudo x: `sudo` asks for another user's rights; the guarded policy refuses that",
    ]


def test_what_is_asked_says_what_always_would_mean() -> None:
    assert said("make").splitlines()[-1].endswith("these very commands, wherever they come first")
    assert said("make > f").splitlines()[-1].endswith("this very call only")


def test_the_policy_the_file_and_reading_only_are_taken_into_account(policy: Path) -> None:
    assert said("make", "--policy", "boxed").startswith("allow: the session is boxed")
    assert said("make", "--policy-file", str(policy)).startswith("allow: rule 1 of the policy file is for `make`")
    assert said("ls", "--policy-file", str(policy)).startswith("deny: no rule of the policy file allows it: `ls`")
    assert said("make", "--read-only").startswith("deny: the session only reads")


def test_hostile_text_is_explained_as_text() -> None:
    output = said("ls \x1b[2J\u202e; rm x")
    assert not {"\x1b", "\u202e"} & set(output)


def test_a_policy_file_is_checked_with_its_tests(policy: Path) -> None:
    assert "its tests hold" in said("--policy-file", str(policy))
    policy.write_text(RULES.replace('expect = "allow"', 'expect = "deny"'))
    with pytest.raises(ConfigError, match=r"policy\.toml: test 1: Bash 'make all' is allow, not deny"):
        said("--policy-file", str(policy))


def test_there_must_be_something_to_explain() -> None:
    with pytest.raises(ConfigError, match="Give a command"):
        said()


def test_no_file_is_no_rules() -> None:
    assert rules_of(None, builtin_registry()) is None


def test_an_empty_command_is_explained_too() -> None:
    verdict, lines = explain("", GUARDED)
    assert verdict.decision.value == "ask"
    assert lines[0] == "ask: it runs nothing known"
