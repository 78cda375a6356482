"""What is wanted of a session in the seconds in which its server is dead: three `sandhog serve`, a node with boxes."""

import json
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx2
import pytest

from coordinator.embedded import Embedded
from tests.cluster.serving import Server, Until, ended, files, made, says, serving

pytestmark = [pytest.mark.docker, pytest.mark.timeout(400)]
SOON_S = 45.0
"""A takeover and what is then asked of the box, on a machine that is busy; the command would run for far longer."""


def killed(server: Server) -> None:
    server.process.send_signal(signal.SIGKILL)
    server.process.wait()


def events(client: httpx2.Client, session_id: str, kind: str) -> list[dict[str, Any]]:
    lines = client.get(f"/v1/sessions/{session_id}/transcript").text.splitlines()
    return [one for one in map(json.loads, lines) if one["type"] == kind]


def test_a_call_left_running_is_cancelled_and_a_session_is_forked_while_nobody_has_it_and_once_for_a_key(
    embedded: Embedded, state_dir: Path, until: Until
) -> None:
    cluster = {"SANDHOG_REDIS_URL": embedded.redis_url, "SANDHOG_DRAIN_S": "0"}
    with ExitStack() as stack:

        def served() -> tuple[Server, httpx2.Client]:
            server = stack.enter_context(serving(says, state_dir, until, **cluster))
            client = stack.enter_context(server.client())
            until(lambda: client.get("/readyz").status_code == 200, "the worker is there", 120)
            return server, client

        (first, here), (second, there) = served(), served()
        session_id = made(here, prompt="echo so far; touch begun; sleep 300", stay_open=True)
        path, directory = f"/v1/sessions/{session_id}", state_dir / "sessions" / session_id
        until(lambda: files(directory, "begun"), "the call runs", 120)
        killed(first)
        began = time.monotonic()
        cancelled = there.post(f"{path}/calls/1.0/cancel")
        assert cancelled.status_code == 202, cancelled.text
        # Told in time, or not yet: it is done all the same.
        assert cancelled.json()["calls"] in ([], [{"name": "1.0", "has_begun": True}])
        until(lambda: there.get(path).json()["status"] == "idle", "the call has ended", SOON_S)
        assert time.monotonic() - began < SOON_S
        (answer,) = events(there, session_id, "call_finished")
        assert answer["error_code"] == "CANCELLED"
        assert json.loads(answer["answer"])["text"].strip() == "so far", "what it had printed is kept"

        _, elsewhere = served()
        key, wanted = {"Idempotency-Key": "the-fork"}, {"prompt": "ls"}
        with ThreadPoolExecutor(2) as pool:
            asked = [pool.submit(one.post, f"{path}/fork", json=wanted, headers=key) for one in (there, elsewhere)]
            answers = [one.result() for one in asked]
        assert sorted(one.status_code for one in answers) == [200, 201], [one.text for one in answers]
        (fork,) = {one.json()["session_id"] for one in answers}
        assert ended(elsewhere, fork)["status"] == "completed"
        assert len(events(elsewhere, fork, "session_forked")) == 1

        killed(second)
        late = elsewhere.post(f"{path}/fork", json={"prompt": "cat begun"}, headers={"Idempotency-Key": "later"})
        assert late.status_code == 201, late.text
        assert ended(elsewhere, late.json()["session_id"])["status"] == "completed"
