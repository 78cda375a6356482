"""Boxes whose guest comes by itself, where it can; where it cannot, relays are executed as ever."""

import json
import threading
from collections.abc import Callable
from pathlib import Path

import docker
import pytest

from sandbox import lifeline
from sandbox.box import Box
from sandbox.container import DockerContainer
from sandbox.creation import NAME_PREFIX
from sandbox.door import DoorStream
from sandbox.engine import DockerEngine
from sandbox.engine_stream import ExecStream
from sandbox.errors import BoxLost
from sandbox.record import RecordStore
from sandbox.requests import CallMark, RunAnswer
from sandbox.spec import BoxSpec
from tests.chaos.links import shut_link

pytestmark = pytest.mark.docker

MakeEngine = Callable[..., DockerEngine]
MakeSpec = Callable[..., BoxSpec]
Shell = Callable[[Box], Callable[..., RunAnswer]]
Until = Callable[..., None]

KNOCK = """python3 -c '
import socket, sys, time
door = socket.socket(socket.AF_UNIX)
door.connect("/run/sandhog/door/host.sock")
open("/workspace/knocked", "w").close()
time.sleep(1000)'"""


def way_of(box: Box) -> type:
    assert box._link is not None
    return type(box._link._stream)


def relays_in(client: docker.APIClient, box: Box) -> int:
    rows = client.top(NAME_PREFIX + box.box_id)["Processes"]
    return sum("relay.pyc" in row[-1] for row in rows)


def cut(box: Box) -> None:
    assert box._link is not None
    box._link.close()


def test_a_guest_comes_by_itself_and_comes_again(
    make_engine: MakeEngine, make_spec: MakeSpec, shell: Shell, tmp_path: Path, docker_client: docker.APIClient
) -> None:
    records = tmp_path / "records"
    box = make_engine("doors", records).start(make_spec(), "s", 1)
    run = shell(box)
    for _ in range(3):
        assert (way_of(box), run("echo hi").stdout.head) == (DoorStream, b"hi\n")
        cut(box)
    assert relays_in(docker_client, box) == 0
    refused = run("cd /run/sandhog/door || ls /run/sandhog/door; echo x > /run/sandhog/door/host.sock; " + KNOCK)
    assert refused.exit_code != 0
    assert refused.stderr.text().count("ermission denied") == 4
    assert RecordStore(records).door_folder(box.box_id).is_dir()
    box.close()
    assert not list((records / "doors").iterdir())


def test_root_inside_changes_nothing_of_the_door_and_takes_no_living_link(
    make_engine: MakeEngine, make_spec: MakeSpec, shell: Shell, until: Until, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = make_spec(0)
    box = make_engine("doors").start(spec, "s", 1)
    run = shell(box)
    tried = run(
        "cd /run/sandhog/door && ! touch x && ! rm -f host.sock && ! chmod 777 . && ! mount -o remount,rw .; ls"
    )
    assert (tried.exit_code, tried.stdout.head) == (0, b"host.sock\n"), tried.stderr.text()
    assert run(KNOCK + " & exit 0").exit_code == 0
    until((spec.workspace_dir / "knocked").exists, "a command of root has knocked")
    assert way_of(box) is DoorStream
    assert run("echo still").stdout.head == b"still\n"
    # It is next when the link breaks, says nothing, and is sent away.
    monkeypatch.setattr(lifeline, "HELLO_TIMEOUT_S", 0.5)
    cut(box)
    assert run("echo again").stdout.head == b"again\n"
    assert way_of(box) is ExecStream
    box.close()


def test_where_no_guest_can_come_the_next_is_not_waited_for(
    make_engine: MakeEngine, make_spec: MakeSpec, shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine("doors")
    monkeypatch.setattr("sandbox.wire.DOOR_PATH", "/run/sandhog/door/elsewhere.sock")
    first, second = (engine.start(make_spec(), "s", number) for number in (1, 2))
    for box, has_door in ((first, True), (second, False)):
        assert (way_of(box), shell(box)("echo hi").stdout.head) == (ExecStream, b"hi\n")
        record = engine._records.load(box.box_id)
        assert record is not None
        assert record.has_door is has_door
        assert box.info.facts["door_mount"] == ("ro" if has_door else "")
        box.close()


def test_a_guest_that_was_only_slow_is_not_taken_for_one_that_cannot_come(
    make_engine: MakeEngine, make_spec: MakeSpec, shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine("doors")
    monkeypatch.setattr("sandbox.door.PATIENCE_S", 0.0)
    box = engine.start(make_spec(), "s", 1)
    assert way_of(box) is ExecStream
    assert engine._doors.may_have(make_spec())
    monkeypatch.setattr("sandbox.door.PATIENCE_S", 60.0)
    cut(box)
    assert (shell(box)("echo hi").stdout.head, way_of(box)) == (b"hi\n", DoorStream)
    box.close()


def test_a_box_on_record_without_a_door_is_adopted_by_a_relay(
    make_engine: MakeEngine, make_spec: MakeSpec, shell: Shell, tmp_path: Path
) -> None:
    records = tmp_path / "records"
    first = make_engine("doors", records)
    box = first.start(make_spec(), "s", 1)
    path = records / f"{box.box_id}.json"
    fields = json.loads(path.read_text())
    assert fields.pop("has_door") is True
    path.write_text(json.dumps(fields))
    first.close()
    [(_, adopted)] = make_engine("doors", records).adopt()
    assert (way_of(adopted), shell(adopted)("echo hi").stdout.head) == (ExecStream, b"hi\n")
    adopted.close()


def test_a_connection_that_is_shut_from_outside_is_made_again_and_loses_no_answer(
    make_engine: MakeEngine, make_spec: MakeSpec, shell: Shell, docker_client: docker.APIClient
) -> None:
    box = make_engine("doors").start(make_spec(), "s", 1)
    rows = docker_client.top(NAME_PREFIX + box.box_id, ps_args="-eo pid,args")["Processes"]
    [guest] = [int(row[0]) for row in rows if "/guest.pyc " in row[1] and "spawner.pyc" not in row[1]]
    answers: list[RunAnswer] = []
    command = "echo x >> log; while [ ! -e go ]; do sleep 0.02; done; cat log"
    thread = threading.Thread(target=lambda: answers.append(shell(box)(command)))
    thread.start()
    shell(box)("while [ ! -e log ]; do sleep 0.02; done", session="other")
    before = box._link
    assert shut_link(guest)
    shell(box)("touch go", session="other")
    thread.join(60)
    assert answers[0].stdout.head == b"x\n"
    assert (box._link is not before, way_of(box)) == (True, DoorStream)
    box.close()


def test_a_worker_that_comes_back_opens_the_door_and_gets_the_answer(
    make_engine: MakeEngine, make_spec: MakeSpec, shell: Shell, tmp_path: Path, docker_client: docker.APIClient
) -> None:
    records = tmp_path / "records"
    first = make_engine("doors", records)
    box = first.start(make_spec(), "s", 1)
    command = "echo x >> log; while [ ! -e go ]; do sleep 0.02; done; cat log"
    given = CallMark("waits", "d", "s", 1, 0)

    def begin() -> None:
        with pytest.raises(Exception, match="let go"):
            shell(box)(command, mark=given)

    thread = threading.Thread(target=begin)
    thread.start()
    shell(box)("while [ ! -e log ]; do sleep 0.02; done", session="other")
    first.close()
    thread.join(60)
    second = make_engine("doors", records)
    [(record, adopted)] = second.adopt()
    assert record.has_door
    assert way_of(adopted) is DoorStream
    assert relays_in(docker_client, adopted) == 0
    run = shell(adopted)
    run("touch go", session="other")
    assert run(command, mark=CallMark("waits", "d", "s", 1, 0, join=True)).stdout.head == b"x\n"
    adopted.close()


def test_a_box_that_died_is_not_waited_for(
    make_engine: MakeEngine, make_spec: MakeSpec, shell: Shell, docker_client: docker.APIClient,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    box = make_engine("doors").start(make_spec(), "s", 1)
    # Nobody would come, and no relay could be executed: what ends the wait is the news of its end.
    monkeypatch.setattr("sandbox.door.PATIENCE_S", 1000.0)
    docker_client.kill(NAME_PREFIX + box.box_id)
    with pytest.raises(BoxLost):
        shell(box)("echo hi")


def test_what_a_dead_run_left_of_a_door_is_swept(make_engine: MakeEngine, tmp_path: Path) -> None:
    records = tmp_path / "records"
    engine = make_engine("doors", records)
    left = RecordStore(records).door_folder("b1")
    left.mkdir(parents=True)
    engine.sweep()
    assert not left.exists()


def test_a_container_without_a_door_is_reached_by_a_relay(
    make_engine: MakeEngine, make_spec: MakeSpec, shell: Shell, docker_client: docker.APIClient
) -> None:
    box = make_engine("doors", has_doors=False).start(make_spec(), "s", 1)
    assert (way_of(box), shell(box)("echo hi").stdout.head) == (ExecStream, b"hi\n")
    assert isinstance(box._container, DockerContainer)
    assert relays_in(docker_client, box) == 1
    assert shell(box)("ls -A /run/sandhog/door").exit_code != 0
    box.close()
