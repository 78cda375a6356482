"""Limits as commands meet them: they fail, the guest lives, and the answer says what was met."""

from collections.abc import Callable

import pytest

from sandbox.box import Box
from sandbox.errors import BoxLost, GuestRefused, LossReason, RefusalCode
from sandbox.requests import CallMark, RunAnswer, WriteRequest
from sandbox.spec import MIB, Limits

pytestmark = pytest.mark.docker

FreshBox = Callable[..., Box]
Shell = Callable[[Box], Callable[..., RunAnswer]]


def test_a_hog_is_killed_and_counted(fresh_box: FreshBox, shell: Shell) -> None:
    run = shell(fresh_box(limits=Limits(memory_bytes=128 * MIB)))
    answer = run("python3 -c 'x = bytearray(10**9)'; echo after")
    assert answer.oom_kills >= 1
    assert answer.stdout.head == b"after\n"
    assert run("true").oom_kills == 0


def test_a_tmpfs_filled_beyond_the_memory_takes_a_command_or_at_worst_the_box_by_name(
    fresh_box: FreshBox, shell: Shell
) -> None:
    """No profile may promise so much (see `profiles`): no kill frees what lies in a tmpfs.

    The kernel takes commands first. Only when the guest itself needs a page while everything is full, nobody else is
    left to take; then the loss must carry its reason.
    """
    box = fresh_box(limits=Limits(memory_bytes=128 * MIB, shm_bytes=512 * MIB))
    try:
        assert shell(box)("head -c 300M /dev/zero > /dev/shm/x").oom_kills >= 1
        box.ping()
        write = WriteRequest(CallMark("after", "d", "s", 1, 0), "/workspace/after", b"the guest lives", None)
        assert box.write(write).created
    except BoxLost as lost:
        if lost.reason is not LossReason.OOM:
            raise


def test_a_tmpfs_filled_to_its_own_bound_harms_nobody(fresh_box: FreshBox, shell: Shell) -> None:
    box = fresh_box(limits=Limits(memory_bytes=256 * MIB, shm_bytes=64 * MIB))
    answer = shell(box)("head -c 300M /dev/zero > /dev/shm/x")
    assert answer.exit_code == 1
    assert answer.oom_kills == 0
    assert b"No space left" in answer.stderr.head
    assert shell(box)("echo next").stdout.head == b"next\n"


def test_many_small_shells_do_not_take_the_guest(fresh_box: FreshBox, shell: Shell) -> None:
    run = shell(fresh_box(limits=Limits(memory_bytes=64 * MIB, pids=1000)))
    answer = run("for i in $(seq 80); do bash -c 'x=$(head -c 300000 /dev/urandom | base64); sleep 3' & done; wait")
    assert answer.exit_code is not None or answer.signal is not None
    assert run("echo next").stdout.head == b"next\n"


def test_too_many_processes_fail_and_are_counted(fresh_box: FreshBox, shell: Shell) -> None:
    run = shell(fresh_box(limits=Limits(pids=40)))
    program = (
        "import subprocess\nchildren = []\n"
        "try:\n    while True: children.append(subprocess.Popen(['sleep', '60']))\n"
        "except OSError as error:\n    print(error.errno)\n"
        "for child in children: child.kill()"
    )
    answer = run(f'python3 -c "{program}"')
    assert answer.stdout.head == b"11\n"
    assert answer.refused_tasks >= 1
    assert run("true").refused_tasks == 0


@pytest.mark.parametrize("place", ["/tmp", "/home/agent", "/dev/shm"])
def test_a_full_place_is_an_error_of_the_command_and_named(fresh_box: FreshBox, shell: Shell, place: str) -> None:
    limits = Limits(memory_bytes=256 * MIB, tmp_bytes=8 * MIB, home_bytes=8 * MIB, shm_bytes=8 * MIB)
    box = fresh_box(limits=limits)
    run = shell(box)
    answer = run(f"head -c 9M /dev/zero > {place}/x")
    assert answer.exit_code == 1
    assert b"No space left" in answer.stderr.head
    assert answer.full == (place,)
    with pytest.raises(GuestRefused) as refused:
        box.write(WriteRequest(CallMark("full", "d", "s", 1, 0), f"{place}/y", b"y" * 100_000, None))
    assert refused.value.code is RefusalCode.NO_SPACE
    assert run(f"rm {place}/x; false").full == ()


def test_what_may_be_weak_is_bounded_for_each_process_at_least(fresh_box: FreshBox, shell: Shell) -> None:
    run = shell(fresh_box(623_456, limits=Limits(pids=321), allow_weak=frozenset({"pids"})))
    assert run("ulimit -u").stdout.head == b"321\n"


def test_programs_run_from_tmp_and_home_and_belong_to_the_agent(fresh_box: FreshBox, shell: Shell) -> None:
    run = shell(fresh_box())
    for place in ("/tmp", "$HOME"):
        answer = run(f"printf '#!/bin/sh\\necho ran' > {place}/p; chmod +x {place}/p; {place}/p")
        assert answer.stdout.head == b"ran\n"
    assert run("stat -c %u:%a $HOME /tmp").stdout.text().split() == ["10001:755", "0:1777"]


def test_a_box_as_root_has_a_home_and_no_rights_beyond(fresh_box: FreshBox, shell: Shell) -> None:
    run = shell(fresh_box(0))
    assert run("id -u; touch $HOME/x && echo mine").stdout.text().split() == ["0", "mine"]
    assert run("cat /etc/shadow; chown 1 /workspace && mount -t tmpfs none /mnt").exit_code != 0
