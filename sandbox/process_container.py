"""One box without isolation as `Lifeline` needs it: a spawner, a guest and commands among this machine's processes."""

import json
import os
import shutil
import signal
import socket
import sys
import time
from pathlib import Path

from sandbox.errors import EngineUnavailable, LossReason
from sandbox.process_marks import kill_processes, processes_of
from sandbox.socket_stream import SocketStream
from sandbox.spec import BoxSpec

PACKAGE = Path(__file__).resolve().parent
REAP_S = 5.0
LOOK_S = 0.002


class PairStream(SocketStream):
    """One end of a socket pair whose other end the guest has."""

    def __init__(self, end: socket.socket, door: socket.socket) -> None:
        """`door`: the connection over which the other end was passed; the guest holds the link while it is open."""
        super().__init__(end)
        self._door = door

    def close(self) -> None:
        """Close both directions."""
        super().close()
        self._door.close()


class ProcessContainer:
    """The processes of one box. It is known by its number alone, so that another process can take it over."""

    def __init__(self, number: int, folder: Path) -> None:
        self.number = number
        self.folder = folder
        """Holds socket, home and log; goes with the box."""
        self._pid: int | None = None
        self._fate: tuple[LossReason, str] | None = None

    def launch(self, spec: BoxSpec) -> None:
        """Start the box's main process.

        Raises:
            OSError.
        """
        home = self.folder / "home"
        home.mkdir()
        place = {
            "number": self.number,
            "folder": str(self.folder),
            "dead_man_s": spec.dead_man_s,
            "freeze_s": spec.freeze_s,
            "workspace": str(spec.workspace_dir.absolute()),
            "spill": str(spec.spill_dir.absolute()),
            "home": str(home),
            "socket": str(self._socket_path),
        }
        command = [sys.executable, "-S", "-m", "sandbox.unboxed", "spawner", json.dumps(place)]
        log = (os.POSIX_SPAWN_OPEN, 1, str(self._log_path), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        actions = [(os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0), log, (os.POSIX_SPAWN_DUP2, 1, 2)]
        env = {"PYTHONPATH": str(PACKAGE.parent), "PYTHONDONTWRITEBYTECODE": "1"}
        self._pid = os.posix_spawn(sys.executable, command, env, file_actions=actions, setsid=True)

    def connect(self) -> PairStream:
        """A new stream to the guest."""
        ours, theirs = socket.socketpair()
        door = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            with theirs:
                door.connect(str(self._socket_path))
                socket.send_fds(door, [b"L"], [theirs.fileno(), theirs.fileno()])
        except OSError as error:
            ours.close()
            door.close()
            raise EngineUnavailable(f"link to the processes of box {self.number}: {error}") from error
        return PairStream(ours, door)

    def fate(self) -> tuple[LossReason, str] | None:
        """Why the main process is gone; None while it runs."""
        if self._fate is None and not self._is_running():
            self._fate = self._fate or (LossReason.ENDED, f"its main process ended: {self._log()}")
        return self._fate

    def let_go(self) -> None:
        """Nothing is held of it."""

    def remove(self) -> None:
        """End every process of the box and remove its folder."""
        kill_processes(self.number, is_own_spared=True)
        kill_processes(self.number, is_own_spared=False)
        deadline = time.monotonic() + REAP_S
        while self._is_running() and time.monotonic() < deadline:
            time.sleep(LOOK_S)
        shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def _socket_path(self) -> Path:
        return self.folder / "guest.sock"

    @property
    def _log_path(self) -> Path:
        return self.folder / "log"

    def _is_running(self) -> bool:
        """Whether the main process lives; it is reaped when it does not and was started here."""
        if self._pid is None:
            return self.number in processes_of(self.number)
        try:
            pid, status = os.waitpid(self._pid, os.WNOHANG)
        except ChildProcessError:
            return False
        if pid == 0:
            return True
        if os.WIFSIGNALED(status):
            number = signal.Signals(os.WTERMSIG(status)).name
            self._fate = self._fate or (LossReason.KILLED, f"its main process was ended by {number}")
        return False

    def _log(self) -> str:
        try:
            return self._log_path.read_text(encoding="utf-8", errors="replace")[-2000:].strip() or "it said nothing"
        except OSError:
            return "its log is gone"
