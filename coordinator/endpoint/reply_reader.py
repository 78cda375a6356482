"""A reply out of raw bytes, streamed or not: model → **reply_reader** → sse, deltas.

What comes is told by its first bytes, not by what was asked for or by its content type: endpoints and proxies send
whole bodies where a stream was asked for, and streams where none was.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from coordinator.endpoint.deltas import ReplyGatherer, gather_unstreamed, parse_chunk
from coordinator.endpoint.reply import ModelReply
from coordinator.endpoint.sse import SseDecoder, SseTooLarge
from coordinator.errors import ReplyBroken

MAX_REPLY_BYTES = 64 * 1024 * 1024
"""A reply above this is broken off; the largest real ones are some hundred kilobytes."""

_BLANK = b" \t\r\n"
_BOM = b"\xef\xbb\xbf"
_SHOWN_BYTES = 200


@dataclass
class ReplyReader:
    """Takes bytes as they come, cut anywhere, and gives the reply. Used once."""

    on_text: Callable[[str], None]
    """Gets the visible text, piece by piece when it is streamed, else whole."""
    is_over: bool = False
    """Whether the stream said that nothing more comes."""
    _size_bytes: int = 0
    _start: bytearray = field(default_factory=bytearray)
    _body: bytearray | None = None
    _decoder: SseDecoder | None = None
    _gatherer: ReplyGatherer = field(default_factory=ReplyGatherer)

    def feed(self, received: bytes) -> None:
        """Takes the next bytes; what follows the end of a stream is dropped.

        Raises:
            ReplyBroken: Too much, or not the protocol.
            ModelRefused, ModelUnavailable, ContextTooLong: It is an error.
        """
        self._size_bytes += len(received)
        if self._size_bytes > MAX_REPLY_BYTES:
            raise ReplyBroken(f"The endpoint sent more than {MAX_REPLY_BYTES} bytes.")
        if self._body is None and self._decoder is None:
            self._start += received
            received = self._told_apart()
        if self._body is not None:
            self._body += received
        elif self._decoder is not None and not self.is_over:
            try:
                self._gather(self._decoder.feed(received))
            except SseTooLarge as exc:
                raise ReplyBroken(f"The endpoint sent {exc}.") from exc

    def finish(self) -> ModelReply:
        """The reply, when all has come.

        Raises:
            ReplyBroken: It was cut, or is not one.
            ModelRefused, ModelUnavailable, ContextTooLong: It is an error.
        """
        if self._body is not None:
            reply = gather_unstreamed(parse_chunk(self._body.decode("utf-8", "replace")))
            if reply.text:
                self.on_text(reply.text)
            return reply
        if self._decoder is not None and not self.is_over:
            try:
                self._gather(self._decoder.close())
            except ReplyBroken:
                if not self.has_ending:
                    raise
        if self._gatherer.is_empty:
            beginning = bytes(self._start[:_SHOWN_BYTES]).decode("utf-8", "replace")
            raise ReplyBroken(f"The endpoint sent no reply but {beginning!r}. Does the base URL end in /v1?")
        return self._gatherer.finish()

    @property
    def has_ending(self) -> bool:
        """Whether the stream said how the reply ends: nothing that matters but the usage can follow."""
        return self._gatherer.is_finished

    def _told_apart(self) -> bytes:
        """Decides what it is as soon as that can be told; the bytes that are to be read then."""
        begun = bytes(self._start)
        if len(begun) < len(_BOM) and _BOM.startswith(begun):
            return b""
        text = begun.removeprefix(_BOM).lstrip(_BLANK)
        if not text:
            return b""
        if text[:1] in (b"{", b"["):
            self._body = bytearray()
            return text
        self._decoder = SseDecoder()
        return begun

    def _gather(self, events: list[str]) -> None:
        for data in events:
            if data.strip() == "[DONE]":
                self.is_over = self._gatherer.is_over = True
                return
            shown = self._gatherer.add(parse_chunk(data))
            if shown:
                self.on_text(shown)
