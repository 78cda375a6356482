"""The child process of one own tool's call, as the node holds it: started, talked to, ended with all it started."""

import contextlib
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from worker.own_wire import LINE_BYTES, own_uid

PRINTED_BYTES = 16_000
"""How much of the end of what a tool prints is kept."""
PASSED_ON = ("PATH", "LANG", "LC_ALL", "TZ", "PYTHONPATH", "SSL_CERT_FILE", "SSL_CERT_DIR")
"""What a child gets of the node's environment: no address and no key of ours."""
CHUNK_BYTES = 65_536


class ChildSilent(Exception):
    """The child said nothing before the deadline."""


class ChildBabbled(Exception):
    """The child sent a line beyond the bound."""


class OwnProcess:
    """One child and the three pipes to it. Used by one thread; `kill` by any."""

    def __init__(self, home: Path) -> None:
        self.printed = b""
        """The end of what it printed; whole once it is closed."""
        self._is_closed = False
        read_end, write_end = os.pipe()
        try:
            self._process = subprocess.Popen(
                # Safe path: nothing is imported from the directory it runs in.
                [sys.executable, "-P", "-m", "worker.own_child", str(write_end)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                pass_fds=(write_end,),
                cwd=home,
                env=_environment(home, os.environ),
                start_new_session=True,
            )
        except BaseException:
            os.close(read_end)
            raise
        finally:
            os.close(write_end)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._replies, self._orders, self._prints = (
            read_end,
            self._process.stdin.fileno(),
            self._process.stdout.fileno(),
        )
        self._received = bytearray()
        self._sending = b""
        self._selector = selectors.DefaultSelector()
        for descriptor in (self._replies, self._prints):
            self._selector.register(descriptor, selectors.EVENT_READ)
        os.set_blocking(self._orders, False)

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def say(self, row: bytes) -> None:
        """Send a line; it goes out while answers are waited for, so that a child that does not read holds nobody."""
        if not self._sending:
            self._selector.register(self._orders, selectors.EVENT_WRITE)
        self._sending += row

    def hear(self, deadline: float) -> bytes | None:
        """Return the child's next line, None when there will be no more.

        Args:
            deadline: By the monotonic clock, in seconds.

        Raises:
            ChildSilent: nothing came in time.
            ChildBabbled: the line is too long.
        """
        searched = 0
        while (end := self._received.find(b"\n", searched)) < 0:
            searched = len(self._received)
            if searched > LINE_BYTES:
                raise ChildBabbled
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                raise ChildSilent
            if not self._exchange(left_s):
                return None
        row = bytes(self._received[:end])
        del self._received[: end + 1]
        return row

    def kill(self) -> None:
        """End the child and its group at once; `close` ends the rest."""
        # Before it is waited for, so its process id is still its own.
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def close(self) -> None:
        """End the child with everything it started, and close the pipes. Idempotent."""
        if self._is_closed:
            return
        self._is_closed = True
        self.kill()
        self._process.wait()
        if os.geteuid() == 0:
            end_all_of(own_uid(self._process.pid))
        self._drain_prints()
        self._selector.close()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):
                pipe.close()
        os.close(self._replies)

    @property
    def ending(self) -> str:
        """How the child ended, in words; only once it is closed."""
        code = self._process.returncode
        return f"by signal {-code}" if code < 0 else f"with exit code {code}"

    def _exchange(self, wait_s: float) -> bool:
        """Move bytes once; return False when the child's end of the replies is closed."""
        for key, _ in self._selector.select(wait_s):
            if key.fd == self._orders:
                self._send()
                continue
            chunk = os.read(key.fd, CHUNK_BYTES)
            if key.fd == self._prints:
                self.printed = (self.printed + chunk)[-PRINTED_BYTES:]
                if not chunk:
                    self._selector.unregister(self._prints)
            elif chunk:
                self._received += chunk
            else:
                return False
        return True

    def _send(self) -> None:
        try:
            sent = os.write(self._orders, self._sending)
        except BlockingIOError:
            return
        except BrokenPipeError:
            # It has ended; that is seen at its replies.
            sent = len(self._sending)
        self._sending = self._sending[sent:]
        if not self._sending:
            self._selector.unregister(self._orders)

    def _drain_prints(self) -> None:
        """Take what is left of its prints; a process that outlived it and holds the pipe is not waited for."""
        os.set_blocking(self._prints, False)
        with contextlib.suppress(BlockingIOError, ValueError):
            while chunk := os.read(self._prints, CHUNK_BYTES):
                self.printed = (self.printed + chunk)[-PRINTED_BYTES:]


def _environment(home: Path, environment: Mapping[str, str]) -> dict[str, str]:
    passed = {name: environment[name] for name in PASSED_ON if name in environment}
    return {**passed, "HOME": str(home), "TMPDIR": str(home), "PYTHONDONTWRITEBYTECODE": "1"}


def end_all_of(uid: int) -> None:
    """Kill every process of a user id that only one call's processes have; returns when none is left."""
    while found := _processes_of(uid):
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                # The descriptor names this very process, also when its id is given away meanwhile.
                descriptor = os.pidfd_open(pid)
                try:
                    if _uid_of(pid) == uid:
                        signal.pidfd_send_signal(descriptor, signal.SIGKILL)
                finally:
                    os.close(descriptor)


def _processes_of(uid: int) -> list[int]:
    with os.scandir("/proc") as entries:
        pids = [int(entry.name) for entry in entries if entry.name.isdecimal()]
    return [pid for pid in pids if _uid_of(pid) == uid]


def _uid_of(pid: int) -> int | None:
    """Return the real user id of a process that still runs; None for one that has ended.

    Source: proc(5), /proc/PID/status. The owner of /proc/PID is another one for a process that cannot be traced.
    """
    try:
        text = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return None
    fields = dict(row.split(":\t", 1) for row in text.splitlines() if ":\t" in row)
    if fields.get("State", "Z").startswith(("Z", "X")):
        return None
    return int(fields["Uid"].split()[0])
