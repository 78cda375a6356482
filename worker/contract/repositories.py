"""Which URLs and refs can name a repository's commit at all: judged where they are read, before anything keeps them.

Whether a node fetches from one that can is for the node to say: it knows its hosts and credentials.
"""

import json
import re
from typing import NamedTuple
from urllib.parse import urlsplit

_SCP = re.compile(r"(?P<user>[A-Za-z0-9._-]+)@(?P<host>[A-Za-z0-9.-]+):(?P<path>[^:].*)")
_HOST = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?")
_USER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_PATH = re.compile(r"[A-Za-z0-9/~][A-Za-z0-9._/~+%@,-]*")
_HIDDEN = re.compile(r"%(?:2[ef5]|5c)", re.IGNORECASE)
"""An escaped dot, slash, percent sign or backslash: a server may read `%2e%2e` as the `..` that is refused."""
_REF = re.compile(r"[^\s\x00-\x20\x7f:^~?*\[\\+-][^\s\x00-\x20\x7f:^~?*\[\\]*")
_PORTS = {"https": 443, "http": 80, "ssh": 22}


class RepositoryParts(NamedTuple):
    """A repository's URL, taken apart."""

    scheme: str
    user: str
    host: str
    port: int
    path: str


def check_repository_url(url: str) -> None:
    """Refuse what no node fetches from.

    Raises:
        ValueError: it is such a URL; says what to do, and shows no password that stands in it.
    """
    repository_parts(url)


def repository_parts(url: str) -> RepositoryParts:
    """Return the parts of a repository's URL; plain http passes, which a node speaks with the hosts it names only.

    Raises:
        ValueError: it is none that is fetched from; shows no password that stands in it.
    """
    shown = _shown(url)
    if not url.isascii() or not url.isprintable() or " " in url:
        # Some of these are passed over where a URL is taken apart, and not where it is used.
        raise ValueError(f"{shown} is no URL of a repository: it holds characters that must be escaped.")
    scp = _SCP.fullmatch(url) if "://" not in url else None
    if scp is not None:
        parts = RepositoryParts("ssh", scp["user"], scp["host"].lower(), 22, scp["path"])
    else:
        parts = _split(url, shown)
    is_plain = _HOST.fullmatch(parts.host) and _USER.fullmatch(parts.user) and _PATH.fullmatch(parts.path)
    if not is_plain or ".." in parts.path.split("/") or _HIDDEN.search(parts.path):
        raise ValueError(f"{shown} is no URL of a repository.")
    return parts


def check_ref(ref: str) -> None:
    """Refuse what cannot be a branch, a tag or a commit.

    Source: git-check-ref-format(1).

    Raises:
        ValueError: it cannot.
    """
    is_barred = ref == "@" or ref.startswith(("/", ".")) or ref.endswith((".lock", "/", "."))
    is_barred = is_barred or any(part in ref for part in ("..", "@{", "//", "/.", ".lock/"))
    if len(ref) > 250 or not _REF.fullmatch(ref) or is_barred:
        raise ValueError(f"{ref[:100]!r} is no name of a branch, a tag or a commit.")


def _split(url: str, shown: str) -> RepositoryParts:
    try:
        parts = urlsplit(url)
        port = parts.port or _PORTS.get(parts.scheme, 0)
    except ValueError:
        # Its own words would show what stands before an "@" that is missing.
        raise ValueError(f"{shown} is no URL of a repository: its host or port cannot be read.") from None
    if parts.scheme not in _PORTS:
        raise ValueError(f"{shown}: only https:// and ssh:// are fetched from.")
    if parts.password is not None or (parts.username and parts.scheme != "ssh"):
        raise ValueError(
            "The URL of a repository must not hold a user or password: name a credential of the node instead "
            "(SANDHOG_GIT_CREDENTIALS)."
        )
    if parts.query or parts.fragment:
        raise ValueError(f"{shown} has a query or a fragment; give the repository's plain URL.")
    host, path = (parts.hostname or "").lower(), parts.path.removeprefix("/")
    return RepositoryParts(parts.scheme, parts.username or "git", host, port, path)


def _shown(url: str) -> str:
    """Return the URL for people, without what may be secret in it: what stands before an "@", and a query."""
    scheme, mark, rest = url.partition("://") if "://" in url else ("", "", url)
    if "@" in rest:
        rest = "...@" + rest.rpartition("@")[2]
    plain = re.split(r"[?#]", rest, maxsplit=1)[0]
    return json.dumps(f"{scheme}{mark}{plain}"[:200])
