"""The processes of the chaos suite's cluster: a Redis, workers and coordinators, to be killed and started again."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from coordinator.embedded import redis_server_binary
from tests.chaos.harms import BOX_MEMORY, PROFILE

ROOT = Path(__file__).parents[2]
START_S = 120.0
END_S = 120.0
BREAKER = '{"default": {"faults": 1000000}}'
"""The suite hurts boxes far more often than a breaker stands for."""


def until(claim: Callable[[], bool], what: str, timeout_s: float = START_S) -> None:
    """Wait for a claim to come true.

    Raises:
        TimeoutError: It did not.
    """
    deadline = time.monotonic() + timeout_s
    while not claim():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {timeout_s} s: {what}")
        time.sleep(0.02)


class Part:
    """A process that is started again and again."""

    def __init__(self, name: str, log: Path) -> None:
        self.name = name
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None
        self.may_run = True
        """Whether it is started again when it ends."""
        self._guard = threading.RLock()
        self._draining: subprocess.Popen[bytes] | None = None

    @property
    def process(self) -> "subprocess.Popen[bytes]":
        """The present process."""
        assert self._process is not None
        return self._process

    @property
    def is_alive(self) -> bool:
        """Whether its process runs."""
        return self._process is not None and self._process.poll() is None

    def serves(self) -> bool:
        """Whether it runs and can be ended in order."""
        return self.is_alive and self._draining is not self._process

    def start(self) -> None:
        """Start a new process."""
        with self._guard, self._log.open("ab") as log:
            self._process = self._spawn(log)

    def signal(self, number: int) -> None:
        """Send a signal if it runs."""
        if self.is_alive:
            self.process.send_signal(number)

    def drain(self) -> None:
        """Let its present process end in order."""
        with self._guard:
            self._draining = self._process
            self.signal(signal.SIGTERM)

    def kill(self) -> None:
        """Kill it and wait for its end."""
        self.signal(signal.SIGKILL)
        self.process.wait()

    def look_after(self) -> None:
        """Start it again if it has ended and may run."""
        with self._guard:
            if self.may_run and not self.is_alive:
                self.start()

    def end(self) -> int:
        """End it in order; its exit code."""
        self.may_run = False
        with self._guard:
            self.signal(signal.SIGCONT)
            self._ask_to_end()
            try:
                return self.process.wait(END_S)
            except subprocess.TimeoutExpired:
                self.kill()
                return -signal.SIGKILL

    def _ask_to_end(self) -> None:
        self.signal(signal.SIGTERM)

    def _spawn(self, log: Any) -> "subprocess.Popen[bytes]":
        raise NotImplementedError


class RedisServer(Part):
    """A Redis with an append-only file."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory / "redis"
        self.directory.mkdir()
        super().__init__("redis", directory / "redis.log")
        # Who starts it anew decides when.
        self.may_run = False

    @property
    def socket(self) -> Path:
        """Where it listens."""
        return self.directory / "s"

    @property
    def url(self) -> str:
        """Its address."""
        return f"unix://{self.socket}"

    def client(self) -> redis.Redis:
        """A client that repeats nothing."""
        return redis.Redis.from_url(self.url, retry=Retry(NoBackoff(), 0), socket_timeout=10)

    def start(self) -> None:
        """Start it and wait until it answers."""
        super().start()
        until(self.answers, "Redis answers")

    def answers(self) -> bool:
        """Whether it answers."""
        with self.client() as client:
            try:
                return bool(client.ping())
            except redis.RedisError:
                return False

    def lose_tail(self, size: int) -> None:
        """Take the last bytes of its append-only file while it does not run, as a machine that lost power does."""
        files = sorted(self.directory.glob("appendonlydir/*.incr.aof"))
        if files and files[-1].stat().st_size > size:
            os.truncate(files[-1], files[-1].stat().st_size - size)

    def _spawn(self, log: Any) -> "subprocess.Popen[bytes]":
        settings = ["--port", "0", "--unixsocket", "s", "--appendonly", "yes", "--save", ""]
        with redis_server_binary() as binary:
            argv = [str(binary), *settings, "--dir", str(self.directory)]
            return subprocess.Popen(argv, stdout=log, stderr=log, cwd=self.directory, start_new_session=True)


class Worker(Part):
    """A node."""

    def __init__(self, name: str, directory: Path, redis_url: str, places: int, lanes: int | None = None) -> None:
        super().__init__(name, directory / f"{name}.log")
        self._environment = {
            "PATH": os.environ["PATH"],
            "HOME": "/nonexistent",
            "PYTHONPATH": str(ROOT),
            "SANDHOG_REDIS_URL": redis_url,
            "SANDHOG_STATE_DIR": str(directory),
            "SANDHOG_NODE": name,
            "SANDHOG_PLACES": str(places),
            "SANDHOG_DEAD_MAN_S": "120",
            # So that the checker reads copies without mounting them.
            "SANDHOG_WORKSPACE_DISKS": "false",
            "SANDHOG_BREAKER": BREAKER,
            "SANDHOG_PROFILES": json.dumps({PROFILE: {"memory": BOX_MEMORY}}),
        }
        if lanes is not None:
            self._environment["SANDHOG_LANES"] = str(lanes)
        if proofs := os.environ.get("SANDHOG_PROOFS_DIR"):
            self._environment["SANDHOG_PROOFS_DIR"] = proofs

    def serves(self) -> bool:
        """Whether it runs and has begun to listen to the signal that ends it in order."""
        try:
            status = Path(f"/proc/{self.process.pid}/status").read_text()
        except FileNotFoundError:
            return False
        (caught,) = [line.split()[1] for line in status.splitlines() if line.startswith("SigCgt:")] or ["0"]
        return super().serves() and bool(int(caught, 16) >> (signal.SIGTERM - 1) & 1)

    def _spawn(self, log: Any) -> "subprocess.Popen[bytes]":
        argv = [sys.executable, "-m", "worker", "run"]
        return subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self._environment, start_new_session=True
        )


class CoordinatorPart(Part):
    """A coordinator, whose lines are handed on as they come."""

    def __init__(
        self, name: str, directory: Path, redis_url: str, base_url: str, on_line: Callable[[str, dict[str, Any]], None]
    ) -> None:
        super().__init__(name, directory / f"{name}.log")
        self._arguments = [redis_url, str(directory), base_url]
        self._on_line = on_line
        self._readers: list[threading.Thread] = []
        self.on_start: Callable[[CoordinatorPart], None] = lambda part: None
        """Called before each new process begins."""
        self.projects: set[str] = set()
        """Whose sessions its present process has."""
        self._ready: subprocess.Popen[bytes] | None = None

    def serves(self) -> bool:
        """Whether its present process goes on with what others leave."""
        return super().serves() and self._ready is self._process

    def tell(self, *words: str) -> bool:
        """Write one line to it; whether that was possible."""
        with self._guard:
            try:
                assert self.process.stdin is not None
                self.process.stdin.write(" ".join(words).encode() + b"\n")
                self.process.stdin.flush()
                return True
            except (OSError, ValueError):
                return False

    def end(self) -> int:
        """End it in order, once its sessions are over; its exit code."""
        code = super().end()
        for reader in self._readers:
            reader.join()
        return code

    def _ask_to_end(self) -> None:
        assert self.process.stdin is not None
        try:
            self.process.stdin.close()
        except OSError:
            self.signal(signal.SIGTERM)

    def _spawn(self, log: Any) -> "subprocess.Popen[bytes]":
        if self._process is not None and self._process.stdin is not None and not self._process.stdin.closed:
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.close()
        self.on_start(self)
        self.projects = set()
        environment = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "PYTHONPATH": str(ROOT)}
        argv = [sys.executable, "-m", "tests.chaos.coordinator", *self._arguments]
        process = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            env=environment,
            cwd=ROOT,
            start_new_session=True,
        )
        reader = threading.Thread(target=self._read, args=(process, self.projects), daemon=True)
        reader.start()
        self._readers = [one for one in self._readers if one.is_alive()] + [reader]
        return process

    def _read(self, process: "subprocess.Popen[bytes]", projects: set[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            try:
                told = json.loads(line)
            except ValueError:
                # Killed in the middle of a line.
                continue
            if told["what"] == "ready":
                self._ready = process
            elif told["what"] == "began":
                projects.add(told["project"])
            elif told["what"] == "ended":
                projects.discard(told["project"])
            self._on_line(self.name, told)
        process.stdout.close()
