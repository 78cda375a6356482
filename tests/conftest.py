"""Fixtures of all rooms: a real Redis, a short directory, and the Docker engine that `docker` tests need.

A server that is missing is a skip at home and a failure where `SANDHOG_REQUIRE_SERVERS=1` says that it must be there.
"""

import contextlib
import errno
import functools
import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import NoReturn, Protocol

import docker
import pytest
import redis
from docker.errors import DockerException, ImageNotFound
from hypothesis import HealthCheck, settings
from redis.backoff import NoBackoff
from redis.retry import Retry

from coordinator.embedded import SOCKET_PATH_BYTES, redis_server_binary
from coordinator.errors import ConfigError
from sandbox.guest_folder import install
from worker import loop_device

IMAGE = "sandhog-box:latest"
SCREENSHOTS = Path(__file__).parents[1] / "build" / "screenshots"
# A busy machine is no fault of what is tested.
settings.register_profile("sandhog", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)
settings.load_profile("sandhog")
START_S = 60.0
_BEGAN_S = time.time()


if signal.getsignal(signal.SIGINT) is signal.SIG_IGN and threading.current_thread() is threading.main_thread():
    # A shell starts what runs in the background so, and commands of tests would inherit it.
    signal.signal(signal.SIGINT, signal.default_int_handler)


class Until(Protocol):
    """Waits for a claim to come true; the test fails with `what` when it does not within the time."""

    def __call__(self, claim: Callable[[], bool], what: str, timeout_s: float = 60.0) -> None: ...


def without_server(reason: str) -> NoReturn:
    if os.environ.get("SANDHOG_REQUIRE_SERVERS") == "1":
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


@functools.cache
def missing_docker() -> str | None:
    """Return why `docker` tests cannot run here; None when they can."""
    try:
        client = docker.from_env(timeout=10)
    except DockerException as exc:
        return f"no Docker engine answers: {exc}"
    try:
        client.images.get(IMAGE)
    except ImageNotFound:
        return f"the image {IMAGE} is missing: deploy/setup.sh builds it"
    except DockerException as exc:
        return f"no Docker engine answers: {exc}"
    finally:
        client.close()
    return None


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("docker") is not None and (reason := missing_docker()) is not None:
        without_server(reason)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say where the page can be looked at, if this run looked."""
    pictures = [path for path in SCREENSHOTS.glob("*.png") if path.stat().st_mtime > _BEGAN_S]
    if pictures:
        terminalreporter.write_line(f"{len(pictures)} screenshots of the page are in {SCREENSHOTS}")


@pytest.fixture(scope="session")
def shared_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory of the whole test run, however many processes it has."""
    base = tmp_path_factory.getbasetemp()
    return base.parent if "PYTEST_XDIST_WORKER" in os.environ else base


@pytest.fixture(scope="session", autouse=True)
def proofs_dir(shared_dir: Path) -> Iterator[Path]:
    """What one test proved of an image on the engine, the next need not prove again."""
    path = shared_dir / "proofs"
    path.mkdir(exist_ok=True)
    os.environ["SANDHOG_PROOFS_DIR"] = str(path)
    yield path
    del os.environ["SANDHOG_PROOFS_DIR"]


@pytest.fixture(scope="session")
def guest_folder(shared_dir: Path) -> Path:
    """The guest folder, which is built once."""
    return install(shared_dir / "guest")


@pytest.fixture(scope="session")
def furnished_dir(guest_folder: Path, proofs_dir: Path) -> Callable[[], AbstractContextManager[Path]]:
    """Makes state directories that have what a node of some age has: the guest folder, and what it proved of images."""

    @contextlib.contextmanager
    def make() -> Iterator[Path]:
        path = short_directory()
        # The same files: whoever would write to them would write to those of all.
        shutil.copytree(guest_folder, path / "guest" / guest_folder.name, copy_function=link)
        link_proofs(proofs_dir, path / "proofs")
        try:
            yield path
            link_proofs(path / "proofs", proofs_dir)
        finally:
            unmount_below(path)
            shutil.rmtree(path)

    return make


def link_proofs(source: Path, target: Path) -> None:
    target.mkdir(exist_ok=True)
    for proof in source.glob("*.json"):
        with contextlib.suppress(FileExistsError):
            link(str(proof), str(target / proof.name))


def link(source: str, target: str) -> None:
    """Make the same file stand there too; a copy of it where that is another file system."""
    try:
        os.link(source, target)
    except OSError as exc:
        if exc.errno != errno.EXDEV:
            raise
        shutil.copy2(source, target)


@pytest.fixture(scope="session")
def docker_engine_or_skip() -> None:
    """For fixtures that need the engine without their test saying so."""
    if (reason := missing_docker()) is not None:
        without_server(reason)


@pytest.fixture(scope="session")
def until() -> Until:
    def wait(claim: Callable[[], bool], what: str, timeout_s: float = 60.0) -> None:
        deadline = time.monotonic() + timeout_s
        while not claim():
            if time.monotonic() > deadline:
                pytest.fail(f"not within {timeout_s} s: {what}")
            time.sleep(0.005)

    return wait


@pytest.fixture
def state_dir() -> Iterator[Path]:
    """A directory whose path is short enough for sockets."""
    path = short_directory()
    yield path
    unmount_below(path)
    shutil.rmtree(path)


@pytest.fixture(scope="session")
def redis_server(until: Until) -> Iterator[Path]:
    """The socket of a Redis of this test run."""
    with private_redis(until) as socket:
        yield socket


@pytest.fixture
def second_redis(until: Until) -> Iterator[str]:
    """The socket of another Redis, for one test."""
    with private_redis(until) as socket:
        yield str(socket)


@pytest.fixture
def redis_url(redis_server: Path) -> Iterator[str]:
    """The address of a Redis that is empty."""
    url = f"unix://{redis_server}"
    with sync_client(url) as client:
        client.flushall()
        yield url
        client.flushall()


@pytest.fixture
def redis_client(redis_url: str) -> Iterator[redis.Redis]:
    """A client of the empty Redis that repeats nothing by itself."""
    with sync_client(redis_url) as client:
        yield client


@contextlib.contextmanager
def private_redis(until: Until) -> Iterator[Path]:
    directory = short_directory()
    socket = directory / "s"
    log = directory / "log"
    try:
        with redis_server_binary() as binary, log.open("wb") as output:
            settings = ["--port", "0", "--unixsocket", str(socket), "--dir", str(directory), "--save", ""]
            process = subprocess.Popen([binary, *settings], stdout=output, stderr=output, start_new_session=True)
    except ConfigError as exc:
        shutil.rmtree(directory)
        without_server(str(exc))
    client = sync_client(f"unix://{socket}")
    try:
        until(lambda: process.poll() is not None or answers(client), "Redis answers", START_S)
        assert process.poll() is None, log.read_text()
        yield socket
    finally:
        client.close()
        if process.poll() is None:
            os.kill(process.pid, signal.SIGTERM)
        process.wait(START_S)
        shutil.rmtree(directory)


def sync_client(url: str) -> redis.Redis:
    return redis.Redis.from_url(url, retry=Retry(NoBackoff(), 0), socket_timeout=10)


def answers(client: redis.Redis) -> bool:
    try:
        return bool(client.ping())
    except redis.RedisError:
        return False


def unmount_below(place: Path) -> None:
    """Take away what nodes that a test killed left mounted: the next node would, and here comes none."""
    mounts = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    for mount in mounts:
        if mount.startswith(f"{place}/"):
            loop_device.unmount(Path(mount))


def short_directory() -> Path:
    base = tempfile.gettempdir()
    if len(os.fsencode(base)) > SOCKET_PATH_BYTES - 60:
        base = "/tmp"
    return Path(tempfile.mkdtemp(prefix="hog-", dir=base))
