import asyncio
import os
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from coordinator.client import ApiError, Client
from coordinator.commands.wait import app
from coordinator.endpoint.scripted import Turn
from coordinator.errors import ConfigError
from tests.coordinator.api.conftest import FIRST_TOKEN, Serves, prompt


async def waited(*arguments: str, **environment: str) -> Result:
    runner = CliRunner(env={**os.environ, "SANDHOG_API_TOKEN": FIRST_TOKEN, **environment})
    return await asyncio.to_thread(runner.invoke, app, list(arguments))


async def test_wait_says_how_sessions_ended_and_whether_all_completed(serve: Serves, state_dir: Path) -> None:
    served = await serve([Turn("done", delay_s=0.5)])
    client = served.client()
    good = (await client.post("/v1/sessions", json=prompt())).json()["session_id"]
    at_server = await waited(good, "--url", served.base_url)
    assert (at_server.exit_code, at_server.stdout) == (0, f"{good} completed\n"), at_server.exception
    other = (await client.post("/v1/sessions", json=prompt())).json()["session_id"]
    await client.post(f"/v1/sessions/{other}/cancel")
    on_volume = await waited(good, other, SANDHOG_STATE_DIR=str(state_dir))
    assert (on_volume.exit_code, on_volume.stdout) == (1, f"{good} completed\n{other} cancelled\n")

    unknown = "20300131-120000-00000000"
    for arguments in ([unknown, "--url", served.base_url], [unknown]):
        refused = await waited(*arguments, SANDHOG_STATE_DIR=str(state_dir))
        assert isinstance(refused.exception, ConfigError), arguments


async def test_wait_ends_with_its_time(serve: Serves, state_dir: Path) -> None:
    served = await serve([Turn("late", delay_s=60)])
    session_id = (await served.client().post("/v1/sessions", json=prompt())).json()["session_id"]
    for arguments in ([session_id, "--url", served.base_url], [session_id]):
        late = await waited(*arguments, "--timeout", "0.1", SANDHOG_STATE_DIR=str(state_dir))
        assert (late.exit_code, late.stdout) == (1, f"{session_id} not ended within the time\n")


async def test_the_client_does_what_the_api_offers(serve: Serves, tmp_path: Path) -> None:
    served = await serve([Turn("some text, in pieces", chunk_chars=5)])
    archive = tmp_path / "a.tar"
    archive.write_bytes(b"no archive at all")

    def use() -> None:
        with Client(served.base_url, FIRST_TOKEN) as client:
            made = client.create("say it", labels={"n": "1"}, limits={"steps": 3})
            kinds = [event.type for event in client.events(made["session_id"])]
            assert kinds[0] == "session_started"
            assert kinds[-1] == "session_ended"
            assert client.wait(made["session_id"])["text"] == "some text, in pieces"
            assert [one["session_id"] for one in client.find(label="n=1")] == [made["session_id"]]
            assert list(client.transcript(made["session_id"]))[-1]["type"] == "session_ended"
            assert client.me()["principal"] == "local"
            assert client.nodes() == []
            assert len(client.upload(archive)) == 32
            again = client.create("say it", idempotency_key="k")
            assert client.create("say it", idempotency_key="k")["session_id"] == again["session_id"]
            open_one = client.create("say it", stay_open=True)["session_id"]
            assert client.wait(open_one)["status"] == "idle"
            client.message(open_one, "more")
            client.limit(open_one, calls=5)
            client.finish(open_one)
            assert client.wait(open_one)["status"] in ("completed", "idle")
            assert client.approvals(open_one) == []
            with pytest.raises(ApiError) as refused:
                client.create("x", unknown=1)
            assert (refused.value.code, refused.value.status) == ("INVALID", 422)
            with pytest.raises(ApiError) as missing:
                client.patch(made["session_id"])
            assert missing.value.code == "NOT_FOUND"
            client.cancel(open_one)

    await asyncio.to_thread(use)


def test_a_server_that_is_not_there_is_told_as_that() -> None:
    pauses: list[float] = []
    with Client("http://127.0.0.1:9", "x" * 20, sleep=pauses.append) as client, pytest.raises(ApiError) as failure:
        client.create("x")
    assert failure.value.code == "UNREACHABLE"
    assert len(pauses) == 4, "it was asked again: a key makes that safe"


def test_a_client_needs_a_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SANDHOG_API_TOKEN", raising=False)
    with pytest.raises(ConfigError):
        Client("http://127.0.0.1:9")
