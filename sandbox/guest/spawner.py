"""The main process of the box: starts the guest and every command, and ends the box.

Forking costs by the size of the process, so this one stays tiny: builtin modules only, nothing of ours. It runs as
root; the guest asks over a SOCK_SEQPACKET pair, one marshalled tuple a message:

- `("spawn", id, argv, executables, env, cwd, marker)` with three descriptors (stdout, stderr, cwd report), or a fourth
  for standard input, which is empty otherwise; one that is a terminal becomes the command's own
- `("beat",)` – the host is alive; without it the dead-man alarm ends the box
- `("knock", path)` – connect to the worker's socket, which only root may
- back: `("exit", id, wait status, exec error bytes)`, `("failed", id, errno, what)`, or `("knocked", 0, errno, "")`,
  with the connection when errno is 0

When the guest ends, this process ends, and with it (under the container's init) the box.
"""

from __future__ import annotations

import _posixsubprocess
import _signal  # type: ignore[import-not-found]
import _socket
import marshal
import posix
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    # The typing module alone would be a tenth of the guest's memory.
    from typing import Any

REPORT_FD = 9
MAX_MESSAGE_BYTES = 512 * 1024
FDS_PER_SPAWN = 4
TIOCSCTTY = 0x540E
"""Source: asm-generic/ioctls.h."""

Waiting = dict[int, tuple[int, int]]
"""Process id → (id of the spawn, read end of its exec error pipe)."""


# What subprocess itself calls; its stub knows no None.
fork_exec: Any = _posixsubprocess.fork_exec


class Spawner:
    """State of the main process; one thread, woken by messages and by the death of children."""

    def __init__(self, uid: int, gid: int, dead_man_s: int) -> None:
        self.uid = uid
        self.gid = gid
        self.dead_man_s = dead_man_s
        self.waiting: Waiting = {}
        self.guest_pid = 0
        self.exit_code = 1
        self.null = posix.open("/dev/null", posix.O_RDWR | posix.O_CLOEXEC)
        # The number is kept taken, so that no received descriptor ever has it.
        posix.dup2(self.null, REPORT_FD, False)
        self.oom_fd = posix.open("/proc/self/oom_score_adj", posix.O_RDWR | posix.O_CLOEXEC)
        self.own_oom_score = posix.pread(self.oom_fd, 16, 0).strip()
        self.socket, self.guest_end = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
        for end in (self.socket, self.guest_end):
            end.setsockopt(_socket.SOL_SOCKET, _socket.SO_SNDBUF, MAX_MESSAGE_BYTES)

    def start_guest(self, argv: list[bytes]) -> None:
        """Fork and execute the guest; the last argument is the descriptor of its end of the pair."""
        fd = self.guest_end.fileno()
        posix.set_inheritable(fd, True)
        errors, errors_end = posix.pipe2(posix.O_CLOEXEC)
        self.guest_pid = fork_exec(
            [*argv, b"%d" % fd], (argv[0],), False, (), None, [], self.null, -1, -1, -1, -1, -1, errors, errors_end,
            True, True, -1, None, None, None, -1, None, True,
        )  # fmt: skip
        posix.set_inheritable(fd, False)
        posix.close(errors)
        posix.close(errors_end)
        # A child's death becomes a message: the C handler writes one byte into the guest's end, which arrives here.
        # Reading one place for both leaves no window in which a death is noticed late.
        self.guest_end.setblocking(False)
        _signal.signal(_signal.SIGCHLD, lambda *_: None)
        _signal.set_wakeup_fd(self.guest_end.fileno(), warn_on_full_buffer=False)

    def serve(self) -> None:
        """Answer until the guest is gone."""
        space = _socket.CMSG_SPACE(4 * FDS_PER_SPAWN)
        # Nobody handles the alarm: its default action ends this process, and so the box.
        _signal.alarm(self.dead_man_s)
        while True:
            data, ancillary, _, _ = self.socket.recvmsg(MAX_MESSAGE_BYTES, space, _socket.MSG_CMSG_CLOEXEC)
            if len(data) <= 1:
                if not data or self.reap():
                    return
                continue
            message = marshal.loads(data)
            if message[0] == "spawn":
                self.spawn(message, ancillary[0][2])
            elif message[0] == "knock":
                self.knock(message[1])
            else:
                _signal.alarm(self.dead_man_s)
                self.reap()

    def spawn(self, message: Any, fds: bytes) -> None:
        """Start one command, or report why not."""
        _, spawn_id, argv, executables, env, cwd, marker = message
        given = [int.from_bytes(fds[i : i + 4], sys.byteorder) for i in range(0, len(fds), 4)]
        out, err, report = given[:3]
        stdin = given[3] if len(given) > 3 else self.null
        before = take_terminal if len(given) > 3 and posix.isatty(stdin) else None
        errors, errors_end = posix.pipe2(posix.O_CLOEXEC)
        what = "cwd"
        try:
            self.enter(cwd)
            what = "fork"
            posix.dup2(report, REPORT_FD, True)
            posix.pwrite(self.oom_fd, b"1000", 0)
            # Without a switch of user the child can share this process's memory until it execs (vfork), which takes a
            # third less; the marker then comes from this process, since a vfork must change nothing.
            gid, groups, uid = (self.gid, [marker], self.uid) if self.uid else (None, None, None)
            if not self.uid:
                self.mark([marker])
            pid: int = fork_exec(
                argv, executables, False, (), None, env, stdin, -1, -1, out, -1, err, errors, errors_end,
                True, True, -1, gid, groups, uid, 0o022, before, True,
            )  # fmt: skip
        except OSError as error:
            posix.close(errors)
            self.socket.send(marshal.dumps(("failed", spawn_id, error.errno, what)))
        else:
            self.waiting[pid] = (spawn_id, errors)
        finally:
            for fd in (*given, errors_end):
                posix.close(fd)
            if what == "fork":
                if not self.uid:
                    self.mark([])
                posix.pwrite(self.oom_fd, self.own_oom_score, 0)
                posix.dup2(self.null, REPORT_FD, False)

    def knock(self, path: str) -> None:
        """Connect to a socket, never waiting, and pass the connection to the guest."""
        door = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
        door.setblocking(False)
        number = 0
        try:
            door.connect(path)
        except OSError as error:
            number = error.errno or 1
        fds = b"" if number else door.fileno().to_bytes(4, sys.byteorder)
        rights = [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, fds)] if fds else []
        self.socket.sendmsg([marshal.dumps(("knocked", 0, number, ""))], rights)
        door.close()

    def mark(self, groups: list[int]) -> None:
        """Have what is forked next known by these groups."""
        posix.setgroups(groups)

    def enter(self, cwd: bytes) -> None:
        """Go to the directory with the agent's rights; the child inherits it.

        The real and saved user stay root, so the agent cannot signal this process meanwhile.
        """
        posix.setegid(self.gid)
        posix.seteuid(self.uid)
        try:
            posix.chdir(cwd)
        finally:
            posix.seteuid(0)
            posix.setegid(0)

    def reap(self) -> bool:
        """Collect dead children and tell the guest; True when the guest itself is dead."""
        while True:
            try:
                pid, status = posix.waitpid(-1, posix.WNOHANG)
            except ChildProcessError:
                return True
            if pid == 0:
                return False
            if pid == self.guest_pid:
                self.exit_code = status >> 8 or 128 + status
                return True
            if pid in self.waiting:
                spawn_id, errors = self.waiting.pop(pid)
                text = posix.read(errors, 1024)
                posix.close(errors)
                self.socket.send(marshal.dumps(("exit", spawn_id, status, text)))


def take_terminal() -> None:
    """In the child, which leads a session of its own: standard input becomes the terminal of that session.

    Without one Ctrl-C would reach nobody; where it cannot be had a command still reads and writes it.
    """
    # Only here: a child that has it for a moment costs no memory.
    import fcntl

    try:  # noqa: SIM105 - contextlib would cost memory
        fcntl.ioctl(0, TIOCSCTTY, 0)
    except OSError:
        pass


def make_home(uid: int, gid: int) -> None:
    """A home directory and, where the image allows it, a name for the agent's user."""
    for path, owner in (("/home", 0), ("/home/agent", uid)):
        try:
            if not is_directory(path):
                posix.mkdir(path, 0o755)
            elif not owner:
                continue
            # Also one that is there already: it was mounted for this box, and belongs to root.
            posix.chown(path, owner, gid if owner else 0)
        except OSError:
            pass
    for path, line in (("/etc/passwd", f"agent:x:{uid}:{gid}::/home/agent:/bin/sh"), ("/etc/group", f"agent:x:{gid}:")):
        name_it(path, line, f":x:{uid if 'passwd' in path else gid}:")


def is_directory(path: str) -> bool:
    """Whether a directory is there; os.path would cost memory."""
    try:
        return posix.stat(path).st_mode & 0o170000 == 0o040000
    except OSError:
        return False


def name_it(path: str, line: str, known: str) -> None:
    """Append the line to the file unless the id has a name already; leave the image alone when that fails."""
    try:
        with open(path, "a+", encoding="utf-8", errors="replace") as file:
            file.seek(0)
            text = file.read()
            if known in text:
                return
            file.write(("" if text.endswith("\n") or not text else "\n") + line + "\n")
    except OSError:
        pass


def main() -> None:
    """argv: agent's uid, gid, dead-man seconds, then the guest's own command line."""
    uid, gid, dead_man_s = (int(text) for text in sys.argv[1:4])
    make_home(uid, gid)
    spawner = Spawner(uid, gid, dead_man_s)
    spawner.start_guest([text.encode("utf-8", "surrogateescape") for text in sys.argv[4:]])
    spawner.serve()
    posix._exit(spawner.exit_code & 255)


if __name__ == "__main__":
    main()
