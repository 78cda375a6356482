"""What a model calls a server's tool: `server__tool`, in letters that every endpoint takes."""

import hashlib
import re
from collections.abc import Iterable

from tools.rules import MCP_MARK

MOST_CHARS = 64
HASH_CHARS = 8
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_-]")


def tool_names(pairs: Iterable[tuple[str, str]]) -> dict[tuple[str, str], str]:
    """Return a name for each pair of server and tool; all differ, and are the same for the same pairs."""
    names: dict[tuple[str, str], str] = {}
    taken: set[str] = set()
    for server, tool in sorted(set(pairs)):
        plain = f"{_plain(server)}{MCP_MARK}{_plain(tool)}"
        is_itself = plain == f"{server}{MCP_MARK}{tool}" and len(plain) <= MOST_CHARS
        name = plain if is_itself and plain not in taken else _hashed(plain, server, tool)
        taken.add(name)
        names[server, tool] = name
    return names


def _plain(text: str) -> str:
    return _NOT_IN_NAMES.sub("_", text) or "_"


def _hashed(plain: str, server: str, tool: str) -> str:
    mark = hashlib.sha256(f"{server}\0{tool}".encode(errors="replace")).hexdigest()[:HASH_CHARS]
    return f"{plain[: MOST_CHARS - HASH_CHARS - 1]}_{mark}"
