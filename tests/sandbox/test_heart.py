"""Heartbeats, and boxes that may go on only when they are still their node's."""

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from sandbox.box import Box
from sandbox.engine import DockerEngine
from sandbox.errors import EngineUnavailable
from sandbox.heart import Standing
from sandbox.record import BoxRecord
from sandbox.requests import RunAnswer
from sandbox.spec import BoxSpec

pytestmark = pytest.mark.docker

MakeEngine = Callable[..., DockerEngine]
MakeSpec = Callable[..., BoxSpec]
Shell = Callable[[Box], Callable[..., RunAnswer]]
Until = Callable[..., None]


def test_a_box_that_stood_still_goes_on_in_its_nodes_next_life_once_it_is_known_to_be_its_own(
    make_engine: MakeEngine, make_spec: MakeSpec, shell: Shell, tmp_path: Path,
    until: Until,
) -> None:  # fmt: skip
    first = make_engine("still", tmp_path / "records", heartbeat_s=0.1)
    spec = make_spec(freeze_s=2)
    shell(first.start(spec, "s", 1))("(while sleep 0.02; do echo >> ticks; done) >/dev/null 2>&1 & exit 0")
    ticks = spec.workspace_dir / "ticks"
    until(ticks.exists, "it ticks")
    first.close()
    until(lambda: time.time() - ticks.stat().st_mtime > 1, "it stands still")
    size = ticks.stat().st_size
    told = [Standing.UNKNOWN]
    asked = threading.Event()

    def standing(record: BoxRecord) -> Standing:
        asked.set()
        return told[0]

    second = make_engine("still", tmp_path / "records", heartbeat_s=0.1, standing=standing)
    [(_, box)] = second.adopt()
    assert asked.wait(60)
    assert box.is_frozen
    assert ticks.stat().st_size == size

    told[0] = Standing.OURS

    until(lambda: ticks.stat().st_size > size, "it goes on")
    box.close()


def test_a_node_that_holds_all_starts_none(make_engine: MakeEngine, make_spec: MakeSpec) -> None:
    engine = make_engine("held")
    engine.freeze_all()
    with pytest.raises(EngineUnavailable, match="cut off"):
        engine.start(make_spec(), "s", 1)

    engine.release_all()

    engine.start(make_spec(), "s", 1).close()


def test_a_box_that_is_adopted_while_its_node_holds_all_stands_still(
    make_engine: MakeEngine, make_spec: MakeSpec, shell: Shell, tmp_path: Path, until: Until
) -> None:
    first = make_engine("adopts", tmp_path / "records")
    first.start(make_spec(), "s", 1)
    first.close()
    second = make_engine("adopts", tmp_path / "records", heartbeat_s=0.1)
    second.freeze_all()
    [(_, box)] = second.adopt()
    until(lambda: box.is_frozen, "it stands still")

    second.release_all()

    until(lambda: not box.is_frozen, "it goes on")
    assert shell(box)("echo on").stdout.head == b"on\n"
    box.close()


def test_a_box_that_is_another_nodes_by_now_ends(
    make_engine: MakeEngine, make_spec: MakeSpec, until: Until, containers_of: Callable[[str], int]
) -> None:
    engine = make_engine("gone", heartbeat_s=0.1, standing=lambda _: Standing.LOST)
    box = engine.start(make_spec(), "s", 1)
    engine.freeze_all()
    until(lambda: box.is_frozen, "it stands still")
    assert box.is_alive()

    engine.release_all()

    until(lambda: containers_of("gone") == 0, "it ends")
    assert not box.is_alive()
