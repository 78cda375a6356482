"""Boxes with a kernel of their own: that it is one, and that their limits hold although it shows them otherwise."""

from collections.abc import Callable

import pytest

from sandbox.box import Box
from sandbox.errors import BoxLost, LossReason
from sandbox.requests import RunAnswer
from sandbox.spec import MIB, Limits
from tests.sandbox.gvisor import RUNTIME, missing_gvisor

pytestmark = pytest.mark.docker

FreshBox = Callable[..., Box]
Shell = Callable[[Box], Callable[..., RunAnswer]]

FORK_BOMB = "b() { b | b & }; b; sleep 1"


@pytest.fixture(autouse=True)
def _needs_gvisor() -> None:
    if (reason := missing_gvisor()) is not None:
        pytest.skip(reason)


def test_its_kernel_and_memory_are_the_boxs_own(fresh_box: FreshBox, shell: Shell) -> None:
    box = fresh_box(runtime=RUNTIME, limits=Limits(memory_bytes=512 * MIB))
    run = shell(box)
    assert run("uname -r; grep MemTotal /proc/meminfo").stdout.text().split() == [
        "4.4.0", "MemTotal:", str(512 * 1024), "kB",
    ]  # fmt: skip
    assert box.info.facts["interfaces"] == "lo"


def test_what_grows_without_end_fills_the_box_only_and_is_ended(fresh_box: FreshBox, shell: Shell) -> None:
    run = shell(fresh_box(runtime=RUNTIME, limits=Limits(pids=60, memory_bytes=512 * MIB)))
    answer = run(FORK_BOMB, timeout_ms=3_000)
    assert b"fork" in answer.stderr.head
    assert run("echo fine").stdout.head == b"fine\n"


def test_where_memory_may_be_weak_each_process_is_bounded(fresh_box: FreshBox, shell: Shell) -> None:
    limits = Limits(memory_bytes=512 * MIB)
    run = shell(fresh_box(runtime=RUNTIME, limits=limits, allow_weak=frozenset({"memory", "cpus"})))
    assert b"MemoryError" in run("python3 -c 'bytearray(600 << 20)'").stderr.head


def test_too_much_memory_loses_the_box_and_says_why(fresh_box: FreshBox, shell: Shell) -> None:
    """Takes half a minute when the engine does not tell of it, so that only the link's silence does."""
    box = fresh_box(runtime=RUNTIME, limits=Limits(memory_bytes=256 * MIB))
    with pytest.raises(BoxLost) as lost:
        shell(box)("""python3 -c 'x = [bytearray(b"x") * (1 << 20) for _ in range(600)]'""")
    assert lost.value.reason is LossReason.OOM
    assert not box.is_alive()
