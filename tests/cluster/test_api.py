"""`sandhog serve` as its users have it: a process, tokens, HTTP, boxes."""

import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest

from coordinator.endpoint.scripted import Script, ScriptedCall, ScriptedEndpoint, Turn
from tests.cluster.test_command_line import SANDHOG, SECRET, leftovers

pytestmark = pytest.mark.docker

Until = Callable[..., None]
TOKEN = "a-token-for-the-first-one"


@dataclass
class Server:
    """A `sandhog serve` that listens."""

    process: subprocess.Popen[str]
    url: str
    environment: dict[str, str]
    log: Path

    def client(self, token: str = TOKEN) -> httpx2.Client:
        headers = {"Authorization": f"Bearer {token}"}
        return httpx2.Client(base_url=self.url, headers=headers, timeout=90, trust_env=False)

    def command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*SANDHOG, *arguments], env=self.environment, capture_output=True, text=True, timeout=90, check=False
        )


@contextmanager
def serving(script: Script, state_dir: Path, until: Until, **variables: str) -> Iterator[Server]:
    """A server against a scripted endpoint; nothing of it may be left."""
    log = state_dir / "serve.log"
    with ScriptedEndpoint(script) as endpoint, log.open("w") as output:
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(state_dir),
            "OPENAI_BASE_URL": endpoint.base_url,
            "OPENAI_API_KEY": SECRET,
            "SANDHOG_MODEL": "scripted",
            "SANDHOG_STATE_DIR": str(state_dir),
            "SANDHOG_PROOFS_DIR": os.environ.get("SANDHOG_PROOFS_DIR", ""),
            "PYTHONPATH": str(Path(__file__).parents[2]),
            "SANDHOG_API_TOKEN": TOKEN,
            **variables,
        }
        process = subprocess.Popen(
            [*SANDHOG, "serve", "--port", "0"],
            env={name: value for name, value in environment.items() if value},
            stdin=subprocess.DEVNULL,
            stderr=output,
            text=True,
            start_new_session=True,
        )
        try:
            until(lambda: "serving at" in log.read_text() or process.poll() is not None, "it listens", 30)
            assert process.poll() is None, log.read_text()
            url = log.read_text().split("serving at ")[1].split()[0]
            yield Server(process, url, environment, log)
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
            try:
                process.wait(60)
            finally:
                if process.poll() is None:
                    process.kill()
                    process.wait()
    assert leftovers(state_dir) == []


def ended(client: httpx2.Client, session_id: str) -> dict[str, Any]:
    """The session once it has ended."""
    for _ in range(20):
        shown: dict[str, Any] = client.get(f"/v1/sessions/{session_id}", params={"wait": 30}).json()
        if shown["ended_at"]:
            return shown
    pytest.fail(f"it does not end: {shown}")


def bash(command: str) -> Turn:
    return Turn(calls=(ScriptedCall("Bash", {"command": command}),))


def test_a_session_over_http_from_create_to_patch(state_dir: Path, project: Path, until: Until) -> None:
    roots = json.dumps({"project": str(project)})
    script = [bash("cat a.txt; echo gamma >> a.txt; echo new > n.txt"), Turn("changed")]
    with serving(script, state_dir, until, SANDHOG_ROOTS=roots, SANDHOG_DRAIN_S="5") as server:
        with server.client() as client:
            assert client.get("/healthz").status_code == 200
            until(lambda: client.get("/readyz").status_code == 200, "its worker is there", 30)
            made = client.post("/v1/sessions", json={"prompt": "change it", "workspace": "project"})
            assert made.status_code == 201, made.text
            session_id = made.json()["session_id"]
            shown = ended(client, session_id)
            assert (shown["status"], shown["text"]) == ("completed", "changed"), shown
            assert (shown["workspace"], shown["workspace_mode"]) == ("project", "copy")
            patch = client.get(f"/v1/sessions/{session_id}/patch").text
            assert "+gamma" in patch
            assert "+new" in patch
            events = client.get(f"/v1/sessions/{session_id}/events").text
            assert "event: call_finished" in events
            assert client.get("/v1/nodes").json()["nodes"][0]["is_alive"]
            assert client.get("/v1/principals/me").json()["principal"] == "local"
            assert SECRET not in events + client.get(f"/v1/sessions/{session_id}/transcript").text
        assert (project / "a.txt").read_text() == "alpha\nbeta\n", "it worked on a copy"
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(60) == 0
        assert SECRET not in server.log.read_text()
        assert TOKEN not in server.log.read_text()
