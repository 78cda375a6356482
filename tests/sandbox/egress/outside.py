"""What lies outside of a box in the tests of the way out: hosts, a name server, and a client for inside."""

import contextlib
import hashlib
import socket
import socketserver
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from sandbox.box import Box
from sandbox.requests import RunAnswer, RunRequest
from tests.sandbox.conftest import new_mark

NODE = "egress-tests"
BIG_BYTES = 24 * 1024 * 1024
RUNSC_WEAK = frozenset(
    ("pids", "memory", "swap", "cpus", "open_files", "seccomp", "no_new_privileges", "guest_folder", "spill", "shm")
)
"""What this runtime does not enforce or show; the network is not among it."""
NAMES = {
    "site.test": ["127.0.0.1"],
    "inside.test": ["127.0.0.1"],
    "lan.test": ["10.1.2.3"],
    "metadata.test": ["169.254.169.254"],
    "mapped.test": ["::ffff:127.0.0.1"],
    "own6.test": ["::1"],
    "many.test": ["10.0.0.1", "::ffff:10.0.0.1", "64:ff9b::a00:1", "2002:a00:1::", "fd00::1"],
    "silent.test": ["192.0.2.1"],
    "wild.site.test": ["127.0.0.1"],
}

CLIENT = r"""
import socket, sys
def talk(data, shut=False, port=3128, wait=20):
    s = socket.create_connection(("127.0.0.1", port), wait)
    s.settimeout(wait)
    s.sendall(data)
    if shut:
        s.shutdown(socket.SHUT_WR)
    out = b""
    while True:
        try:
            piece = s.recv(65536)
        except ConnectionResetError:
            break
        if not piece:
            break
        out += piece
    return out
"""


class Site(BaseHTTPRequestHandler):
    """A host on the outside."""

    server: "Server"
    protocol_version = "HTTP/1.1"

    def setup(self) -> None:
        super().setup()
        self.server.connections += 1

    def do_GET(self) -> None:
        self.server.requests.append((self.requestline, self.headers.as_string()))
        if self.path == "/big":
            self._big()
            return
        body = b"hello from outside\n"
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self) -> None:
        self.server.requests.append((self.requestline, self.headers.as_string()))
        digest = hashlib.sha256()
        for piece in self._pieces():
            digest.update(piece)
        body = digest.hexdigest().encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _pieces(self) -> Iterator[bytes]:
        if "Content-Length" in self.headers:
            left = int(self.headers["Content-Length"])
            while left:
                yield self.rfile.read(min(left, 65536))
                left -= min(left, 65536)
            return
        while size := int(self.rfile.readline(), 16):
            yield self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()

    def _big(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(BIG_BYTES))
        self.end_headers()
        for number in range(BIG_BYTES // 65536):
            self.wfile.write(bytes([number % 256]) * 65536)

    def log_message(self, format: str, *args: Any) -> None:
        pass


class Server(ThreadingHTTPServer):
    """Remembers what it was asked."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Site)
        self.requests: list[tuple[str, str]] = []
        self.connections = 0

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass


class Echo(socketserver.ThreadingTCPServer):
    """Gives everything back; tells when a connection ended."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), EchoHandler)
        self.ended = threading.Semaphore(0)
        self.began = threading.Semaphore(0)


class EchoHandler(socketserver.BaseRequestHandler):
    server: Echo

    def handle(self) -> None:
        self.server.began.release()
        with contextlib.suppress(OSError):
            while data := self.request.recv(65536):
                self.request.sendall(data)
        self.server.ended.release()


class Names:
    """The test's own name server; counts and can change its mind."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.held = threading.Event()
        self.held.set()
        self.flips: dict[str, list[list[str]]] = {}

    def __call__(self, name: str) -> list[str]:
        self.asked.append(name)
        self.held.wait(60)
        if self.flips.get(name):
            return self.flips[name].pop(0)
        if name not in NAMES:
            raise socket.gaierror(-2, "no such name")
        return NAMES[name]


def allowed(server: Server, echo: Echo) -> tuple[str, ...]:
    port, echo_port = server.server_address[1], echo.server_address[1]
    inside = ("inside", "lan", "metadata", "mapped", "own6", "many", "flip", "nowhere")
    return (
        f"site.test:{port},{echo_port}",
        f"*.site.test:{port}",
        "silent.test:81",
        *(f"{name}.test:{port}" for name in inside),
    )


def python(box: Box, text: str, **fields: Any) -> RunAnswer:
    return box.run(RunRequest(new_mark(), argv=("python3", "-c", CLIENT + text), **fields))


def get(url: str, *lines: str, version: str = "1.1") -> bytes:
    return "\r\n".join([f"GET {url} HTTP/{version}", *lines, "", ""]).encode()
