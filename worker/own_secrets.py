"""The secrets of own tools: files `<directory>/<principal>/<name>` on the node, read for each call that needs them."""

import re
from collections.abc import Mapping
from pathlib import Path

from pydantic import JsonValue

from tools.base import ErrorCode, ToolFailure

PRINCIPAL = re.compile(r"[A-Za-z0-9_@-][A-Za-z0-9._@-]{0,127}")
NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,127}")
SHORTEST = 4
"""Shorter values are not looked for in results: they would be found in everything."""


class Secrets:
    """Finds a principal's secrets; nobody else's, whatever the principal is called."""

    def __init__(self, directory: Path | None) -> None:
        self._directory = directory

    def of(self, principal: str, names: tuple[str, ...], tool: str) -> dict[str, str]:
        """Return the values of these secrets, without a newline at the end.

        Raises:
            ToolFailure: EXECUTION_ERROR; this principal has no such secret on this node.
        """
        return {name: self._value(principal, name, tool) for name in names}

    def _value(self, principal: str, name: str, tool: str) -> str:
        words = f"{tool} needs the secret {name!r}, which this node does not have for {principal!r:.80}."
        failure = ToolFailure(ErrorCode.EXECUTION_ERROR, f"{words} Its operator can add it.")
        if self._directory is None or not PRINCIPAL.fullmatch(principal) or not NAME.fullmatch(name):
            raise failure
        try:
            return (self._directory / principal / name).read_text().removesuffix("\n")
        except (OSError, UnicodeDecodeError) as exc:
            raise failure from exc


def redacted(value: JsonValue, secrets: Mapping[str, str]) -> JsonValue:
    """Return a JSON value in which each secret is replaced by its name."""
    match value:
        case str():
            return redacted_text(value, secrets)
        case list():
            return [redacted(entry, secrets) for entry in value]
        case dict():
            return {redacted_text(key, secrets): redacted(entry, secrets) for key, entry in value.items()}
        case _:
            return value


def redacted_text(text: str, secrets: Mapping[str, str]) -> str:
    """Return a text in which each secret is replaced by its name."""
    # The longest first: one secret may hold another.
    for name, hidden in sorted(secrets.items(), key=lambda entry: -len(entry[1])):
        if len(hidden) >= SHORTEST:
            text = text.replace(hidden, f"[secret {name}]")
    return text
