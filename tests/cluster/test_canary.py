"""A real node whose reader hangs starts itself anew; what it tells Prometheus meanwhile."""

import contextlib
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis
from prometheus_client.parser import text_string_to_metric_families

from tests.cluster.machines import Node
from tests.conftest import sync_client
from worker.contract import keys

pytestmark = [pytest.mark.long, pytest.mark.docker, pytest.mark.timeout(300)]

TOKEN = "a-token-for-prometheus"


class Proxy:
    """Stands before a Redis; while it is deaf, nobody who wants to read a queue hears anything any more."""

    def __init__(self, target: Path) -> None:
        self._target = target
        self.is_deaf = False
        self.swallowed = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = []
        self.url = f"redis://127.0.0.1:{self._listener.getsockname()[1]}/0"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.socket(socket.AF_UNIX)
                server.connect(str(self._target))
                self._open += [client, server]
                threading.Thread(target=self._carry, args=(client, server, True), daemon=True).start()
                threading.Thread(target=self._carry, args=(server, client, False), daemon=True).start()

    def _carry(self, source: socket.socket, sink: socket.socket, is_asking: bool) -> None:
        is_lost = False
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if is_asking and self.is_deaf and (is_lost or b"BRPOP" in data):
                    is_lost = True
                    self.swallowed += 1
                    continue
                sink.sendall(data)
        for one in (source, sink):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        for one in (self._listener, *self._open):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()


@pytest.fixture
def proxy(redis_url: str, redis_server: Path) -> Iterator[Proxy]:
    proxy = Proxy(redis_server)
    yield proxy
    proxy.close()


@pytest.fixture
def client(redis_url: str) -> Iterator[redis.Redis]:
    with sync_client(redis_url) as client:
        yield client


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


def scrape(port: int, token: str = TOKEN) -> dict[str, float]:
    """What a node tells, of metrics without labels."""
    request = urllib.request.Request(f"http://127.0.0.1:{port}/metrics", headers={"Authorization": f"Bearer {token}"})
    with urllib.request.urlopen(request, timeout=30) as answer:
        families = text_string_to_metric_families(answer.read().decode())
        return {sample.name: sample.value for family in families for sample in family.samples if not sample.labels}


def test_a_node_that_consumes_nothing_starts_itself_anew(
    state_dir: Path, proxy: Proxy, client: redis.Redis, until: Callable[..., None], docker_engine_or_skip: None
) -> None:
    port, alive = free_port(), state_dir / "alive"
    settings = {
        "SANDHOG_CANARY_S": "0.2",
        "SANDHOG_CANARY_LIMIT_S": "4",
        "SANDHOG_ALIVE_FILE": str(alive),
        "SANDHOG_METRICS_PORT": str(port),
        "SANDHOG_METRICS_TOKEN": TOKEN,
        "SANDHOG_PLACES": "3",
    }
    node = Node("deaf", state_dir, proxy.url, settings)
    node.start()
    try:
        until(lambda: client.get(keys.lease("deaf")) is not None and alive.exists(), "the node is alive")
        first = client.get(keys.lease("deaf"))
        told = scrape(port)
        assert told["sandhog_places"] == 3
        assert told["sandhog_calls_in_flight"] == 0
        with pytest.raises(urllib.error.HTTPError, match="401"):
            scrape(port, "another")

        proxy.is_deaf = True
        until(lambda: proxy.swallowed > 0, "its reader hears nothing")
        until(lambda: scrape(port)["sandhog_canary_waited_seconds"] > 2, "its canary is missed")
        assert client.get(keys.lease("deaf")) == first, "it is alive and connected all the same"
        alive.unlink()
        until(lambda: "the node is started anew" in node.log(), "the node gives up", 100)
        assert not alive.exists(), "nobody was told that it is well meanwhile"

        proxy.is_deaf = False
        until(lambda: client.get(keys.lease("deaf")) not in (None, first), "it has another life")
        until(alive.exists, "it is well again")
        assert node.process.poll() is None, "in the same process"
    finally:
        node.process.terminate()
        assert node.process.wait(60) == 0
