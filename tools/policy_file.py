"""Policy file: a user's TOML → **policy_file** → rules. Whatever is wrong is named with its key, its value and the fix.

A pattern is written as a text of words (`"git push ..."`, quotes as in a shell) or as a list of words.
"""

import shlex
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from tools.cutting import shorten_value
from tools.matching import REST
from tools.permission import GUARDED, Policy, Terms, decide
from tools.registry import Registry
from tools.rules import (
    ANY_TOOL,
    MCP_MARK,
    MOST_BYTES,
    MOST_PATTERN_WORDS,
    MOST_RULES,
    Otherwise,
    Rule,
    Rules,
    rules_to_text,
)
from tools.verdict import Decision

MOST_FILE_BYTES = 256_000
_SHELL_SIGNS = frozenset("|&;<>$`\n")
_C = TypeVar("_C", Decision, Otherwise, Policy)


class PolicyFileError(Exception):
    """The file cannot be used; the message names the file, the key, its value and what to write instead."""


def load_policy_file(path: Path, known: Registry) -> Rules:
    """Return the rules of a file whose own tests hold.

    Args:
        path: The file.
        known: The session's tools; rules for others are refused, since they would never be meant.

    Raises:
        PolicyFileError: it cannot be read, is not TOML, holds something unknown, or one of its tests fails.
    """
    try:
        raw = path.read_bytes()
    except OSError as exc:
        raise PolicyFileError(f"The policy file {path} cannot be read: {exc.strerror}. Correct its path.") from exc
    if len(raw) > MOST_FILE_BYTES:
        raise PolicyFileError(f"{path} holds {len(raw)} bytes; at most {MOST_FILE_BYTES} are read. Shorten it.")
    try:
        return read_policy(raw.decode(), known)
    except (UnicodeDecodeError, PolicyFileError) as exc:
        raise PolicyFileError(f"{path}: {exc}") from exc


def read_policy(text: str, known: Registry) -> Rules:
    """Return the rules of a policy file's text.

    Raises:
        PolicyFileError: as `load_policy_file`, without the file's name.
    """
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as exc:
        raise PolicyFileError(f"it is not TOML: {exc}") from exc
    _only(table, "the file", {"otherwise", "rule", "test"})
    entries = _tables(table, "rule")
    if len(entries) > MOST_RULES:
        raise PolicyFileError(f"it holds {len(entries)} rules; at most {MOST_RULES} are allowed. Join some of them.")
    rules = Rules(
        rules=tuple(_rule(entry, f"rule {number}", known) for number, entry in enumerate(entries, start=1)),
        otherwise=_choice(table, "otherwise", "the file", Otherwise, default=Otherwise.DENY),
    )
    if len(rules_to_text(rules)) > MOST_BYTES:
        raise PolicyFileError(f"its rules are more than {MOST_BYTES} bytes together. Shorten patterns or `why`.")
    for number, entry in enumerate(_tables(table, "test"), start=1):
        _check(entry, f"test {number}", rules, known)
    return rules


def _rule(entry: Mapping[str, Any], where: str, known: Registry) -> Rule:
    _only(entry, where, {"tool", "command", "decision", "why"})
    tools = _tools(entry, where, known)
    command = None
    if "command" in entry:
        if not any(_runs_commands(tool, known) for tool in tools):
            _wrong(where, "command", entry["command"], "leave it out: this tool runs no commands")
        command = _pattern(entry["command"], where)
    why = entry.get("why", "")
    if not isinstance(why, str) or len(why) > 500:
        _wrong(where, "why", why, "write a text of at most 500 characters")
    return Rule(tools=tools, command=command, decision=_choice(entry, "decision", where, Decision), why=why)


def _tools(entry: Mapping[str, Any], where: str, known: Registry) -> tuple[str, ...]:
    value = entry.get("tool")
    tools = [value] if isinstance(value, str) else value
    if not isinstance(tools, list) or not tools or not all(isinstance(tool, str) for tool in tools):
        _wrong(where, "tool", value, 'write a tool\'s name, a list of names, or "*" for any')
    for tool in tools:
        # The tools of MCP servers, `server__tool`, are known once their servers run.
        if tool != ANY_TOOL and known.get(tool) is None and MCP_MARK not in tool:
            _wrong(where, "tool", tool, f'there is no such tool; write one of {", ".join(known.names())}, or "*"')
    return tuple(tools)


def _runs_commands(tool: str, known: Registry) -> bool:
    found = known.get(tool)
    return tool == ANY_TOOL or (found is not None and found.effect == "runs_commands")


def _pattern(value: object, where: str) -> tuple[str, ...]:
    if isinstance(value, str):
        if _SHELL_SIGNS & set(value):
            _wrong(where, "command", value, "a pattern is the words of one simple command; write a rule for each")
        try:
            words = shlex.split(value)
        except ValueError as exc:
            _wrong(where, "command", value, f"{exc}; close the quotes, or write a list of words")
    elif isinstance(value, list) and all(isinstance(word, str) for word in value):
        words = value
    else:
        _wrong(where, "command", value, 'write a text such as "git push ...", or a list of words')
    if not words or words[0] == REST or not all(words):
        _wrong(where, "command", value, "begin with a program's name, and leave no word empty")
    if len(words) > MOST_PATTERN_WORDS or any(len(word) > 300 for word in words):
        _wrong(where, "command", value, f"write at most {MOST_PATTERN_WORDS} words of at most 300 characters")
    return tuple(words)


def _check(entry: Mapping[str, Any], where: str, rules: Rules, known: Registry) -> None:
    """Raise unless one of the file's tests holds."""
    _only(entry, where, {"tool", "command", "expect", "policy"})
    expected = _choice(entry, "expect", where, Decision)
    policy = _choice(entry, "policy", where, Policy, default=GUARDED.policy)
    command, tool = entry.get("command"), entry.get("tool", "Bash")
    if not isinstance(tool, str) or known.get(tool) is None:
        _wrong(where, "tool", tool, f"write one of {', '.join(known.names())}")
    if command is not None and not isinstance(command, str):
        _wrong(where, "command", command, "write the command as the model would")
    if command is None and _runs_commands(tool, known):
        _wrong(where, "command", command, f"{tool} needs a command to judge; write one")
    arguments = {} if command is None else {"command": command}
    verdict = decide(tool, arguments, Terms(policy, rules), known)
    if verdict.decision is not expected:
        what = f"{tool} {command!r}" if command is not None else tool
        raise PolicyFileError(f"{where}: {what} is {verdict.decision}, not {expected}: {verdict.reason}.")


def _tables(table: Mapping[str, Any], key: str) -> Sequence[Mapping[str, Any]]:
    entries = table.get(key, [])
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        _wrong("the file", key, entries, f"write each one under a line [[{key}]]")
    return entries


def _only(table: Mapping[str, Any], where: str, allowed: set[str]) -> None:
    for key, value in table.items():
        if key not in allowed:
            _wrong(where, key, value, f"there is no such key; allowed are {', '.join(sorted(allowed))}")


def _choice(table: Mapping[str, Any], key: str, where: str, kind: type[_C], default: _C | None = None) -> _C:
    value = table.get(key)
    if value is None and default is not None:
        return default
    for choice in kind:
        if value == choice.value:
            return choice
    _wrong(where, key, value, f"write one of {', '.join(choice.value for choice in kind)}")


def _wrong(where: str, key: str, value: object, fix: str) -> NoReturn:
    shown = "it is missing" if value is None else f"{shorten_value(value, limit_chars=80)!r}"
    raise PolicyFileError(f"{where}, key {key!r}: {shown}; {fix}.")
