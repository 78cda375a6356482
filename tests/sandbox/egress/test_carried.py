"""What a box reaches when some hosts are allowed."""

import hashlib
import threading
from collections.abc import Callable

import pytest

from sandbox.box import Box
from sandbox.engine import DockerEngine
from sandbox.requests import RunAnswer
from sandbox.spec import BoxSpec
from tests.sandbox.conftest import shell_of
from tests.sandbox.egress.outside import BIG_BYTES, Echo, Server, get, python

pytestmark = pytest.mark.docker


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
