"""A Redis and worker processes that no command owns, which a test starts, hurts and ends; and how it looks at them."""

import asyncio
import base64
import contextlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import redis

from coordinator.embedded import Embedded, redis_server_binary
from worker.contract import keys

REPOSITORY = Path(__file__).parents[2]
WORKER = ("-m", "worker", "run")


@dataclass
class Server:
    """A Redis with an append-only file, which can be killed and started again."""

    directory: Path
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"unix://{self.directory / 's'}"

    def start(self) -> None:
        settings = ["--port", "0", "--unixsocket", "s", "--appendonly", "yes", "--appendfsync", "always", "--save", ""]
        with redis_server_binary() as binary, (self.directory / "log").open("ab") as log:
            argv = [str(binary), *settings, "--dir", str(self.directory)]
            process = subprocess.Popen(argv, stdout=log, stderr=log, cwd=self.directory, start_new_session=True)
        self.processes.append(process)

    def kill(self) -> None:
        self.processes[-1].kill()
        self.processes[-1].wait()

    def signal(self, number: int) -> None:
        self.processes[-1].send_signal(number)


@dataclass
class Node:
    """A worker process that ends by signals only."""

    name: str
    state_dir: Path
    redis_url: str
    settings: dict[str, str] = field(default_factory=dict)
    """More `SANDHOG_*` variables, or others in their place."""
    program: tuple[str, ...] = WORKER
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def start(self) -> None:
        environment = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(REPOSITORY),
            "SANDHOG_REDIS_URL": self.redis_url,
            "SANDHOG_STATE_DIR": str(self.state_dir),
            "SANDHOG_NODE": self.name,
            "SANDHOG_DEAD_MAN_S": "20",
            **self.settings,
        }
        with self._log.open("ab") as log:
            argv = [sys.executable, *self.program]
            self.processes.append(subprocess.Popen(argv, env=environment, stdout=log, stderr=log))

    @property
    def process(self) -> subprocess.Popen[bytes]:
        return self.processes[-1]

    @property
    def _log(self) -> Path:
        return self.state_dir / f"{self.name}.log"

    def log(self) -> str:
        return self._log.read_text()


@contextlib.asynccontextmanager
async def kept_up(embedded: Embedded) -> AsyncIterator[None]:
    """Restart the worker whenever it dies, as the command line does."""

    async def look_after() -> None:
        while True:
            embedded.look_after()
            await asyncio.sleep(0.1)

    task = asyncio.create_task(look_after())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def calls_of(message: dict[str, Any]) -> list[str]:
    """Return the keys of the calls that a message carries: its own, then those of the links of its chain."""
    _, _, embedded = json.loads(base64.b64decode(message["body"]))
    return [message["headers"]["id"], *[link["options"]["task_id"] for link in reversed(embedded["chain"] or [])]]


@contextlib.contextmanager
def watched_queue(redis_url: str, node: str) -> Iterator[list[dict[str, Any]]]:
    """Collect every task message that is pushed to the node's queue while the block runs."""
    client = redis.Redis.from_url(redis_url)
    seen: list[dict[str, Any]] = []
    queue, ready = keys.queue(node), threading.Event()
    with client.monitor() as monitor:  # type: ignore[no-untyped-call]  # redis-py leaves it untyped

        def listen() -> None:
            ready.set()
            for command in monitor.listen():
                words = command["command"]
                if words.startswith(f"LPUSH {queue} "):
                    seen.append(json.loads(words.removeprefix(f"LPUSH {queue} ")))
                if words.startswith("ECHO sandhog-test-end"):
                    return

        thread = threading.Thread(target=listen)
        thread.start()
        ready.wait()
        try:
            yield seen
        finally:
            client.echo("sandhog-test-end")
            thread.join(60)
    client.close()
