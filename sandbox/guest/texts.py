"""Texts: a file's bytes → **UTF-8 without a byte order mark** → the same encoding again.

A mark at the beginning decides; without one the bytes are taken as they are, whatever encoding they may be in.
"""

from __future__ import annotations

import _codecs

from sandbox.guest.refusal import Refusal
from sandbox.wire import RefusalCode

UTF8, UTF16_LE, UTF16_BE = "utf-8-sig", "utf-16-le", "utf-16-be"
MARKS = ((b"\xef\xbb\xbf", UTF8), (b"\xff\xfe", UTF16_LE), (b"\xfe\xff", UTF16_BE))
UTF32_MARKS = (b"\xff\xfe\0\0", b"\0\0\xfe\xff")
# By hand: looking codecs up by name would load the package of all encodings.
_DECODERS = {UTF16_LE: _codecs.utf_16_le_decode, UTF16_BE: _codecs.utf_16_be_decode}
_ENCODERS = {UTF16_LE: _codecs.utf_16_le_encode, UTF16_BE: _codecs.utf_16_be_encode}
_PIECE_BYTES = 1024 * 1024


def mark_of(path: str, start: bytes) -> tuple[bytes, str]:
    """The byte order mark that a file starts with and the encoding it means; both empty without one.

    Raises:
        Refusal: BINARY_FILE; it is UTF-32.
    """
    if start[:4] in UTF32_MARKS:
        raise Refusal(RefusalCode.BINARY_FILE, f"{path} is UTF-32 text, which only Bash can convert, with iconv")
    for mark, encoding in MARKS:
        if start.startswith(mark):
            return mark, encoding
    return b"", ""


class Decoder:
    """Makes UTF-8 of a file that passes by in chunks; its encoding is known from the first one on."""

    def __init__(self, path: str) -> None:
        self.encoding: str | None = None
        self._path = path
        self._rest = b""

    def add(self, chunk: bytes, *, is_last: bool = False) -> bytes:
        """The next bytes as UTF-8.

        Raises:
            Refusal: BINARY_FILE; they are not what the mark says.
        """
        if self.encoding is None:
            mark, self.encoding = mark_of(self._path, chunk)
            if self.encoding in _DECODERS:
                chunk = chunk[len(mark) :]
        decode = _DECODERS.get(self.encoding)
        if decode is None:
            return chunk
        data = self._rest + chunk
        try:
            text, used = decode(data, "strict", is_last)
            self._rest = data[used:]
            return text.encode()
        except UnicodeError:
            raise _invalid(self._path) from None


def _invalid(path: str) -> Refusal:
    return Refusal(RefusalCode.BINARY_FILE, f"{path} begins as UTF-16 text, but is none")


class Text:
    """A whole file as UTF-8, and the way back."""

    def __init__(self, path: str, content: bytes) -> None:
        """Take a file's content apart.

        Raises:
            Refusal: BINARY_FILE; it is not what its mark says.
        """
        self._path = path
        self._mark, self.encoding = mark_of(path, content)
        self.utf8 = content[len(self._mark) :]
        decode = _DECODERS.get(self.encoding)
        if decode is not None:
            try:
                self.utf8 = decode(self.utf8, "strict", True)[0].encode()
            except UnicodeError:
                raise _invalid(path) from None

    def back(self, utf8: bytes) -> bytes:
        """The file's bytes with another text.

        Raises:
            Refusal: INVALID_PARAM; the encoding has no such text.
        """
        encode = _ENCODERS.get(self.encoding)
        if encode is None:
            return self._mark + utf8
        try:
            return self._mark + encode(utf8.decode(), "strict")[0]
        except UnicodeError:
            words = f"{self._path} is {self.encoding} text, and the new text has characters that are none"
            raise Refusal(RefusalCode.INVALID_PARAM, words) from None


def is_utf8(content: bytes) -> bool:
    """Whether bytes are valid UTF-8, looked at piece by piece."""
    position = 0
    while position < len(content):
        end = position + _PIECE_BYTES
        try:
            _, used = _codecs.utf_8_decode(content[position:end], "strict", end >= len(content))
        except UnicodeError:
            return False
        position += used
    return True
