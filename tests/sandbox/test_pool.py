"""Boxes that stand ready: given out once, kept in bounds, replaced when dead."""

import shutil
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import docker
import pytest

from sandbox.box import Box
from sandbox.creation import NAME_PREFIX
from sandbox.engine import DockerEngine
from sandbox.errors import EngineUnavailable
from sandbox.pool import Newborn, PoolSettings, WarmPool, fingerprint
from sandbox.requests import RunAnswer
from sandbox.spec import BoxSpec, Limits

AGENT = 10_077
KIND = "kind"
MakePool = Callable[..., WarmPool]
MakeSpec = Callable[..., BoxSpec]
Until = Callable[..., None]
Shell = Callable[[Box], Callable[..., RunAnswer]]
Count = Callable[[str], int]


@pytest.fixture
def nursery(tmp_path: Path) -> Path:
    path = tmp_path / "nursery"
    path.mkdir(mode=0o755)
    return path


@pytest.fixture
def make_pool(
    make_engine: Callable[..., DockerEngine], nursery: Path, containers_of: Count, request: pytest.FixtureRequest
) -> Iterator[MakePool]:
    """Pools of real boxes; nothing of them may be left."""
    node = f"pool-{request.node.name[5:40]}"
    engine = make_engine(node)
    pools = []
    numbers = iter(range(1000))

    def bear(_: BoxSpec) -> Newborn:
        folder = nursery / str(next(numbers))
        for name in ("work", "spill"):
            (folder / name).mkdir(parents=True)
        shutil.chown(folder / "work", AGENT, AGENT)
        return Newborn(folder, folder / "work", folder / "spill", AGENT, AGENT)

    def make(
        used: Callable[[], int] = lambda: 0,
        start: Any = None,
        clock: Callable[[], float] = time.monotonic,
        **settings: Any,
    ) -> WarmPool:
        start = start or (lambda spec, key: engine.start(spec, "", 0, pool_key=key))
        pool_settings = PoolSettings(**{"tend_s": 0.1, "least_wants": 1, **settings})
        pool = WarmPool(pool_settings, start, bear, lambda born: shutil.rmtree(born.folder), used, clock)
        pools.append(pool)
        return pool

    yield make
    for pool in pools:
        pool.close()
    engine.sweep()
    assert containers_of(node) == 0
    assert list(nursery.iterdir()) == []


@pytest.mark.docker
def test_a_box_is_ready_before_it_is_wanted_and_works_in_its_own_directory(
    make_pool: MakePool, make_spec: MakeSpec, until: Until, shell: Shell
) -> None:
    pool = make_pool(min_idle=1)
    template = make_spec()
    assert pool.claim(template, KIND) is None
    until(lambda: pool.idle(KIND) == 1, "a box stands ready")

    warm = pool.claim(template, KIND)

    assert warm is not None
    assert shell(warm.box)("id -u; echo mine > mine; touch /spill/x 2>/dev/null").stdout.head == b"%d\n" % AGENT
    assert (warm.newborn.workspace_dir / "mine").stat().st_uid == AGENT
    assert list(template.workspace_dir.iterdir()) == []
    # A bind mount stays what it is wherever its directory goes.
    moved = warm.newborn.workspace_dir.rename(warm.newborn.folder / "moved")
    assert shell(warm.box)("cat mine; echo more >> mine").stdout.head == b"mine\n"
    assert (moved / "mine").read_text() == "mine\nmore\n"
    pool.discard(warm)


@pytest.mark.docker
def test_no_box_is_given_out_twice(make_pool: MakePool, make_spec: MakeSpec, until: Until) -> None:
    pool = make_pool(min_idle=2)
    template = make_spec()
    pool.want(template, KIND)
    until(lambda: pool.idle() == 2, "two boxes stand ready")
    claimed: list[Any] = []
    threads = [threading.Thread(target=lambda: claimed.append(pool.claim(template, KIND))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)

    given = [warm for warm in claimed if warm is not None]

    assert len(given) >= 2
    assert len({warm.box.box_id for warm in given}) == len(given)
    assert pool.claim(template, "another kind") is None
    for warm in given:
        pool.discard(warm)


@pytest.mark.docker
def test_a_box_that_died_or_hangs_is_replaced_and_never_given_out(
    make_pool: MakePool, make_spec: MakeSpec, until: Until, docker_client: docker.APIClient
) -> None:
    pool = make_pool(min_idle=2, tend_s=3600)
    template = make_spec()
    pool.want(template, KIND)
    until(lambda: pool.idle() == 2, "two boxes stand ready")
    with pool._lock:
        first, second = (NAME_PREFIX + warm.box.box_id for warm in pool._kinds[KIND].idle)
    docker_client.kill(first)
    docker_client.pause(second)

    warm = pool.claim(template, KIND)

    assert warm is None or NAME_PREFIX + warm.box.box_id not in (first, second)
    until(lambda: pool.idle() == 2, "both were replaced")
    if warm is not None:
        pool.discard(warm)


@pytest.mark.docker
def test_a_box_that_dies_while_it_waits_is_replaced(
    make_pool: MakePool, make_spec: MakeSpec, until: Until, docker_client: docker.APIClient
) -> None:
    pool = make_pool(min_idle=1)
    pool.want(make_spec(), KIND)
    until(lambda: pool.idle() == 1, "a box stands ready")
    with pool._lock:
        dead = pool._kinds[KIND].idle[0].box
    docker_client.kill(NAME_PREFIX + dead.box_id)

    def is_replaced() -> bool:
        with pool._lock:
            return [warm.box.box_id != dead.box_id for warm in pool._kinds[KIND].idle] == [True]

    until(is_replaced, "another box stands ready", 90)


@pytest.mark.docker
def test_sessions_go_before_boxes_that_wait_and_the_total_is_kept(
    make_pool: MakePool, make_spec: MakeSpec, until: Until, containers_of: Count
) -> None:
    used = [2]
    pool = make_pool(lambda: used[0], min_idle=5, total=4)
    pool.want(make_spec(), KIND)
    until(lambda: pool.idle() == 2, "the node is full")
    pool.make_room()
    used[0] = 3
    assert pool.idle() == 1
    used[0] = 2
    pool.want(make_spec(), KIND)
    until(lambda: pool.idle() == 2, "the node is full again")


def fails(spec: BoxSpec, key: str) -> Box:
    raise EngineUnavailable("no")


def test_a_kind_that_cannot_be_started_leaves_nothing_and_is_tried_again(
    make_pool: MakePool, make_spec: MakeSpec, until: Until, nursery: Path
) -> None:
    tries = []

    def start(spec: BoxSpec, key: str) -> Box:
        tries.append(list(nursery.iterdir()))
        return fails(spec, key)

    pool = make_pool(start=start, min_idle=1)
    pool.want(make_spec(), KIND)

    until(lambda: len(tries) == 2, "it was tried twice")

    assert [len(folders) for folders in tries] == [1, 1]


@pytest.mark.docker
def test_as_many_stand_ready_as_were_wanted_lately(make_pool: MakePool, make_spec: MakeSpec, until: Until) -> None:
    now = [1000.0]
    pool = make_pool(max_idle=2, clock=lambda: now[0])
    template = make_spec()
    assert pool.claim(template, KIND) is None
    until(lambda: pool.idle() == 1, "one was wanted, one stands ready")
    warm = pool.claim(template, KIND)
    assert warm is not None
    pool.discard(warm)
    until(lambda: pool.idle() == 2, "two were wanted, two stand ready")
    now[0] += 61
    until(lambda: pool.idle() == 0, "nobody wanted one for a while")
    now[0] += 1800
    until(lambda: not pool._kinds, "the kind is forgotten")


@pytest.mark.docker
def test_a_kind_that_was_wanted_once_is_not_kept_ready(
    make_pool: MakePool, make_spec: MakeSpec, until: Until, containers_of: Count
) -> None:
    pool = make_pool(min_idle=1, least_wants=2)
    template = make_spec()
    assert pool.claim(template, "wanted once") is None
    assert pool.claim(template, KIND) is None
    assert pool.claim(template, KIND) is None

    until(lambda: pool.idle(KIND) == 1, "the other kind stands ready")

    assert pool.idle() == 1
    with pool._lock:
        assert pool._kinds["wanted once"].starting == 0


def test_without_a_pool_nothing_is_kept(make_pool: MakePool, make_spec: MakeSpec) -> None:
    pool = make_pool(start=fails)
    assert not pool.is_on
    assert pool.claim(make_spec(), KIND) is None
    assert "pool-keeper" not in {thread.name for thread in threading.enumerate()}


def test_boxes_stand_for_each_other_only_when_all_that_is_fixed_is_alike(make_spec: MakeSpec) -> None:
    spec = make_spec(env={"A": "1"}, limits=Limits(pids=100))
    same = fingerprint(spec, "sha256:1", "/guest")
    assert fingerprint(make_spec(AGENT, env={"A": "1"}, limits=Limits(pids=100)), "sha256:1", "/guest") == same
    others = [
        fingerprint(spec, "sha256:2", "/guest"),
        fingerprint(spec, "sha256:1", "/newer"),
        *(
            fingerprint(replace(spec, **change), "sha256:1", "/guest")
            for change in (
                {"runtime": "runsc"},
                {"env": {"A": "2"}},
                {"limits": Limits(pids=101)},
                {"profile": "large"},
                {"allow_weak": frozenset({"pids"})},
            )
        ),
    ]
    assert len({same, *others}) == len(others) + 1
