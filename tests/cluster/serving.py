"""A `sandhog serve` as a process of a test: what it is started with, and what its model says."""

import os
import re
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
from tests.cluster.commands import SANDHOG, environment, leftovers

Until = Callable[..., None]
TOKEN = "a-token-for-the-first-one"
DELEGATED = "@"


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
            [*SANDHOG, *arguments], env=self.environment, capture_output=True, text=True, timeout=240, check=False
        )


@contextmanager
def serving(script: Script, state_dir: Path, until: Until, **variables: str) -> Iterator[Server]:
    """A server against a scripted endpoint; nothing of one with a cluster of its own may be left."""
    # There may be several on one volume.
    log = state_dir / f"serve-{len(list(state_dir.glob('serve-*.log')))}.log"
    with ScriptedEndpoint(script) as endpoint, log.open("w") as output:
        proofs = {"SANDHOG_PROOFS_DIR": os.environ.get("SANDHOG_PROOFS_DIR", "")}
        known = environment(endpoint, state_dir, **proofs, SANDHOG_API_TOKEN=TOKEN, **variables)
        process = subprocess.Popen(
            [*SANDHOG, "serve", "--port", "0"],
            env={name: value for name, value in known.items() if value},
            stdin=subprocess.DEVNULL,
            stderr=output,
            text=True,
            start_new_session=True,
        )
        try:
            until(lambda: "serving at" in log.read_text() or process.poll() is not None, "it listens", 90)
            assert process.poll() is None, log.read_text()
            url = log.read_text().split("serving at ")[1].split()[0]
            yield Server(process, url, known, log)
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
            try:
                process.wait(60)
            finally:
                if process.poll() is None:
                    process.kill()
                    process.wait()
    if "SANDHOG_REDIS_URL" not in variables:
        assert leftovers(state_dir) == []


def ended(client: httpx2.Client, session_id: str) -> dict[str, Any]:
    """The session once it has ended."""
    for _ in range(20):
        shown: dict[str, Any] = client.get(f"/v1/sessions/{session_id}", params={"wait": 30}).json()
        if shown["ended_at"]:
            return shown
    pytest.fail(f"it does not end: {shown}")


def files(directory: Path, name: str) -> list[Path]:
    """All files of a name below a session's directory; none while its copy is just being put into place."""
    try:
        return list(directory.glob(f"**/{name}"))
    except FileNotFoundError:
        return []


def bash(command: str) -> Turn:
    return Turn(calls=(ScriptedCall("Bash", {"command": command}),))


def task(prompt: str) -> Turn:
    arguments = {"description": "some of the work", "prompt": prompt, "profile": "general"}
    return Turn(calls=(ScriptedCall("Task", arguments),))


def says(messages: list[dict[str, Any]]) -> Turn:
    """The prompt says what the model does: each of its lines is a command, run a step after the other.

    A line that begins with `DELEGATED` is the prompt of a sub-agent.
    """
    # What this program itself says to the model stands in brackets, alone or before a person's words.
    spoken = [re.sub(r"^\[.*?\](\n\n|$)", "", str(one["content"]), flags=re.S) for one in messages]
    heard = [at for at, one in enumerate(messages) if one["role"] == "user" and spoken[at]][-1]
    said = spoken[heard]
    step = sum(message["role"] == "assistant" for message in messages[heard:])
    commands = [line for line in said.splitlines() if not line.startswith("#")]
    if step == len(commands):
        return Turn(f"ran {len(commands)}")
    whole, _, prompt = commands[step].partition(DELEGATED)
    return bash(whole) if whole else task(prompt)


def made(client: httpx2.Client, **body: Any) -> str:
    response = client.post("/v1/sessions", json=body)
    assert response.status_code == 201, response.text
    return str(response.json()["session_id"])
