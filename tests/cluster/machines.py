"""A Redis and worker processes that no command owns: they are started, hurt and ended by a test."""

import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

from coordinator.embedded import redis_server_binary

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
