"""Boxes come, suffer and go: what holds, what is told, and that nothing is left."""

import gc
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import docker
import pytest

from sandbox.box import Box
from sandbox.creation import NAME_PREFIX
from sandbox.deaths import OOM_WINDOW_S
from sandbox.engine import DockerEngine
from sandbox.errors import (
    BoxLost,
    ControlNotEnforced,
    EngineUnavailable,
    GuestRefused,
    ImageMissing,
    LossReason,
    RefusalCode,
)
from sandbox.record import BoxRecord, RecordStore
from sandbox.requests import CallMark, RunAnswer, RunRequest
from sandbox.spec import MIB, BoxSpec, Limits

pytestmark = pytest.mark.docker

FILL_PROCESS_TABLE = """python3 -c '
import subprocess, time
while True:
    try:
        subprocess.Popen(["sleep", "1000"])
    except OSError:
        time.sleep(0.01)
' & exit 0"""

FreshBox = Callable[..., Box]
Shell = Callable[[Box], Callable[..., RunAnswer]]
MakeMark = Callable[..., CallMark]
Until = Callable[..., None]


def exists(client: docker.APIClient, box_id: str) -> bool:
    return bool(client.containers(all=True, filters={"name": NAME_PREFIX + box_id}))


def left_in(records_dir: Path) -> list[Path]:
    """What is there of any box."""
    return [path for path in records_dir.rglob("*") if path != records_dir / "doors"]


def test_an_image_with_one_static_program_works(fresh_box: FreshBox, shell: Shell, busybox_image: str) -> None:
    box = fresh_box(image=busybox_image)
    run = shell(box)
    assert run("echo $((6*7)); cd /tmp 2>/dev/null; cd /").stdout.head == b"42\n"
    assert run("pwd; exit 3").exit_code == 3
    assert run("pwd").stdout.head == b"/\n"
    assert run("cd /workspace; cat <<E\nhi\nE").stdout.head == b"hi\n"
    assert run("sleep 100 & sleep 100", timeout_ms=300).left_running == ()
    assert box.run(RunRequest(CallMark("rg", "d", "s", 1, 0), argv=("/opt/sandhog/bin/rg", "--version"))).exit_code == 0


def test_controls_hold_inside(fresh_box: FreshBox, shell: Shell) -> None:
    limits = Limits(memory_bytes=256 * MIB, cpus=0.5, pids=200, open_files=1000, shm_bytes=8 * MIB)
    box = fresh_box(limits=limits)
    run = shell(box)
    assert run("ulimit -n").stdout.head == b"1000\n"
    assert run("grep -E '^(CapEff|NoNewPrivs|Seccomp):' /proc/self/status").stdout.text().split() == [
        "CapEff:", "0000000000000000", "NoNewPrivs:", "1", "Seccomp:", "2",
    ]  # fmt: skip
    assert run("touch /spill/x /opt/sandhog/x 2>/dev/null").exit_code == 1
    assert box.info.facts["pids_max"] == "200"
    assert box.info.facts["memory_max"] == str(256 * MIB)


def test_the_guest_stays_small_over_many_calls(fresh_box: FreshBox, shell: Shell) -> None:
    run = shell(fresh_box())
    for _ in range(100):
        run("true")
    look = "for p in /proc/[0-9]*; do grep -q 'guest[.]pyc' $p/cmdline && ! grep -q 'spawner[.]pyc' $p/cmdline"
    lines = run(f"{look} && grep VmRSS $p/status; done").stdout.text().splitlines()
    assert len(lines) == 1
    assert int(lines[0].split()[1]) <= 12 * 1024


def test_commands_cannot_look_into_the_guest(fresh_box: FreshBox, shell: Shell) -> None:
    run = shell(fresh_box())
    answer = run(
        "for p in /proc/[0-9]*; do grep -qs '[s]pawner.pyc\\|[g]uest.pyc\\|[r]elay.pyc' $p/cmdline || continue; "
        "echo found; cat $p/environ $p/mem; ls $p/fd; kill -0 ${p#/proc/} && echo signalled; done 2>/dev/null | sort -u"
    )
    assert answer.stdout.head == b"found\n"


def test_a_control_that_does_not_hold_is_named_and_nothing_is_left(
    make_engine: Callable[..., DockerEngine], make_spec: Callable[..., BoxSpec], containers_of: Callable[[str], int],
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(
        "sandbox.creation.CAPABILITIES", ["SETUID", "SETGID", "KILL", "CHOWN", "NET_RAW", "DAC_OVERRIDE"]
    )
    engine = make_engine("weak", tmp_path / "records")
    with pytest.raises(ControlNotEnforced) as weak:
        engine.start(make_spec(0), "s", 1)
    assert weak.value.control == "capabilities"
    assert containers_of("weak") == 0
    assert left_in(tmp_path / "records") == []
    engine.start(make_spec(0, allow_weak=frozenset({"capabilities"})), "s", 1).close()


def test_a_start_that_fails_leaves_nothing(
    make_engine: Callable[..., DockerEngine], make_spec: Callable[..., BoxSpec], containers_of: Callable[[str], int],
    tmp_path: Path,
) -> None:  # fmt: skip
    engine = make_engine("failing-starts", tmp_path / "records")
    with pytest.raises(ImageMissing):
        engine.start(make_spec(image="sandhog-no-such-image:latest"), "s", 1)
    spec = make_spec()
    shutil.rmtree(spec.workspace_dir)
    with pytest.raises(EngineUnavailable, match="workspace"):
        engine.start(spec, "s", 1)
    assert not spec.workspace_dir.exists()
    with pytest.raises(EngineUnavailable):
        engine.start(make_spec(runtime="no-such-runtime"), "s", 1)
    assert left_in(tmp_path / "records") == []
    assert containers_of("failing-starts") == 0
    assert not engine.image_exists("sandhog-no-such-image:latest")


def test_a_killed_box_is_lost_with_the_reason(
    fresh_box: FreshBox, shell: Shell, docker_client: docker.APIClient
) -> None:
    box = fresh_box()
    began = threading.Event()
    errors: list[BoxLost] = []

    def sleep() -> None:
        try:
            shell(box)("head -c 40000 /dev/zero; sleep 100", lambda _: began.set())
        except BoxLost as error:
            errors.append(error)

    thread = threading.Thread(target=sleep)
    thread.start()
    assert began.wait(60)
    docker_client.kill(NAME_PREFIX + box.box_id)
    thread.join(60)
    assert [error.reason for error in errors] == [LossReason.KILLED]
    assert not box.is_alive()
    with pytest.raises(BoxLost):
        box.ping()


def test_a_box_in_which_a_command_ran_out_of_memory_before_is_not_lost_for_that(
    fresh_box: FreshBox, shell: Shell, docker_client: docker.APIClient
) -> None:
    box = fresh_box(limits=Limits(memory_bytes=128 * MIB))
    assert shell(box)("python3 -c 'x = bytearray(10**9)'").oom_kills >= 1
    time.sleep(1.5 * OOM_WINDOW_S)
    os.kill(docker_client.inspect_container(NAME_PREFIX + box.box_id)["State"]["Pid"], signal.SIGKILL)
    with pytest.raises(BoxLost) as lost:
        shell(box)("true")
    assert lost.value.reason is LossReason.KILLED


def test_root_that_ends_its_own_box_gets_a_typed_outcome(fresh_box: FreshBox, shell: Shell) -> None:
    box = fresh_box(0)
    with pytest.raises(BoxLost) as lost:
        shell(box)("kill -9 -1; sleep 100")
    assert lost.value.reason in (LossReason.KILLED, LossReason.ENDED)


def test_a_memory_hog_dies_and_the_guest_lives(fresh_box: FreshBox, shell: Shell) -> None:
    run = shell(fresh_box(limits=Limits(memory_bytes=128 * MIB)))
    answer = run("python3 -c 'x = bytearray(10**9)'; echo after")
    assert answer.oom_kills >= 1
    assert answer.stdout.head == b"after\n"
    assert run("head -c 1G /dev/zero > /dev/shm/x; rm -f /dev/shm/x; echo next").stdout.head.endswith(b"next\n")


def test_many_small_hogs_do_not_take_the_guest(fresh_box: FreshBox, shell: Shell) -> None:
    run = shell(fresh_box(limits=Limits(memory_bytes=128 * MIB)))
    run("for i in $(seq 8); do python3 -c 'x = bytearray(60 * 10**6)' & done; wait", timeout_ms=30_000)
    assert run("echo next").stdout.head == b"next\n"


def test_a_box_that_runs_out_of_memory_is_lost_for_that_reason(fresh_box: FreshBox, shell: Shell) -> None:
    run = shell(fresh_box(limits=Limits(memory_bytes=64 * MIB, shm_bytes=256 * MIB)))

    def fill() -> None:
        for _ in range(50):
            run("head -c 200M /dev/zero > /dev/shm/x")

    with pytest.raises(BoxLost) as lost:
        fill()
    assert lost.value.reason is LossReason.OOM


def test_a_fork_bomb_hurts_its_own_box_for_one_call(fresh_box: FreshBox, shell: Shell) -> None:
    run = shell(fresh_box(limits=Limits(pids=256, memory_bytes=512 * MIB)))
    answer = run(":(){ :|:& };: ; sleep 100", timeout_ms=1500)
    assert answer.timed_out
    assert run("echo next").stdout.head == b"next\n"


def test_leftovers_that_fill_the_process_table_are_killed_for_the_next_call(
    fresh_box: FreshBox, shell: Shell, until: Until
) -> None:
    run = shell(fresh_box(limits=Limits(pids=60)))
    assert run(FILL_PROCESS_TABLE).left_running
    answers: list[RunAnswer] = []

    def has_killed() -> bool:
        answers.append(run("echo next"))
        return answers[-1].killed_leftovers

    until(has_killed, "the table was full once")
    assert all(answer.stdout.head == b"next\n" for answer in answers)
    assert not run("echo more").killed_leftovers


def test_a_relay_that_is_killed_is_replaced(
    make_engine: Callable[..., DockerEngine], make_spec: Callable[..., BoxSpec], shell: Shell,
    docker_client: docker.APIClient,
) -> None:  # fmt: skip
    box = make_engine("relayed", has_doors=False).start(make_spec(), "s", 1)
    run = shell(box)
    assert run("echo 1").exit_code == 0
    top = docker_client.top(NAME_PREFIX + box.box_id)
    pids = [row[1] for row in top["Processes"] if "relay.pyc" in row[-1]]
    assert len(pids) == 1
    kill = ["sh", "-c", "kill -9 $(pgrep -f relay.pyc)"]
    killer = docker_client.exec_create(NAME_PREFIX + box.box_id, kill, user="0")
    docker_client.exec_start(killer["Id"])
    assert run("echo 2").stdout.head == b"2\n"
    box.close()


def test_the_dead_man_ends_a_box_that_nobody_holds(
    make_engine: Callable[..., DockerEngine], make_spec: Callable[..., BoxSpec], docker_client: docker.APIClient,
    until: Until,
) -> None:  # fmt: skip
    engine = make_engine("dead-man")
    box = engine.start(make_spec(dead_man_s=2), "s", 1)
    assert exists(docker_client, box.box_id)
    engine.close()
    until(lambda: not exists(docker_client, box.box_id), "the box is gone", 90)


def test_heartbeats_keep_a_box_alive(
    make_engine: Callable[..., DockerEngine], make_spec: Callable[..., BoxSpec], shell: Shell, until: Until
) -> None:
    engine = make_engine("alive", heartbeat_s=0.2)
    box = engine.start(make_spec(dead_man_s=2), "s", 1)
    began = time.monotonic()
    until(lambda: time.monotonic() - began > 4, "twice the dead-man time has passed")
    assert shell(box)("echo alive").stdout.head == b"alive\n"
    box.close()


def test_without_heartbeats_commands_stand_still_until_they_come_again(
    make_engine: Callable[..., DockerEngine], make_spec: Callable[..., BoxSpec], shell: Shell, until: Until
) -> None:
    engine = make_engine("frozen", heartbeat_s=3600)
    box = engine.start(make_spec(freeze_s=1), "s", 1)
    began = time.monotonic()
    shell(box)("while sleep 0.05; do echo >> ticks; done & exit 0")

    def is_frozen() -> bool:
        box.beat()
        return box.is_frozen

    # Asking is a heartbeat, so wait out the time first.
    until(lambda: time.monotonic() - began > 2.5, "the freeze time has passed")
    until(is_frozen, "the guest says that it is frozen")
    with pytest.raises(GuestRefused) as refused:
        shell(box)("true")
    assert refused.value.code is RefusalCode.FROZEN
    box.thaw()
    assert shell(box)("echo go").stdout.head == b"go\n"
    box.close()


def test_a_box_is_adopted_after_its_host_is_gone_with_its_running_command(
    make_engine: Callable[..., DockerEngine], make_spec: Callable[..., BoxSpec], shell: Shell, tmp_path: Path,
    docker_client: docker.APIClient, mark: MakeMark,
) -> None:  # fmt: skip
    records = tmp_path / "records"
    first = make_engine("adopting", records)
    box = first.start(make_spec(env={"KEPT": "yes"}), "session-1", 3)
    other = first.start(make_spec(), "session-2", 1)
    RecordStore(records).remove(other.box_id)
    given = mark()
    command = "echo x >> log; while [ ! -e go ]; do sleep 0.02; done; cat log"

    def begin() -> None:
        with pytest.raises(BoxLost):
            shell(box)(command, mark=given)

    thread = threading.Thread(target=begin)
    thread.start()
    shell(box)("while [ ! -e log ]; do sleep 0.02; done", session="other")
    first.close()
    thread.join(60)
    second = make_engine("adopting", records)
    adopted = second.adopt()
    assert [(record.session, record.generation) for record, _ in adopted] == [("session-1", 3)]
    assert not exists(docker_client, other.box_id)
    run = shell(adopted[0][1])
    assert run("touch go; echo $KEPT", session="other").stdout.head == b"yes\n"
    joined = CallMark(given.key, given.digest, "s", 1, 0, join=True)
    assert run(command, mark=joined).stdout.head == b"x\n"
    assert second.adopt() == []
    adopted[0][1].close()
    assert left_in(records) == []
    assert not exists(docker_client, box.box_id)


def test_a_sweep_removes_what_is_due_and_nothing_else(
    make_engine: Callable[..., DockerEngine], make_spec: Callable[..., BoxSpec], tmp_path: Path,
    docker_client: docker.APIClient, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    now, up = [1000.0], [10.0]
    monkeypatch.setattr("sandbox.record.uptime_s", lambda: up[0])
    monkeypatch.setattr("sandbox.engine.uptime_s", lambda: up[0])
    engine = make_engine("sweeping", tmp_path / "records", clock=lambda: now[0])
    kept = engine.start(make_spec(lifetime_s=100), "s", 1)
    due = engine.start(make_spec(lifetime_s=10), "s", 1)
    RecordStore(tmp_path / "records").save(
        BoxRecord("ghost", "sandhog-ghost", "sweeping", "s", 1, 0, 1e12, "i", "/w", "/s", 1, 1, "default")
    )
    assert engine.sweep() == 1
    now[0] += 50
    assert engine.sweep() == 0, "the machine's clock was set"
    up[0] += 50
    engine.renew(kept, "s2", 2, 100)
    assert engine.sweep() == 1
    assert exists(docker_client, kept.box_id)
    assert not exists(docker_client, due.box_id)
    record = RecordStore(tmp_path / "records").load(kept.box_id)
    assert record is not None
    assert (record.session, record.generation, record.expires) == ("s2", 2, 1150.0)
    kept.close()


def test_the_images_own_variables_reach_commands_but_not_the_guest(
    engine: DockerEngine, make_spec: Callable[..., BoxSpec], shell: Shell, docker_client: docker.APIClient
) -> None:
    made = docker_client.create_container("sandhog-box:latest", command=["true"])
    changes = ["ENV LD_PRELOAD=/no/such.so", "ENV FROM_IMAGE=yes", "ENV PAGER=less"]
    image: dict[str, Any] = docker_client.commit(made["Id"], changes="\n".join(changes))
    docker_client.remove_container(made["Id"])
    try:
        box = engine.start(make_spec(image=image["Id"]), "s", 1)
        answer = shell(box)("echo $FROM_IMAGE $PAGER")
        assert answer.stdout.head == b"yes cat\n"
        box.close()
    finally:
        docker_client.remove_image(image["Id"])


def test_sixteen_boxes_at_once(engine: DockerEngine, make_spec: Callable[..., BoxSpec], shell: Shell) -> None:
    boxes: list[Box] = []

    def work() -> None:
        box = engine.start(make_spec(), "s", 1)
        boxes.append(box)
        for number in range(20):
            assert shell(box)(f"echo {number}").stdout.head == b"%d\n" % number
        box.close()

    threads = [threading.Thread(target=work) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(90)
    assert len(boxes) == 16
    assert not any(box.is_alive() for box in boxes)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_engine_that_is_away_is_unavailable(tmp_path: Path, make_engine: Callable[..., DockerEngine]) -> None:
    is_away = False
    try:
        make_engine("none", tmp_path, base_url="unix:///no/such/socket")
    except EngineUnavailable:
        is_away = True
    assert is_away
    # The Docker client leaves its socket to the garbage collector when it cannot connect.
    gc.collect()
