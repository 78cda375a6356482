"""What a box can reach when some hosts are allowed, and all that it cannot; the far side is a server of the test."""

import contextlib
import hashlib
import logging
import socket
import socketserver
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import docker
import pytest

from sandbox.box import Box
from sandbox.egress.limits import EgressLimits
from sandbox.egress.rules import BadRule
from sandbox.egress.settings import EgressSettings
from sandbox.engine import DockerEngine
from sandbox.errors import BoxLost
from sandbox.requests import RunAnswer, RunRequest
from sandbox.spec import BoxSpec
from sandbox.wire import STREAMS_MAX
from tests.sandbox.conftest import new_mark, shell_of

pytestmark = pytest.mark.docker

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


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


@pytest.fixture(scope="module")
def echo() -> Iterator[Echo]:
    with Echo() as echo:
        threading.Thread(target=echo.serve_forever, daemon=True).start()
        yield echo
        echo.shutdown()


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


@pytest.fixture(scope="module")
def names() -> Names:
    return Names()


@pytest.fixture(scope="module")
def egress_engine(make_engine: Callable[..., DockerEngine], names: Names) -> DockerEngine:
    settings = EgressSettings(
        allow_private=frozenset({"site.test", "silent.test", "wild.site.test"}),
        limits=EgressLimits(head_s=1.5, dial_s=2, linger_s=1),
        resolver=names,
    )
    return make_engine(NODE, egress=settings)


def allowed(server: Server, echo: Echo) -> tuple[str, ...]:
    port, echo_port = server.server_address[1], echo.server_address[1]
    inside = ("inside", "lan", "metadata", "mapped", "own6", "many", "flip", "nowhere")
    return (
        f"site.test:{port},{echo_port}",
        f"*.site.test:{port}",
        "silent.test:81",
        *(f"{name}.test:{port}" for name in inside),
    )


@pytest.fixture(scope="module", params=["runc", "runsc"])
def out_box(
    request: pytest.FixtureRequest,
    egress_engine: DockerEngine,
    make_spec: Callable[..., BoxSpec],
    server: Server,
    echo: Echo,
    docker_client: docker.APIClient,
) -> Iterator[Box]:
    """A box that may reach some names, on each runtime that is here."""
    if request.param not in docker_client.info()["Runtimes"]:
        pytest.skip(f"the engine has no runtime {request.param}")
    weak = frozenset[str]() if request.param == "runc" else RUNSC_WEAK
    spec = make_spec(egress=allowed(server, echo), runtime=request.param, allow_weak=weak)
    box = egress_engine.start(spec, "s", 1)
    yield box
    box.close()


@pytest.fixture
def talk(out_box: Box, server: Server, echo: Echo) -> Callable[..., str]:
    """Sends bytes to the proxy port from a command in the box; what came back."""

    def talk(data: bytes, **more: Any) -> str:
        answer = python(out_box, f"sys.stdout.buffer.write(talk({data!r}, **{more!r}))")
        assert answer.exit_code == 0, answer.stderr.text()
        return answer.stdout.text()

    return talk


def python(box: Box, text: str, **fields: Any) -> RunAnswer:
    return box.run(RunRequest(new_mark(), argv=("python3", "-c", CLIENT + text), **fields))


@pytest.fixture
def port(server: Server) -> int:
    return server.server_address[1]


def get(url: str, *lines: str, version: str = "1.1") -> bytes:
    return "\r\n".join([f"GET {url} HTTP/{version}", *lines, "", ""]).encode()


# What goes


def test_an_allowed_host_answers_a_plain_request(talk: Callable[..., str], server: Server, port: int) -> None:
    said = talk(
        get(f"http://site.test:{port}/a?b=c", "Host: site.test", "Accept: x/y", "Proxy-Authorization: Basic AAAA")
    )
    assert said.startswith("HTTP/1.1 200 OK")
    assert said.endswith("hello from outside\n")
    line, headers = server.requests[-1]
    assert line == "GET /a?b=c HTTP/1.1"
    assert "x/y" in headers
    assert "Proxy" not in headers
    assert f"Host: site.test:{port}" in headers


def test_a_tunnel_carries_bytes_both_ways_and_half_closes(talk: Callable[..., str], echo: Echo) -> None:
    head = f"CONNECT site.test:{echo.server_address[1]} HTTP/1.1\r\nHost: x\r\n\r\n".encode()
    said = talk(head + b"\x00\x01 secret bytes", shut=True)
    assert said == "HTTP/1.1 200 Connection established\r\n\r\n\x00\x01 secret bytes"


def test_programs_find_the_proxy_by_themselves(out_box: Box, port: int) -> None:
    text = f"import urllib.request as r; print(r.urlopen('http://wild.site.test:{port}/', timeout=20).read())"
    assert "hello from outside" in python(out_box, text).stdout.text()


def test_the_proxy_variables_are_there_only_with_a_way_out(
    out_box: Box, egress_engine: DockerEngine, make_spec: Callable[..., BoxSpec]
) -> None:
    shown = "env | grep -i _proxy= | sort"
    lines = shell_of(out_box)(shown).stdout.text().splitlines()
    assert "http_proxy=http://127.0.0.1:3128" in lines
    assert "NO_PROXY=localhost,127.0.0.1,::1" in lines
    assert len(lines) == 8
    box = egress_engine.start(make_spec(), "s", 1)
    try:
        assert shell_of(box)(shown).stdout.text() == ""
        closed = python(box, "socket.create_connection(('127.0.0.1', 3128), 5)")
        assert "ConnectionRefusedError" in closed.stderr.text()
    finally:
        box.close()


def test_large_bodies_arrive_whole_in_both_directions_while_calls_go_on(out_box: Box, port: int) -> None:
    download = f"""
import hashlib, urllib.request as r
d = hashlib.sha256()
with r.urlopen('http://site.test:{port}/big', timeout=60) as f:
    while piece := f.read(65536): d.update(piece)
print(d.hexdigest())
"""
    upload = f"""
import hashlib, os, urllib.request as r
data = os.urandom(1 << 20) * {BIG_BYTES >> 20}
said = r.urlopen(r.Request('http://site.test:{port}/up', data=data), timeout=60).read().decode()
print(said == hashlib.sha256(data).hexdigest())
"""
    answers: dict[str, RunAnswer] = {}

    def carry(name: str, text: str) -> None:
        answers[name] = python(out_box, text)

    threads = [threading.Thread(target=carry, args=item) for item in (("down", download), ("up", upload))]
    for thread in threads:
        thread.start()
    beside = 0
    while any(thread.is_alive() for thread in threads):
        assert shell_of(out_box)("echo beside").stdout.text() == "beside\n"
        beside += 1
    expected = hashlib.sha256()
    for number in range(BIG_BYTES // 65536):
        expected.update(bytes([number % 256]) * 65536)
    assert answers["down"].stdout.text().strip() == expected.hexdigest(), answers["down"].stderr.text()
    assert answers["up"].stdout.text().strip() == "True", answers["up"].stderr.text()
    # Both bodies together take more than a second at the default rate.
    assert beside >= 5


# What does not go


@pytest.mark.parametrize(
    ("target", "status"),
    [
        ("http://elsewhere.test/", 403),
        ("http://site.test:1/", 403),
        ("http://site.test.evil.test:PORT/", 403),
        ("http://evilsite.test:PORT/", 403),
        ("http://127.0.0.1:PORT/", 403),
        ("http://2130706433:PORT/", 403),
        ("http://0x7f000001:PORT/", 403),
        ("http://0x7f.1:PORT/", 403),
        ("http://0177.0.0.1:PORT/", 403),
        ("http://127.1:PORT/", 403),
        ("http://169.254.169.254/latest/meta-data/", 403),
        ("http://[::1]:PORT/", 403),
        ("http://[::ffff:127.0.0.1]:PORT/", 403),
        ("http://site.test%00.evil.test:PORT/", 403),
        ("http://SITE.TEST.:1/", 403),
        ("http://user@site.test:PORT/", 400),
        ("http://elsewhere.test\\@site.test:PORT/", 400),
        ("https://site.test:PORT/", 400),
        ("ftp://site.test/", 400),
        ("/", 400),
        ("*", 400),
    ],
)
def test_a_plain_request_elsewhere_is_refused(
    talk: Callable[..., str], server: Server, names: Names, port: int, target: str, status: int
) -> None:
    connections, asked = server.connections, len(names.asked)
    said = talk(get(target.replace("PORT", str(port)), f"Host: site.test:{port}"))
    assert said.startswith(f"HTTP/1.1 {status} ")
    assert "sandhog: " in said
    assert server.connections == connections
    assert len(names.asked) == asked, "a name that is not allowed must not even be looked up: it could carry secrets"


@pytest.mark.parametrize(
    "target",
    ["elsewhere.test:443", "127.0.0.1:PORT", "[::1]:PORT", "2130706433:PORT", "site.test:22", "site.test:0",
     "site.test:65536", "site.test", "site.test:", "site.test:+80", "site.test:PORT:80", "site.test :PORT", ":PORT"],
)  # fmt: skip
def test_a_tunnel_elsewhere_is_refused(talk: Callable[..., str], server: Server, port: int, target: str) -> None:
    connections = server.connections
    said = talk(f"CONNECT {target.replace('PORT', str(port))} HTTP/1.1\r\n\r\n".encode())
    assert said.startswith(("HTTP/1.1 403 ", "HTTP/1.1 400 "))
    assert server.connections == connections


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("inside", "loopback"),
        ("lan", "not a public address"),
        ("metadata", "link-local"),
        ("mapped", "loopback"),
        ("own6", "loopback"),
        ("many", "not a public address"),
    ],
)
def test_an_allowed_name_at_a_forbidden_address_is_refused(
    talk: Callable[..., str], server: Server, port: int, name: str, why: str
) -> None:
    connections = server.connections
    said = talk(f"CONNECT {name}.test:{port} HTTP/1.1\r\n\r\n".encode())
    assert said.startswith("HTTP/1.1 403 ")
    assert why in said
    assert server.connections == connections


def test_a_name_that_changes_between_check_and_connection_gains_nothing(
    talk: Callable[..., str], server: Server, names: Names, port: int
) -> None:
    connections, asked = server.connections, names.asked.count("flip.test")
    # Public at first, loopback for whoever asks again: one question, and what it gave is what is connected to.
    names.flips["flip.test"] = [["192.0.2.7", "127.0.0.1"], ["127.0.0.1"], ["127.0.0.1"]]
    said = talk(f"CONNECT flip.test:{port} HTTP/1.1\r\n\r\n".encode())
    assert said.startswith(("HTTP/1.1 403 ", "HTTP/1.1 502 "))
    assert names.asked.count("flip.test") == asked + 1
    assert server.connections == connections


def test_what_cannot_be_reached_is_told_apart_from_what_may_not(talk: Callable[..., str], port: int) -> None:
    said = talk(f"CONNECT nowhere.test:{port} HTTP/1.1\r\n\r\n".encode())
    assert said.startswith("HTTP/1.1 502 ")
    assert "cannot be resolved" in said
    silent = talk(b"CONNECT silent.test:81 HTTP/1.1\r\n\r\n")
    assert silent.startswith(("HTTP/1.1 502 ", "HTTP/1.1 504 "))


@pytest.mark.parametrize(
    "text",
    [
        "socket.create_connection(('127.0.0.1', 53), 3)",
        "socket.create_connection(('169.254.169.254', 80), 3)",
        "socket.create_connection(('198.41.0.4', 53), 3)",
        "socket.create_connection(('2001:503:ba3e::2:30', 53), 3)",
        "socket.getaddrinfo('site.test', 80)",
        "s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.sendto(b'x', ('198.41.0.4', 53))",
        "s = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM); s.sendto(b'x', ('2001:503:ba3e::2:30', 53))",
        "socket.socket(socket.AF_INET, socket.SOCK_RAW, 1)",
        "socket.socket(socket.AF_PACKET, socket.SOCK_RAW)",
    ],
)
def test_there_is_no_way_round_the_proxy(out_box: Box, text: str) -> None:
    answer = python(out_box, text + "; print('went out')")
    assert "went out" not in answer.stdout.text()
    assert "Error" in answer.stderr.text() or "error" in answer.stderr.text()


def test_the_worker_is_not_reached_through_the_box_loopback(out_box: Box, port: int) -> None:
    answer = python(out_box, f"socket.create_connection(('127.0.0.1', {port}), 3)")
    assert "ConnectionRefusedError" in answer.stderr.text()


@pytest.mark.parametrize(
    "lines",
    [
        ("Host: site.test", "Host: other.test"),
        ("Content-Length: 0", "Content-Length: 5"),
        ("Content-Length: 5", "Transfer-Encoding: chunked"),
        ("Transfer-Encoding: chunked, identity",),
        ("Transfer-Encoding: chunked", "Transfer-Encoding: chunked"),
        ("Transfer-Encoding : chunked",),
        ("Content-Length: +5",),
        ("Content-Length: 5, 5",),
        ("X: a\nHost: other.test",),
        ("X: a\rHost: other.test",),
        ("X: a", " continued: line"),
        ("no colon",),
        ("X: \0",),
    ],
)
def test_a_request_that_can_be_read_in_two_ways_is_refused(
    talk: Callable[..., str], server: Server, port: int, lines: tuple[str, ...]
) -> None:
    connections = server.connections
    said = talk(get(f"http://site.test:{port}/", *lines))
    assert said.startswith("HTTP/1.1 400 ")
    assert server.connections == connections


def test_a_second_request_behind_the_first_does_not_reach_the_host(
    talk: Callable[..., str], server: Server, port: int
) -> None:
    before = len(server.requests)
    second = get("/second", "Host: other.test")
    talk(get(f"http://site.test:{port}/first", "Connection: keep-alive") + second)
    chunked = b"POST http://site.test:%d/x HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" % port
    assert hashlib.sha256(b"").hexdigest() in talk(chunked + second)
    assert next(line for line, _ in server.requests[before:]) == "GET /first HTTP/1.1"
    pieces = chunked.replace(b"\r\n0\r\n", b"\r\n5\r\nhello\r\n00A\r\n, 10 more.\r\n0\r\n")
    assert hashlib.sha256(b"hello, 10 more.").hexdigest() in talk(pieces)
    assert not any("second" in line for line, _ in server.requests[before:])


def test_the_host_is_told_the_name_that_was_judged(talk: Callable[..., str], server: Server, port: int) -> None:
    talk(get(f"http://site.test:{port}/", "Host: fronted.test", "Connection: X-Mine", "X-Mine: 1"))
    _line, headers = server.requests[-1]
    assert "fronted" not in headers
    assert "X-Mine" not in headers


def test_a_head_without_end_is_refused_by_size(talk: Callable[..., str], port: int) -> None:
    said = talk(get(f"http://site.test:{port}/", "X: " + "a" * 40_000))
    assert said.startswith("HTTP/1.1 431 ")
    many = talk(get(f"http://site.test:{port}/", *(f"X-{number}: 1" for number in range(200))))
    assert many.startswith("HTTP/1.1 431 ")


def test_a_head_that_drips_is_refused_by_time(out_box: Box) -> None:
    drip = """
import threading, time
s = socket.create_connection(("127.0.0.1", 3128))
def drip():
    try:
        while True:
            s.sendall(b"G"); time.sleep(0.05)
    except OSError:
        pass
threading.Thread(target=drip, daemon=True).start()
print(s.recv(100).split(b"\\r\\n")[0])
"""
    assert "408 Request Timeout" in python(out_box, drip).stdout.text()


def test_a_client_that_says_nothing_and_leaves_costs_nothing(out_box: Box, talk: Callable[..., str], port: int) -> None:
    text = """
for _ in range(500):
    socket.create_connection(("127.0.0.1", 3128)).close()
"""
    assert python(out_box, text).exit_code == 0
    assert talk(get(f"http://site.test:{port}/")).startswith("HTTP/1.1 200 ")


# Many, and the end


def test_streams_beyond_the_bound_wait_until_others_end(out_box: Box, echo: Echo) -> None:
    text = f"""
import threading
head = b"CONNECT site.test:{echo.server_address[1]} HTTP/1.1\\r\\n\\r\\n"
held, late = [], []
for _ in range({STREAMS_MAX}):
    s = socket.create_connection(("127.0.0.1", 3128)); s.sendall(head); held.append(s)
for s in held:
    assert s.recv(200).startswith(b"HTTP/1.1 200"), "one of the first was refused"
extra = socket.create_connection(("127.0.0.1", 3128)); extra.sendall(head); extra.settimeout(0.5)
try:
    extra.recv(200); print("beyond")
except TimeoutError:
    print("waits")
for s in held[1:]:
    s.sendall(b"ping"); assert s.recv(4) == b"ping"
held[0].close()
extra.settimeout(20)
print(extra.recv(200)[:12])
"""
    answer = python(out_box, text)
    assert answer.stdout.text() == "waits\nb'HTTP/1.1 200'\n", answer.stderr.text()


def test_a_client_that_does_not_read_holds_up_nobody(out_box: Box, talk: Callable[..., str], port: int) -> None:
    text = f"""
import subprocess
held = []
for _ in range(8):
    s = socket.create_connection(("127.0.0.1", 3128)); s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    s.sendall(b"GET http://site.test:{port}/big HTTP/1.1\\r\\n\\r\\n"); held.append(s)
assert all(s.recv(8) == b"HTTP/1.1" for s in held)
print(talk(b"GET http://site.test:{port}/ HTTP/1.1\\r\\n\\r\\n")[:12])
"""
    answer = python(out_box, text)
    assert answer.stdout.text() == "b'HTTP/1.1 200'\n", answer.stderr.text()
    assert shell_of(out_box)("echo fine").stdout.text() == "fine\n"


def test_each_connection_is_logged_without_what_it_carried(
    talk: Callable[..., str], port: int, caplog: pytest.LogCaptureFixture, until: Callable[..., None]
) -> None:
    caplog.set_level(logging.INFO, logger="sandbox.egress")
    talk(get(f"http://site.test:{port}/path?token=hush-hush", "Authorization: Bearer hush-hush"))
    talk(get("http://elsewhere.test/hush-hush"))

    def lines() -> dict[str, Any]:
        return {line.__dict__["host"]: line.__dict__ for line in caplog.records if line.msg == "egress"}

    until(lambda: {"site.test", "elsewhere.test"} <= set(lines()), "both are logged")
    assert lines()["site.test"]["outcome"] == "ended"
    assert lines()["site.test"]["down_bytes"] > 0
    assert lines()["elsewhere.test"]["outcome"].startswith("refused")
    assert "hush" not in repr([line.__dict__ for line in caplog.records])


def test_a_box_that_is_lost_ends_its_connections(
    egress_engine: DockerEngine,
    make_spec: Callable[..., BoxSpec],
    server: Server,
    echo: Echo,
    docker_client: docker.APIClient,
    until: Callable[..., None],
) -> None:
    box = egress_engine.start(make_spec(egress=allowed(server, echo)), "s", 1)
    outcome: list[Any] = []

    def hold() -> None:
        head = f"CONNECT site.test:{echo.server_address[1]} HTTP/1.1\r\n\r\n".encode()
        try:
            outcome.append(python(box, f"talk({head!r}, wait=100)"))
        except BoxLost as lost:
            outcome.append(lost)

    while echo.began.acquire(blocking=False):
        pass
    while echo.ended.acquire(blocking=False):
        pass
    thread = threading.Thread(target=hold)
    thread.start()
    assert echo.began.acquire(timeout=20), "the connection was never made"
    docker_client.kill(f"sandhog-{box.box_id}")
    thread.join(20)
    assert isinstance(outcome[0], BoxLost)
    assert echo.ended.acquire(timeout=20), "the connection outlived its box"
    until(
        lambda: not any(t.name == f"egress-{box.box_id}" for t in threading.enumerate()), "the carrier's thread ended"
    )


def test_an_adopted_box_keeps_its_list_and_no_more(
    make_engine: Callable[..., DockerEngine],
    make_spec: Callable[..., BoxSpec],
    tmp_path: Path,
    server: Server,
    echo: Echo,
    names: Names,
) -> None:
    settings = EgressSettings(allow_private=frozenset({"site.test", "inside.test"}), resolver=names)
    first = make_engine("egress-adopt", tmp_path, egress=settings)
    first.start(make_spec(egress=(f"site.test:{server.server_address[1]}",)), "s", 1)
    first.close()
    second = make_engine("egress-adopt", tmp_path, egress=settings)
    ((_record, box),) = second.adopt()
    try:
        good = get(f"http://site.test:{server.server_address[1]}/")
        bad = get(f"http://inside.test:{server.server_address[1]}/")
        answer = python(box, f"print(talk({good!r})[:12], talk({bad!r})[:12])")
        assert answer.stdout.text() == "b'HTTP/1.1 200' b'HTTP/1.1 403'\n", answer.stderr.text()
    finally:
        box.close()


def test_a_box_uses_up_its_bytes(
    make_engine: Callable[..., DockerEngine],
    make_spec: Callable[..., BoxSpec],
    server: Server,
    names: Names,
) -> None:
    limits = EgressLimits(total_bytes=1_000_000)
    settings = EgressSettings(allow_private=frozenset({"site.test"}), limits=limits, resolver=names)
    engine = make_engine("egress-bytes", egress=settings)
    box = engine.start(make_spec(egress=(f"site.test:{server.server_address[1]}",)), "s", 1)
    try:
        big = get(f"http://site.test:{server.server_address[1]}/big")
        answer = python(box, f"print(len(talk({big!r})) < 2_000_000, talk({big!r})[:12])")
        assert answer.stdout.text() == "True b'HTTP/1.1 403'\n", answer.stderr.text()
    finally:
        box.close()


def test_a_list_that_cannot_be_read_starts_no_box(
    egress_engine: DockerEngine, make_spec: Callable[..., BoxSpec], containers_of: Callable[[str], int]
) -> None:
    before = containers_of(NODE)
    with pytest.raises(BadRule, match="no allowed host"):
        egress_engine.start(make_spec(egress=("http://site.test/",)), "s", 1)
    assert containers_of(NODE) == before
