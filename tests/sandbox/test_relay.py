"""The relay reaches a guest that has only just begun to start."""

import socket
import threading
from pathlib import Path

import pytest

from sandbox.guest import relay


def test_a_guest_that_only_starts_is_waited_for(state_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = state_dir / "s"
    monkeypatch.setattr(relay, "SOCKET_PATH", str(place))
    thread = threading.Thread(target=relay.main)
    with socket.socket(socket.AF_UNIX) as guest:
        thread.start()
        guest.bind(str(place))
        # Bound, but not listening yet: a relay that connects now is refused.
        thread.join(0.05)
        guest.listen()
        link, _ = guest.accept()
        with link:
            said, fds, _, _ = socket.recv_fds(link, 1, 2)
            for fd in fds:
                socket.close(fd)
    thread.join(30)
    assert (said, len(fds), thread.is_alive()) == (b"L", 2, False)


def test_a_guest_that_never_comes_is_given_up(state_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay, "SOCKET_PATH", str(state_dir / "s"))
    monkeypatch.setattr(relay, "WAIT_S", 0.05)
    with pytest.raises(FileNotFoundError):
        relay.main()
