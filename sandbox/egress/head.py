"""The request that a client of the proxy port begins with: read strictly, written anew.

What is sent on is built from what was understood, so that no other reader can see another request in it.
"""

import re
from dataclasses import dataclass

from sandbox.egress.body import Body, Chunked, Sized
from sandbox.egress.rules import host_name, port_number

MAX_HEAD_BYTES = 16 * 1024
MAX_FIELDS = 100
MAX_LENGTH_DIGITS = 15

_METHOD = re.compile(r"[A-Z][A-Z-]{0,31}")
_FIELD_NAME = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_TARGET = re.compile(r"http://([^/?#@\\]+)(/[\x21-\x22\x24-\x7e]*|\?[\x21-\x22\x24-\x7e]*)?", re.IGNORECASE)
_HOP_BY_HOP = frozenset(
    (
        "connection", "proxy-connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "te", "trailer",
        "transfer-encoding", "content-length", "upgrade", "host", "http2-settings",
    )
)  # fmt: skip


class BadRequest(Exception):
    """The request cannot be read, or could be read in two ways; the message tells the client."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True)
class Request:
    """What the client wants."""

    host: str
    """In the form of `host_name`."""
    port: int
    head: bytes
    """What to send to the host first; empty for a tunnel."""
    body: Body | None
    """How the request's body ends; None for a tunnel, which has no end of its own."""


def parse_request(head: bytes) -> Request:
    """The request in a head, which ends with the empty line.

    Raises:
        BadRequest.
    """
    lines = head.removesuffix(b"\r\n\r\n").split(b"\r\n")
    if any(byte in line for line in lines for byte in (b"\r", b"\n", b"\0")):
        raise BadRequest("the request has line ends or NULs where none may be")
    words = lines[0].decode("latin-1").split(" ")
    if len(words) != 3 or not _METHOD.fullmatch(words[0]) or words[2] not in ("HTTP/1.1", "HTTP/1.0"):
        raise BadRequest("the request line is not METHOD TARGET HTTP/1.1")
    method, target, version = words
    fields = _fields(lines[1:])
    if method == "CONNECT":
        host, port = _authority(target, None)
        return Request(host, port, b"", None)
    found = _TARGET.fullmatch(target)
    if found is None:
        raise BadRequest("the target must be http://host/path; https goes by CONNECT, other schemes not at all")
    host, port = _authority(found[1], 80)
    path = found[2] or "/"
    body, framing = _framing(fields, version)
    lines_out = [f"{method} {path if path[0] == '/' else '/' + path} {version}".encode()]
    lines_out.append(b"Host: " + (host if port == 80 else f"{host}:{port}").encode())
    lines_out += [name + b": " + value for name, value in _kept(fields)]
    return Request(host, port, b"\r\n".join([*lines_out, *framing, b"Connection: close", b"", b""]), body)


def _fields(lines: list[bytes]) -> list[tuple[bytes, bytes]]:
    if len(lines) > MAX_FIELDS:
        raise BadRequest(f"the request has more than {MAX_FIELDS} header fields", 431)
    fields = []
    for line in lines:
        name, colon, value = line.partition(b":")
        # A line that begins with a space would continue the one before it: obsolete, and read in two ways.
        if not colon or not _FIELD_NAME.fullmatch(name):
            raise BadRequest("a header field is not NAME: VALUE")
        fields.append((name, value.strip(b" \t")))
    if len(_values(fields, b"host")) > 1:
        raise BadRequest("the request has more than one Host")
    return fields


def _authority(text: str, default_port: int | None) -> tuple[str, int]:
    name_text, colon, port_text = text.partition(":")
    host = host_name(name_text)
    port = port_number(port_text) if colon else default_port
    if host is None:
        raise BadRequest("boxes reach hosts by their names only, not by addresses", 403)
    if port is None:
        raise BadRequest("the port is missing or no number")
    return host, port


def _values(fields: list[tuple[bytes, bytes]], name: bytes) -> list[bytes]:
    return [value for found, value in fields if found.lower() == name]


def _framing(fields: list[tuple[bytes, bytes]], version: str) -> tuple[Body, list[bytes]]:
    """How the body ends, and the header field that says so."""
    lengths, codings = _values(fields, b"content-length"), _values(fields, b"transfer-encoding")
    if codings:
        if lengths or len(codings) > 1 or codings[0].lower() != b"chunked" or version != "HTTP/1.1":
            raise BadRequest("the length of the body is told in two ways, or in one that is not known here")
        return Chunked(), [b"Transfer-Encoding: chunked"]
    if not lengths:
        return Sized(0), []
    if len(lengths) > 1 or not re.fullmatch(rb"[0-9]{1,%d}" % MAX_LENGTH_DIGITS, lengths[0]):
        raise BadRequest("Content-Length is not one number")
    return Sized(int(lengths[0])), [b"Content-Length: " + lengths[0]]


def _kept(fields: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """The fields that are for the host itself."""
    named = {word.strip().lower() for value in _values(fields, b"connection") for word in value.split(b",")}
    return [
        (name, value)
        for name, value in fields
        if name.lower().decode() not in _HOP_BY_HOP and name.lower() not in named
    ]
