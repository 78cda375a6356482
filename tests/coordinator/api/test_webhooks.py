import asyncio
import hashlib
import hmac
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from coordinator.service.webhooks import MARKER, Webhooks, is_public
from tests.coordinator.api.conftest import Serves, code, prompt


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


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    server = Receiver([500, 302])
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


async def no_pause(seconds: float) -> None:
    await asyncio.sleep(0)


async def test_the_end_is_told_signed_and_again_until_it_is_heard(serve: Serves, receiver: Receiver) -> None:
    served = await serve(webhooks=Webhooks(["localhost"], sleep=no_pause))
    client = served.client()
    url = f"http://localhost:{receiver.server_address[1]}/done?x=1"
    made = (await client.post("/v1/sessions", json=prompt(webhook={"url": url}))).json()
    secret = made["webhook_secret"]
    await served.ended(client, made["session_id"])
    assert await asyncio.to_thread(receiver.has_all.wait, 60)
    assert len(receiver.got) == 3, "a failure and a redirect are no yes, and the redirect is not followed"
    headers, body = receiver.got[-1]
    moment, _, digest = headers["sandhog-signature"].removeprefix("t=").partition(",v1=")
    assert hmac.new(secret.encode(), f"{moment}.".encode() + body, hashlib.sha256).hexdigest() == digest
    told = json.loads(body)
    assert (told["event"], told["session"]["status"]) == ("session_ended", "completed")
    assert headers["host"] == f"localhost:{receiver.server_address[1]}"
    shown = (await client.get(f"/v1/sessions/{made['session_id']}")).text
    assert secret not in shown
    marker = served.state_dir / "sessions" / made["session_id"] / MARKER
    async with asyncio.timeout(60):
        while not marker.exists():
            await asyncio.sleep(0.01)
    assert json.loads(marker.read_text())["told"] is True


async def test_an_address_inside_is_never_connected_to(serve: Serves, receiver: Receiver) -> None:
    served = await serve(webhooks=Webhooks(sleep=no_pause))
    client = served.client()
    for host in ("127.0.0.1", "localhost", "[::1]", "0x7f.1"):
        url = f"http://{host}:{receiver.server_address[1]}/"
        made = (await client.post("/v1/sessions", json=prompt(webhook={"url": url}))).json()
        marker = served.state_dir / "sessions" / made["session_id"] / MARKER
        async with asyncio.timeout(60):
            while not marker.exists():
                await asyncio.sleep(0.01)
        assert json.loads(marker.read_text())["told"] is False
    assert receiver.got == []


async def test_odd_addresses_are_refused_at_once(serve: Serves) -> None:
    served = await serve()
    client = served.client()
    for url in ("ftp://example.org", "http://", "http://a:b@example.org/", "http://example.org/\r\nX: y", "x"):
        assert code(await client.post("/v1/sessions", json=prompt(webhook={"url": url}))) == "INVALID", url


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("8.8.8.8", True),
        ("2606:4700::1111", True),
        ("10.0.0.1", False),
        ("169.254.169.254", False),
        ("100.64.0.1", False),
        ("224.0.0.1", False),
        ("::ffff:10.0.0.1", False),
        ("64:ff9b::7f00:1", False),
        ("2002:7f00:1::", False),
        ("fe80::1%eth0", False),
        ("fd00::1", False),
        ("::", False),
    ],
)
def test_public_addresses_are_told_from_those_inside(address: str, expected: bool) -> None:
    assert is_public(address) is expected
