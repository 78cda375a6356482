"""Somebody who is told by webhooks."""

import contextlib
import hashlib
import hmac
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Receiver(ThreadingHTTPServer):
    """Takes webhooks: the first ones with these statuses, the others with 200."""

    def __init__(self, statuses: list[int]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.statuses = statuses
        self.got: list[tuple[dict[str, str], bytes]] = []
        self.has_all = threading.Event()


class _Handler(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.got.append(({name.lower(): value for name, value in self.headers.items()}, body))
        status = self.server.statuses.pop(0) if self.server.statuses else 200
        self.send_response(status)
        self.send_header("Location", "http://127.0.0.1:9/elsewhere")
        self.end_headers()
        if status == 200:
            self.server.has_all.set()

    def log_message(self, format: str, *arguments: Any) -> None:
        pass


@contextlib.contextmanager
def receiving(*statuses: int) -> Iterator[Receiver]:
    """A receiver that listens on 127.0.0.1."""
    server = Receiver(list(statuses))
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def is_signed(headers: dict[str, str], body: bytes, secret: str) -> bool:
    """Whether what was received is signed with the secret."""
    moment, _, digest = headers["sandhog-signature"].removeprefix("t=").partition(",v1=")
    return hmac.new(secret.encode(), f"{moment}.".encode() + body, hashlib.sha256).hexdigest() == digest
