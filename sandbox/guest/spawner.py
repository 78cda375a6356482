"""The main process of the box: starts the guest and every command, and ends the box.

Forking costs by the size of the process, so this one stays tiny: builtin modules only, nothing of ours. Where it is
process 1 it does not fork at all: a command then comes to be while this process has the agent as its real user, which
the command's process becomes before it executes (`resetids`). Anybody else could be killed meanwhile; process 1 gets no
signal from within its box that it does not handle. It runs as root; the guest asks over a SOCK_SEQPACKET pair, one
marshalled tuple a message:

- `("spawn", id, argv, executables, env, cwd, marker)` with three descriptors (stdout, stderr, cwd report), or a fourth
  for standard input, which is empty otherwise; one that is a terminal becomes the command's own. The variables are
  marshalled by themselves, as most commands have those of the one before
- `("beat",)` – the host is alive; without it the dead-man alarm ends the box
- `("knock", path)` – connect to the worker's socket, which only root may
- back: `("exit", id, wait status, exec error bytes)`, `("failed", id, errno, what)`, or `("knocked", 0, errno, "")`,
  with the connection when errno is 0

When the guest ends, this process ends, and with it the box.
"""

from __future__ import annotations

import _posixsubprocess
import _signal  # type: ignore[import-not-found]
import _socket
import errno
import marshal
import posix
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    # The typing module alone would be a tenth of the guest's memory.
    from typing import Any

REPORT_FD = 9
MAX_MESSAGE_BYTES = 512 * 1024
FDS_PER_SPAWN = 4
TIOCSCTTY = 0x540E
"""Source: asm-generic/ioctls.h."""

INIT = 1
NO_PROCESS_LEFT = (errno.EAGAIN, errno.ENOMEM)
DEAD_MAN_EXIT = 142
"""What the host knows a box by that ended because nothing was heard: that of a process which an alarm ends."""
RESTORED = (_signal.SIGPIPE, _signal.SIGXFSZ)
"""Signals that Python ignores."""

Waiting = dict[int, tuple[int, int, tuple[int, ...]]]
"""Process id → (id of the spawn, read end of its exec error pipe or -1, write ends that are held until it ended)."""


# What subprocess itself calls; its stub knows no None.
fork_exec: Any = _posixsubprocess.fork_exec


class Spawner:
    """State of the main process; one thread, woken by messages and by the death of children."""

    def __init__(self, uid: int, gid: int, dead_man_s: int) -> None:
        self.uid = uid
        self.gid = gid
        self.dead_man_s = dead_man_s
        self.waiting: Waiting = {}
        self.is_init = posix.getpid() == INIT
        self.env_text = b""
        self.env: dict[str, str] = {}
        """Of the last command: most have the same."""
        self.env_words: list[bytes] = []
        self.guest_pid = 0
        self.exit_code = 1
        self.dead_at = 0.0
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
        self.stay_alive()
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
                self.stay_alive()
                self.reap()

    def stay_alive(self) -> None:
        """The host was heard: end the box only when so long nothing more is."""
        self.dead_at = time.monotonic() + self.dead_man_s
        _signal.alarm(self.dead_man_s)

    def die_if_late(self) -> None:
        """End the box unless the alarm was somebody's in the box who let it ring."""
        if time.monotonic() >= self.dead_at:
            posix._exit(DEAD_MAN_EXIT)

    def spawn(self, message: Any, fds: bytes) -> None:
        """Start one command, or report why not."""
        _, spawn_id, argv, executables, env, cwd, marker = message
        self.take_env(env)
        given = [int.from_bytes(fds[i : i + 4], sys.byteorder) for i in range(0, len(fds), 4)]
        out, err, report = given[:3]
        stdin = given[3] if len(given) > 3 else self.null
        has_terminal = len(given) > 3 and posix.isatty(stdin)
        # What is held keeps the guest from being woken by the end of the output just before it is by the command's.
        held = () if len(given) > 3 else (out, err)
        what = "cwd"
        failure = 0
        try:
            self.enter(cwd)
            what = "fork"
            posix.pwrite(self.oom_fd, b"1000", 0)
            self.mark([marker])
            if self.uid and self.is_init and not has_terminal:
                what = "exec"
                started = self.start((argv, executables), (stdin, out, err, report))
            else:
                started = self.fork((argv, executables), (stdin, out, err, report), has_terminal)
            self.waiting[started[0]] = (spawn_id, started[1], held)
        except (OSError, ValueError) as error:
            # No words of a command that no program can be given are an OSError.
            failure = error.errno or errno.EIO if isinstance(error, OSError) else errno.EINVAL
            if failure in NO_PROCESS_LEFT and what == "exec":
                what = "fork"
        for fd in given:
            if failure or fd not in held:
                posix.close(fd)
        if what != "cwd":
            self.mark([])
            posix.pwrite(self.oom_fd, self.own_oom_score, 0)
        if failure:
            self.socket.send(marshal.dumps(("failed", spawn_id, failure, what)))

    def take_env(self, text: bytes) -> None:
        """Have the variables for the next command."""
        if text != self.env_text:
            self.env_text, self.env = text, marshal.loads(text)
            self.env_words = [f"{name}={value}".encode("utf-8", "surrogateescape") for name, value in self.env.items()]

    def start(self, what: Any, fds: tuple[int, int, int, int]) -> tuple[int, int]:
        """Start a command as the agent in this process's memory (vfork): that takes a third of what a fork takes.

        Returns its process id, and -1: it is known already that it was executed.

        Raises:
            OSError: it cannot be started.
            ValueError: its words or variables have NUL characters.
        """
        argv, executables = what
        files = [(posix.POSIX_SPAWN_DUP2, fd, target) for fd, target in zip(fds, (0, 1, 2, REPORT_FD), strict=True)]
        failure: OSError | None = None
        self.let_in(self.uid, self.gid)
        try:
            for path in executables:
                try:
                    pid = posix.posix_spawn(
                        path, argv, self.env, file_actions=files, setsid=True, resetids=True, setsigdef=RESTORED
                    )
                except OSError as error:
                    if error.errno in NO_PROCESS_LEFT:
                        raise
                    if failure is None or failure.errno in (errno.ENOENT, errno.ENOTDIR):
                        failure = error
                else:
                    return pid, -1
        finally:
            self.let_in(0, 0)
        raise failure or OSError(errno.ENOENT, "there is no such program")

    def let_in(self, uid: int, gid: int) -> None:
        """Have this user for the real one; the effective and the saved one stay root."""
        posix.setresgid(gid, 0, 0)
        posix.setresuid(uid, 0, 0)

    def fork(self, what: Any, fds: tuple[int, int, int, int], has_terminal: bool) -> tuple[int, int]:
        """Start a command by a fork, which can take a terminal, and switches user also where an agent could kill us.

        Without either the process shares this one's memory until it executes, too. Returns its process id, and the read
        end of the pipe that tells why it could not be executed.

        Raises:
            OSError: there is no process left.
        """
        argv, executables = what
        stdin, out, err, report = fds
        errors, errors_end = posix.pipe2(posix.O_CLOEXEC)
        gid, uid = (self.gid, self.uid) if self.uid else (None, None)
        try:
            posix.dup2(report, REPORT_FD, True)
            pid: int = fork_exec(
                argv, executables, False, (), None, self.env_words, stdin, -1, -1, out, -1, err, errors, errors_end,
                True, True, -1, gid, None, uid, 0o022, take_terminal if has_terminal else None, True,
            )  # fmt: skip
        except BaseException:
            posix.close(errors)
            raise
        finally:
            posix.close(errors_end)
            posix.dup2(self.null, REPORT_FD, False)
        return pid, errors

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
        """Have what is started next known by these groups."""
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
                spawn_id, errors, held = self.waiting.pop(pid)
                for fd in held:
                    posix.close(fd)
                text = b""
                if errors >= 0:
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
    posix.umask(0o022)
    spawner = Spawner(uid, gid, dead_man_s)
    if spawner.is_init:
        # What is not handled does not reach process 1: not the default action of the alarm either.
        _signal.signal(_signal.SIGINT, _signal.SIG_DFL)
        _signal.signal(_signal.SIGALRM, lambda *_: spawner.die_if_late())
    spawner.start_guest([text.encode("utf-8", "surrogateescape") for text in sys.argv[4:]])
    # While the guest starts: the box gets files of its own in place of the image's, which waits for the disk.
    make_home(uid, gid)
    spawner.serve()
    posix._exit(spawner.exit_code & 255)


if __name__ == "__main__":
    main()
