"""The door by itself: who is let in, who is sent away, and that it is one place's, whoever opens it."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sandbox.door import SOCKET_NAME, Door
from sandbox.doors import Doors
from sandbox.record import RecordStore
from sandbox.spec import BoxSpec

WAIT_S = 30.0
AS_AGENT = (
    "import os, socket, sys; os.setgroups([]); os.setgid(10001); os.setuid(10001);"
    "s = socket.socket(socket.AF_UNIX); s.settimeout(30); s.connect(sys.argv[1]); print('in', flush=True); s.recv(1)"
)
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only a door that belongs to root is used")

Knock = Callable[[], socket.socket]


@pytest.fixture
def folder(state_dir: Path) -> Path:
    """Open to nobody but us, and too long for a socket's path."""
    return state_dir / "doors" / ("b" * 120)


@pytest.fixture
def door(folder: Path) -> Iterator[Door]:
    door = Door(folder)
    yield door
    door.close()


@pytest.fixture
def knock(folder: Path) -> Iterator[Knock]:
    """Connects as the guest's root would."""
    came: list[socket.socket] = []

    def knock() -> socket.socket:
        came.append(socket.socket(socket.AF_UNIX))
        place = os.open(folder, os.O_PATH)
        try:
            came[-1].connect(f"/proc/self/fd/{place}/{SOCKET_NAME}")
        finally:
            os.close(place)
        came[-1].settimeout(WAIT_S)
        return came[-1]

    yield knock
    for one in came:
        one.close()


def never() -> bool:
    return False


@needs_root
def test_who_knocks_gets_both_directions_and_the_end(door: Door, knock: Knock) -> None:
    guest = knock()
    stream = door.wait(never, WAIT_S)
    assert stream is not None
    assert not stream.is_heard
    stream.send_all(b"hello")
    assert guest.recv(100) == b"hello"
    guest.sendall(b"here")
    assert (stream.recv(), stream.is_heard) == (b"here", True)
    stream.close()
    assert guest.recv(1) == b""


@needs_root
def test_one_that_has_gone_meanwhile_is_passed_over(door: Door, knock: Knock) -> None:
    knock().close()
    guest = knock()
    stream = door.wait(never, WAIT_S)
    assert stream is not None
    guest.sendall(b"the second")
    assert stream.recv() == b"the second"
    stream.close()


def test_nobody_is_waited_for_who_cannot_come(door: Door) -> None:
    began = time.monotonic()
    assert door.wait(lambda: True, WAIT_S) is None
    assert time.monotonic() - began < WAIT_S
    assert door.wait(never, 0) is None
    assert not door.was_knocked_at()


def test_one_that_came_late_is_known_and_sent_away(door: Door, knock: Knock) -> None:
    guest = knock()
    assert door.was_knocked_at()
    assert guest.recv(1) == b""


@needs_root
def test_the_agent_does_not_get_there_and_would_not_be_let_in(state_dir: Path) -> None:
    folder = state_dir / "doors" / "b"
    door = Door(folder)
    argv = [sys.executable, "-c", AS_AGENT, str(folder / SOCKET_NAME)]
    refused = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert "PermissionError" in refused.stderr
    for path in (state_dir, folder.parent, folder):
        path.chmod(0o755)
    (folder / SOCKET_NAME).chmod(0o666)
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as agent:
        assert agent.stdout is not None
        assert agent.stdout.readline() == b"in\n"
        assert door.wait(lambda: agent.poll() is not None, WAIT_S) is None
        assert agent.wait(60) == 0
    door.close()


def test_whoever_opens_it_anew_has_it_and_who_waited_is_sent_away(door: Door, folder: Path, knock: Knock) -> None:
    before = knock()
    door.close()
    door.close()
    with pytest.raises(ConnectionResetError):
        before.recv(1)
    with pytest.raises(ConnectionRefusedError):
        knock()
    again = Door(folder)
    knock()
    assert again.was_knocked_at()
    again.close()


def test_a_door_is_for_its_owner_alone(door: Door, folder: Path) -> None:
    assert door is not None
    assert [path.stat().st_mode & 0o777 for path in (folder.parent, folder, folder / SOCKET_NAME)] == [
        0o700,
        0o700,
        0o600,
    ]


def test_gvisor_has_none(make_spec: Callable[..., BoxSpec], state_dir: Path) -> None:
    doors = Doors(RecordStore(state_dir), is_possible=True)
    assert doors.may_have(make_spec()) == (os.geteuid() == 0)
    assert not doors.may_have(make_spec(runtime="runsc"))
    assert not Doors(RecordStore(state_dir), is_possible=False).may_have(make_spec())
