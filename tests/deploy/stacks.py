"""Stacks of deploy/compose.sh for tests: brought up, spoken to, taken down; with names and directories of their own."""

import fcntl
import json
import os
import re
import shutil
import socket
import ssl
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import docker
import httpx2

ROOT = Path(__file__).parents[2]
COMPOSE_S = 1200
"""Images are built on a machine that may be busy."""
BUILDING = Path(tempfile.gettempdir()) / "sandhog-stack-images.lock"
"""Images have one name on an engine: tests that make them wait for each other."""


@dataclass(frozen=True)
class Stack:
    """A stack, and how it is spoken to."""

    name: str
    environment: dict[str, str]
    flags: tuple[str, ...]
    """compose.sh's own, before its command."""
    is_tls: bool = False

    @property
    def state_dir(self) -> Path:
        return Path(self.environment["SANDHOG_STATE_DIR"])

    @property
    def secrets(self) -> Path:
        return Path(self.environment["SANDHOG_SECRETS"])

    @property
    def url(self) -> str:
        return f"{'https' if self.is_tls else 'http'}://127.0.0.1:{self.environment['SANDHOG_PORT']}"

    def run(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        argv = ["bash", str(ROOT / "deploy/compose.sh"), *self.flags, *arguments]
        return subprocess.run(
            argv, env=self.environment, capture_output=True, text=True, timeout=COMPOSE_S, check=False
        )

    def compose(self, *arguments: str) -> str:
        done = self.run(*arguments)
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout

    def ask(self, method: str, path: str, **options: Any) -> httpx2.Response:
        verify = ssl.create_default_context(cafile=self.secrets / "redis_ca") if self.is_tls else True
        return httpx2.request(
            method,
            self.url + path,
            headers={"Authorization": f"Bearer {(self.secrets / 'api_token').read_text()}"},
            timeout=120,
            trust_env=False,
            verify=verify,
            **options,
        )

    def started(self) -> str:
        """Return the id of a session that has begun."""
        answer = self.ask("POST", "/v1/sessions", json={"prompt": "write"})
        assert answer.status_code == 201, answer.text
        return str(answer.json()["session_id"])

    def ended(self, session_id: str) -> dict[str, Any]:
        answer = self.ask("GET", f"/v1/sessions/{session_id}?wait=100")
        return dict(answer.json())

    def runs_a_command(self, session_id: str) -> bool:
        """Whether a session's command has written its first line."""
        return (self.state_dir / "sessions" / session_id / "work" / "log").exists()


@contextmanager
def directory() -> Iterator[Path]:
    """A directory that other users than root get to: not below the tests' temporary one."""
    home = Path(tempfile.mkdtemp(prefix="sandhog-stack-", dir="/var/tmp"))
    home.chmod(0o755)
    try:
        yield home
    finally:
        shutil.rmtree(home, ignore_errors=True)


def environment(name: str, home: Path, script: list[dict[str, Any]], *ports: str) -> dict[str, str]:
    """Return variables of a stack that keeps everything in a directory; each of `ports` is given a free one."""
    path = home / "script.json"
    path.write_text(json.dumps(script))
    found = {name: value for name, value in os.environ.items() if not re.match("SANDHOG_|OPENAI_", name)}
    return found | {
        "SANDHOG_STACK": name,
        "SANDHOG_STATE_DIR": str(home / "state"),
        "SANDHOG_SECRETS": str(home / "secrets"),
        "SANDHOG_PULL_S": "15",
        "SCRIPT": str(path),
        **{port: str(free_port()) for port in ports},
    }


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@contextmanager
def up(stack: Stack, *, builds: bool = True) -> Iterator[Stack]:
    """The stack, from its images to its end."""
    try:
        if builds:
            with BUILDING.open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                stack.compose("build")
        stack.compose("up", "--detach", "--wait")
        yield stack
    finally:
        stack.run("down", "--volumes", "--timeout", "5")


def leftovers(client: docker.DockerClient, name: str) -> list[str]:
    """What the engine still has of a stack and of its workers' boxes."""
    of_stack: dict[str, str | list[str] | bool] = {"label": f"com.docker.compose.project={name}"}
    boxes = client.containers.list(all=True, filters={"name": "sandhog-"}, ignore_removed=True)
    return [
        *(f"container {one.name}" for one in client.containers.list(all=True, filters=of_stack, ignore_removed=True)),
        *(f"network {one.name}" for one in client.networks.list(filters=of_stack)),
        *(f"volume {one.name}" for one in client.volumes.list(filters=of_stack)),
        *(f"box {one.name}" for one in boxes if f"{name}-worker" in str(one.labels)),
    ]
