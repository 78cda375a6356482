"""What the proxy port says itself."""

from http import HTTPStatus

ESTABLISHED = b"HTTP/1.1 200 Connection established\r\n\r\n"


def refusal(status: int, words: str) -> bytes:
    """An answer in the host's place; programs print the first line, people read the text."""
    text = f"sandhog: {words}\n".encode()
    lines = [
        f"HTTP/1.1 {status} {HTTPStatus(status).phrase}",
        "Content-Type: text/plain; charset=utf-8",
        f"Content-Length: {len(text)}",
        "X-Sandhog-Egress: refused",
        "Connection: close",
    ]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + text
