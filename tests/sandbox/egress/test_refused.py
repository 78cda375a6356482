"""What a box does not reach, whatever it tries."""

import hashlib
from collections.abc import Callable

import pytest

from sandbox.box import Box
from tests.sandbox.egress.outside import Names, Server, get, python

pytestmark = pytest.mark.docker

judged_on_the_host = pytest.mark.parametrize("out_box", ["runc"], indirect=True)
"""The runtime has no part in what a request is taken for; that its bytes come through is tested on both."""


@judged_on_the_host
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


@judged_on_the_host
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


@judged_on_the_host
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


@judged_on_the_host
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
