"""How many tokens a message list has: endpoint's usage, tiktoken or bytes → **token_count** → context.

What the endpoint counted for the last request is taken as it is; only what was added since is reckoned. Where an
endpoint counts nothing, tiktoken does if its encoding lies in `TIKTOKEN_CACHE_DIR` (nothing is fetched), else three
bytes are taken for a token, which is more than most texts have.
"""

import hashlib
import importlib
import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from coordinator.endpoint.reply import Usage

BYTES_PER_TOKEN = 3
LEAST_SCALE, MOST_SCALE = 0.2, 4.0
"""An endpoint whose own count is further from ours than this counts something else."""

Source = Literal["endpoint", "tiktoken", "bytes"]

# Source: tiktoken_ext.openai_public; the name of a cached file is the SHA-1 of its address.
_ENCODINGS = (
    (
        "o200k_base",
        "https://openaipublic.blob.core.windows.net/encodings/o200k_base.tiktoken",
        "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d",
    ),
    (
        "cl100k_base",
        "https://openaipublic.blob.core.windows.net/encodings/cl100k_base.tiktoken",
        "223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7",
    ),
)


def by_bytes(text: str) -> int:
    """Return a count that is more likely too high than too low."""
    return math.ceil(len(text.encode("utf-8", "replace")) / BYTES_PER_TOKEN)


def tiktoken_count(environment: Mapping[str, str] = os.environ) -> Callable[[str], int] | None:
    """Return tiktoken's count of a text; None where none of its encodings is on this machine.

    Importing tiktoken is slow, and it would fetch an encoding that is missing or spoilt: both only after a look.
    """
    directory = environment.get("TIKTOKEN_CACHE_DIR")
    if not directory:
        return None
    for name, address, sha256 in _ENCODINGS:
        path = Path(directory) / hashlib.sha1(address.encode(), usedforsecurity=False).hexdigest()
        try:
            if hashlib.sha256(path.read_bytes()).hexdigest() != sha256:
                continue
            encoding = importlib.import_module("tiktoken").get_encoding(name)
        except (OSError, ImportError, ValueError):
            continue
        return lambda text: len(encoding.encode_ordinary(text))
    return None


class TokenCounter:
    """Counts the messages of one session's requests.

    Args:
        count: Counts a text where no usage is known; None looks for tiktoken when it is first needed.
    """

    def __init__(self, count: Callable[[str], int] | None = None) -> None:
        self._count = count
        self._sizes: list[int] = []
        self._known: tuple[int, int] | None = None
        self._scale: float | None = None
        self._tools: tuple[int, int] = (-1, 0)

    @property
    def source(self) -> Source:
        """Where the present counts come from."""
        if self._scale is not None:
            return "endpoint"
        return "bytes" if self._counter() is by_bytes else "tiktoken"

    def of(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]) -> int:
        """Return the size of a request, which is the session's list as it was told before, or a longer one."""
        sizes = self._sizes_of(messages)
        if self._known is not None and self._known[0] <= len(messages):
            count, tokens = self._known
            return tokens + math.ceil(sum(sizes[count:]) * max(self._scale or 1.0, 1.0))
        return self.scaled(sum(sizes)) + self.of_tools(tools)

    def of_tools(self, tools: Sequence[Mapping[str, Any]]) -> int:
        """Return the size of the tools' schemas."""
        if self._tools[0] != len(tools):
            self._tools = (len(tools), self.raw(list(tools)) if tools else 0)
        return self.scaled(self._tools[1])

    def of_message(self, message: Mapping[str, Any]) -> int:
        """Return the size of one message."""
        return self.scaled(self.raw(message))

    def of_text(self, text: str) -> int:
        """Return the size of a text."""
        return self.scaled(self._counter()(text))

    def measured(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]], usage: Usage | None
    ) -> None:
        """Learn what the endpoint counted for these messages."""
        if usage is None or not usage.prompt_tokens:
            return
        own = sum(self._sizes_of(messages)) + (self.of_tools(tools) and self._tools[1])
        self._scale = min(max(usage.prompt_tokens / max(own, 1), LEAST_SCALE), MOST_SCALE)
        self._known = (len(messages), usage.prompt_tokens)

    def was_above(
        self, limit_tokens: int, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]
    ) -> None:
        """Learn that these messages are more than the endpoint takes, by its own count."""
        self._known = None
        own = sum(self._sizes_of(messages)) + (self.of_tools(tools) and self._tools[1])
        self._scale = max(self._scale or 1.0, (limit_tokens + 1) / max(own, 1))

    def forget(self) -> None:
        """The list is another one from now on; how large a token is stays known."""
        self._sizes, self._known = [], None

    def raw(self, value: Any) -> int:
        """Return the size of a message or of schemas before it is compared with the endpoint's count."""
        return self._counter()(json.dumps(value, ensure_ascii=False, separators=(",", ":")))

    def scaled(self, raw: int) -> int:
        """Return a size as the endpoint would count it."""
        return math.ceil(raw * (self._scale or 1.0))

    def _sizes_of(self, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        del self._sizes[len(messages) :]
        self._sizes.extend(self.raw(message) for message in messages[len(self._sizes) :])
        return self._sizes

    def _counter(self) -> Callable[[str], int]:
        if self._count is None:
            # What the endpoint says is better than either; bytes are enough to fill in between.
            self._count = by_bytes if self._scale is not None else tiktoken_count() or by_bytes
        return self._count
