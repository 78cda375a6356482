"""Take secrets out of what is kept: events → **redact** → transcript.

By value (the keys this process was given), by name (`…_API_KEY=`, `"password": "…"`) and by shape (`sk-…`,
`Bearer …`). What is taken out is replaced by one word, so that a reader sees that something was there.
"""

import json
import math
import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from coordinator.endpoint.fragments import mend

REDACTED = "[redacted]"
MIN_SECRET_CHARS = 6
"""A given secret shorter than this is left alone: it would be found in innocent words."""
SHORT_CHARS = 48
KEPT_SHORT = 4_096
"""Of so short texts the last are remembered with what became of them: names of fields, tools and states come again
with every event."""
KEPT_NAMES = 1_024

# No pattern may look further than a bounded way for nothing: the texts are long, and the tools' output is hostile.
# Much of what is kept is JSON inside text: there a line begins behind the two characters of its `\n`.
_START = r"(?:(?<![A-Za-z0-9_-])|(?<=\\[nrtbf]))"
_SHAPES = re.compile(
    rf"""
      {_START}sk-(?=[A-Za-z_-]{{0,40}}\d)[A-Za-z0-9_-]{{16,}}
    | (?<=bearer\s)[A-Za-z0-9._~+/=-]{{8,}}
    | {_START}(?:gh[opsur]|glpat|hf)[_-][A-Za-z0-9_-]{{16,}}
    | {_START}github_pat_[A-Za-z0-9_]{{20,}}
    | {_START}xox[abprs]-[A-Za-z0-9-]{{10,}}
    | {_START}(?:AKIA|ASIA)[A-Z0-9]{{16}}\b
    | {_START}AIza[A-Za-z0-9_-]{{30,}}
    | {_START}(?:npm|pypi|[sr]k_live|dop_v1|ya29)[_.-][A-Za-z0-9_-]{{16,}}
    | {_START}eyJ[A-Za-z0-9_-]{{8,2000}}\.eyJ[A-Za-z0-9_-]{{8,4000}}\.[A-Za-z0-9_-]{{8,}}
    | (?<=authorization:\s)(?:basic|token|digest|negotiate)\s[A-Za-z0-9._~+/=-]{{6,}}
    | (?:(?<=authorization:\s)|(?<=api-key:\s)|(?<=-token:\s))
      (?=[A-Za-z._~+/=-]{{0,60}}\d)[A-Za-z0-9._~+/=-]{{8,}}
    | (?<=://)[^\s/:@"'\\]*:[^\s/@"'\\]+(?=@)
    | -----BEGIN[ A-Z]*PRIVATE\ KEY-----.*?(?:-----END[ A-Z]*PRIVATE\ KEY-----|\Z)
    """,
    re.VERBOSE | re.IGNORECASE | re.DOTALL,
)
_NAMED = re.compile(
    r"""
      (?P<variable>(?<![A-Z0-9_])[A-Z][A-Z0-9_]{2,60}=\\*["']?)[^\s"'\\]{6,}
    | (?P<field>["'](?:[\w-]*api[_-]?key|authorization|password|passwd|[\w-]*secret|[\w-]*access[_-]?token)\\*["']
        \s*:\s*\\*["'])[^"'\\]{4,}
    """,
    re.VERBOSE,
)
_VARIABLES = re.compile(r"API_?KEY|ACCESS_?KEY|TOKEN(?!S)|SECRET|PASSWORD|PASSWD")
_NAMES = re.compile(r"(?i)(?:.*api[_-]?key|authorization|password|passwd|.*secret|.*access[_-]?token|token)")


_HINTS = (
    *("sk-", "bearer", "glpat", "hf_", "hf-", "github_pat_", "xox", "akia", "asia", "aiza", "npm", "pypi", "_live"),
    *("dop_v1", "ya29", "eyj", "authorization", "-key:", "-token:", "://", "private key"),
    *(f"gh{kind}{mark}" for kind in "opsur" for mark in "_-"),
    *("=", "apikey", "api_key", "api-key", "passw", "secret", "token"),
)
"""What the patterns find has one of these in it, in small letters. Hardly a text has, and looking for them takes a
twentieth of the time."""


class Redactor:
    """Knows the secrets of this process, and what secrets look like.

    Args:
        secrets: Values that must never be kept, such as the endpoint's key.
    """

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        told = {secret for secret in secrets if len(secret) >= MIN_SECRET_CHARS}
        # What is kept is JSON, with JSON inside: there a quote or a newline is written otherwise.
        once = {_escaped(secret) for secret in told}
        known = sorted(told | once | {_escaped(secret) for secret in once}, key=len, reverse=True)
        self._known = re.compile("|".join(map(re.escape, known))) if known else None
        self._short = lru_cache(KEPT_SHORT)(self._clean)
        self._name = lru_cache(KEPT_NAMES)(self._clean_name)

    def text(self, text: str) -> str:
        """`text` without secrets."""
        return self._short(text) if len(text) <= SHORT_CHARS else self._clean(text)

    def _clean(self, text: str) -> str:
        if self._known is not None:
            text = self._known.sub(REDACTED, text)
        return without_shapes(text) if has_hint(text) else text

    def _clean_name(self, name: str) -> tuple[str, bool]:
        """Return a field's name as it is kept, and whether it says that its value is a secret."""
        return self._clean(mend(name)), _NAMES.fullmatch(name) is not None

    def value(self, value: Any) -> Any:
        """The same shape of JSON values without secrets, and without what JSON or UTF-8 cannot hold."""
        if isinstance(value, str):
            return self.text(mend(value))
        if isinstance(value, dict):
            return dict(self._field(str(name), item) for name, item in value.items())
        if isinstance(value, list | tuple):
            return [self.value(item) for item in value]
        if isinstance(value, float) and not math.isfinite(value):
            return None
        return value

    def _field(self, name: str, item: Any) -> tuple[str, Any]:
        kept, is_secret = self._name(name)
        return kept, REDACTED if is_secret and item and isinstance(item, str) else self.value(item)


def has_hint(text: str) -> bool:
    """Return whether one of the patterns may find something in a text."""
    # Python's patterns take some letters beyond ASCII for i, k and s.
    small = text.lower() if text.isascii() else text.casefold().replace("\u0131", "i").replace("\u0307", "")
    return any(map(small.__contains__, _HINTS))


def without_shapes(text: str) -> str:
    """Return a text without what looks like a secret."""
    return _NAMED.sub(_without_value, _SHAPES.sub(REDACTED, text))


def _escaped(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]


def _without_value(found: re.Match[str]) -> str:
    variable = found["variable"]
    if variable is not None and not _VARIABLES.search(variable):
        return found[0]
    return (variable or found["field"]) + REDACTED
