"""Many connections, their bounds and their end."""

import logging
import threading
from collections.abc import Callable
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
from sandbox.requests import RunAnswer
from sandbox.spec import BoxSpec
from sandbox.wire import STREAMS_MAX
from tests.sandbox.asking import TICK
from tests.sandbox.conftest import shell_of
from tests.sandbox.egress.outside import NODE, Echo, Names, Server, allowed, get, python

pytestmark = pytest.mark.docker


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
extra.settimeout(60)
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
    assert echo.began.acquire(timeout=60), "the connection was never made"
    docker_client.kill(f"sandhog-{box.box_id}")
    thread.join(60)
    assert isinstance(outcome[0], BoxLost)
    assert echo.ended.acquire(timeout=60), "the connection outlived its box"
    until(
        lambda: not any(t.name == f"egress-{box.box_id}" for t in threading.enumerate()), "the carrier's thread ended"
    )


def test_a_link_that_breaks_ends_its_connections_and_the_next_one_carries_new_ones(
    out_box: Box, echo: Echo, talk: Callable[..., str], port: int
) -> None:
    outcome: list[RunAnswer] = []
    text = f"""
s = socket.create_connection(("127.0.0.1", 3128)); s.settimeout(60)
s.sendall(b"CONNECT site.test:{echo.server_address[1]} HTTP/1.1\\r\\n\\r\\n")
print(s.recv(200)[:12])
open("/tmp/answered", "w").close()
print(s.recv(200))
"""

    def hold() -> None:
        outcome.append(python(out_box, text))

    while echo.began.acquire(blocking=False) or echo.ended.acquire(blocking=False):
        pass
    thread = threading.Thread(target=hold)
    thread.start()
    assert echo.began.acquire(timeout=60), "the connection was never made"
    # What was on its way when the link broke may be lost: first the client must have its answer.
    assert shell_of(out_box)(TICK.format("/tmp/answered") + "; rm /tmp/answered").exit_code == 0
    link = out_box._link
    assert link is not None
    link.close()
    thread.join(60)
    assert outcome[0].stdout.text() == "b'HTTP/1.1 200'\nb''\n", "the client saw the end, its command was not lost"
    assert echo.ended.acquire(timeout=60)
    assert talk(get(f"http://site.test:{port}/")).startswith("HTTP/1.1 200 ")


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
