import asyncio
import json
from collections.abc import Iterator

import pytest

from coordinator.service.webhooks import MARKER, Webhooks, is_public
from tests.coordinator.api.conftest import Served, Serves, code, prompt
from tests.receiving import Receiver, is_signed, receiving


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving(500, 302) as server:
        yield server


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
    assert is_signed(headers, body, secret)
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


async def test_the_secret_is_told_again_to_who_did_not_hear_the_answer(served: Served) -> None:
    client = served.client()
    body = prompt(webhook={"url": "https://hooks.example.com/x"}, idempotency_key="k")
    first, again = [await client.post("/v1/sessions", json=body) for _ in range(2)]
    assert (first.status_code, again.status_code) == (201, 200)
    assert first.json()["webhook_secret"] == again.json()["webhook_secret"] is not None
    other = await client.post("/v1/sessions", json={**body, "prompt": "else"})
    assert other.status_code == 409
    assert first.json()["webhook_secret"] not in other.text


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
