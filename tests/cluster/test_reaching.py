"""A person reaches into a session's box: `sandhog shell`, `cp` and `port` as processes, as they are used."""

import asyncio
import fcntl
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import termios
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from coordinator.commands.carrying import copy_in, copy_out
from coordinator.commands.shelling import Sitting
from coordinator.embedded import Embedded
from coordinator.endpoint.scripted import ScriptedCall, Turn
from coordinator.errors import NoBox, NotCopied
from coordinator.settings import Settings
from tests.cluster.commands import hears_hang_ups
from tests.cluster.conftest import Stage
from tests.sandbox.conformance.test_pipes import SERVER

pytestmark = pytest.mark.docker

SANDHOG = [sys.executable, "-c", "from coordinator.start import main; main()"]
WAIT_S = 120

Until = Callable[..., None]


def bash(command: str) -> Turn:
    return Turn(calls=(ScriptedCall("Bash", {"command": command}),))


class Terminal:
    """Starts commands as somebody at a terminal would, on one state directory."""

    def __init__(self, state_dir: Path) -> None:
        self.environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(state_dir),
            "TERM": "xterm",
            "SANDHOG_STATE_DIR": str(state_dir),
            "PYTHONPATH": str(Path(__file__).parents[2]),
        }
        self.started: list[subprocess.Popen[bytes]] = []

    def start(self, *words: str, **streams: Any) -> subprocess.Popen[bytes]:
        given = {**dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE), **streams}
        process = subprocess.Popen(
            [*SANDHOG, *words], env=self.environment, start_new_session=True, preexec_fn=hears_hang_ups, **given
        )
        self.started.append(process)
        return process

    async def run(self, *words: str, data: bytes = b"") -> tuple[int, bytes, bytes]:
        """Exit code and what was written to both streams."""
        process = self.start(*words)
        out, err = await asyncio.to_thread(process.communicate, data, WAIT_S)
        return process.returncode, out, err

    def close(self) -> None:
        """Leave no command behind."""
        for process in self.started:
            if process.poll() is None:
                process.kill()
            process.wait()
            for stream in (process.stdin, process.stdout, process.stderr):
                if stream is not None:
                    with suppress(BrokenPipeError):
                        stream.close()


@pytest.fixture
def terminal(state_dir: Path) -> Iterator[Terminal]:
    terminal = Terminal(state_dir)
    yield terminal
    terminal.close()


@asynccontextmanager
async def running(stage: Stage, until: Until) -> AsyncIterator[str]:
    """The id of a session with a box, whose command does not end by itself."""
    cancelled = asyncio.Event()
    # Its limit is longer than any of these tests: with the call's end the session, and its box, would be over.
    call = {"command": "echo mine > mine.txt; touch begun; sleep 4718", "timeout_ms": 600_000}
    turn = Turn(calls=(ScriptedCall("Bash", call),))
    playing = asyncio.create_task(stage.play([turn], cancelled=cancelled))
    try:
        await asyncio.to_thread(until, (stage.project / "begun").exists, "the session has its box", WAIT_S)
        (session,) = [path.name for path in (stage.cluster.state_dir / "sessions").iterdir()]
        yield session
    finally:
        cancelled.set()
        await asyncio.wait_for(playing, WAIT_S)


def audited(state_dir: Path, session: str) -> list[tuple[str, str]]:
    """Action and detail of each line of the audit log."""
    lines = [json.loads(line) for line in (state_dir / "audit.jsonl").read_text().splitlines()]
    assert all(line["session"] == session and line["via"] == "terminal" and "@" in line["actor"] for line in lines)
    return [(line["action"], line["detail"]) for line in lines]


async def test_a_command_in_the_box_has_streams_exit_code_and_an_audit_line(
    stage: Stage, terminal: Terminal, until: Until, state_dir: Path
) -> None:
    async with running(stage, until) as session:
        words = "id -u; pwd; cat; echo err >&2; exit 5"
        code, out, err = await terminal.run("shell", session, "--", "sh", "-c", words, data=b"typed\n" * 50_000)
        assert (code, err) == (5, b"err\n"), err
        uid = stage.project.stat().st_uid
        assert out == f"{uid}\n/workspace\n".encode() + b"typed\n" * 50_000

        code, _, err = await terminal.run("shell", "last", "/no/such/program")
        assert (code, err.count(b"\n")) == (127, 1), err

        assert audited(state_dir, session) == [
            ("shell", f"sh -c '{words}'"),
            ("shell_end", "exit code 5"),
            ("shell", "/no/such/program"),
            ("shell_end", "exit code 127"),
        ]
        interrupted = terminal.start("shell", session, "sh", "-c", "echo begun; sleep 4719")
        assert interrupted.stdout is not None
        assert await asyncio.to_thread(interrupted.stdout.readline) == b"begun\n"
        interrupted.send_signal(signal.SIGINT)
        assert await asyncio.to_thread(interrupted.wait, WAIT_S) == 130
        interrupted.communicate()
        code, out, _ = await terminal.run("shell", session, "sh", "-c", "ps ax | grep -c 'sleep 471[9]'")
        assert out == b"0\n"


class Person:
    """Somebody at a terminal of their own."""

    def __init__(self, terminal: Terminal, *words: str) -> None:
        self.ours, theirs = os.openpty()
        self.size(41, 123)
        self.before = termios.tcgetattr(theirs)
        self.process = terminal.start(*words, stdin=theirs, stdout=theirs, stderr=theirs)
        self.theirs = theirs
        self.seen = b""

    def size(self, rows: int, cols: int) -> None:
        fcntl.ioctl(self.ours, termios.TIOCSWINSZ, struct.pack("HHHH", rows, cols, 0, 0))

    def types(self, keys: bytes) -> None:
        os.write(self.ours, keys)

    async def sees(self, words: bytes) -> None:
        def read() -> None:
            deadline = time.monotonic() + WAIT_S
            while words not in self.seen:
                assert time.monotonic() < deadline, self.seen
                if select.select([self.ours], [], [], 0.5)[0]:
                    self.seen += os.read(self.ours, 4096)

        await asyncio.to_thread(read)
        self.seen = self.seen.partition(words)[2]

    async def ends(self) -> int:
        code = await asyncio.to_thread(self.process.wait, WAIT_S)
        assert termios.tcgetattr(self.theirs) == self.before, "the terminal is as it was"
        os.close(self.theirs)
        os.close(self.ours)
        return code


async def test_a_shell_on_a_terminal_is_one_until_it_exits_or_its_session_ends(
    stage: Stage, terminal: Terminal, until: Until
) -> None:
    async with running(stage, until) as session:
        one = Person(terminal, "shell", session)
        one.types(b"stty size; echo $((40 + 2)) $TERM\n")
        await one.sees(b"41 123\r\n")
        await one.sees(b"42 xterm\r\n")
        one.size(50, 99)
        one.process.send_signal(signal.SIGWINCH)
        one.types(b"sleep 4720\n")
        await one.sees(b"sleep 4720\r\n")
        one.types(b"\x03")
        one.types(b"stty size\n")
        await one.sees(b"50 99\r\n")
        one.types(b"exit 3\n")
        assert await one.ends() == 3

        hung = Person(terminal, "shell", session, "sh", "-c", "echo begun; trap '' INT HUP; sleep 4721")
        await hung.sees(b"begun\r\n")
        hung.types(b"\x03\r~.")
        assert await hung.ends() == 128 + signal.SIGHUP

        last = Person(terminal, "shell", session)
        last.types(b"echo $((40 + 3))\n")
        await last.sees(b"43\r\n")
    await last.sees(b"sandhog: ")
    assert await last.ends() == 255


async def test_files_go_into_a_box_and_come_out(
    stage: Stage, terminal: Terminal, until: Until, tmp_path: Path, state_dir: Path, embedded: Embedded
) -> None:
    local = tmp_path / "local"
    (local / "sub").mkdir(parents=True)
    (local / "sub" / "large").write_bytes(os.urandom(3_000_000))
    (local / "run.sh").write_text("#!/bin/sh\n")
    (local / "run.sh").chmod(0o755)
    settings = Settings(state_dir=state_dir, redis_url=embedded.redis_url)
    async with running(stage, until) as session:
        code, out, err = await terminal.run("cp", str(local), f"{session}:.")
        assert (code, out, err) == (0, b"", b"")
        assert (stage.project / "local" / "sub" / "large").read_bytes() == (local / "sub" / "large").read_bytes()
        assert (stage.project / "local").stat().st_uid == stage.project.stat().st_uid
        await copy_in(settings, session, str(local / "run.sh"), "/tmp/renamed.sh")
        await copy_out(settings, session, "/tmp/renamed.sh", str(tmp_path))
        assert (tmp_path / "renamed.sh").stat().st_mode & 0o777 == 0o755
        await copy_out(settings, session, "local", str(tmp_path / "back"))
        assert (tmp_path / "back" / "sub" / "large").read_bytes() == (local / "sub" / "large").read_bytes()

        (stage.project / "local" / "evil").symlink_to("/etc/passwd")
        with pytest.raises(NotCopied, match="leads to '/etc/passwd', out of"):
            await copy_out(settings, session, "local", str(tmp_path / "evil"))
        with pytest.raises(NotCopied, match=r"In the box: .*No such file"):
            await copy_out(settings, session, "missing", str(tmp_path / "x"))
        with pytest.raises(NotCopied, match="is no directory of the box"):
            await copy_in(settings, session, str(local / "run.sh"), "/no/such/place")
        with pytest.raises(NotCopied, match="cannot be read"):
            await copy_in(settings, session, str(tmp_path / "missing"), ".")
        assert [action for action, _ in audited(state_dir, session)][:3] == ["copy_in", "copy_in", "copy_out"]


async def test_a_port_of_the_box_is_reached_from_here(
    stage: Stage, terminal: Terminal, until: Until, state_dir: Path
) -> None:
    async with running(stage, until) as session:
        server = terminal.start("shell", session, "python3", "-c", SERVER)
        assert server.stdout is not None
        there = int(await asyncio.to_thread(server.stdout.readline))
        forwarder = terminal.start("port", session, f"{there}:0")
        assert forwarder.stderr is not None
        said = (await asyncio.to_thread(forwarder.stderr.readline)).decode()
        here = int(said.partition("127.0.0.1:")[2].partition(" ")[0])

        async def asked(number: int) -> bytes:
            reader, writer = await asyncio.open_connection("127.0.0.1", here)
            writer.write(b"later:" + b"%d" % number * 40_000)
            writer.write_eof()
            got = await reader.read()
            writer.close()
            return got

        async with asyncio.timeout(WAIT_S):
            answers = await asyncio.gather(*(asked(number) for number in range(12)))
        assert answers == [(b"later:" + b"%d" % number * 40_000)[::-1] for number in range(12)]
        with socket.create_connection(("127.0.0.1", here), WAIT_S) as client:
            client.sendall(b"to and fro")
            assert client.recv(100) == b"to and fro"
            forwarder.send_signal(signal.SIGINT)
            assert await asyncio.to_thread(forwarder.wait, WAIT_S) == 130
        forwarder.communicate()
        left = terminal.start("port", session, f"{there}:0")
        assert left.stderr is not None
        await asyncio.to_thread(left.stderr.readline)
        left.send_signal(signal.SIGHUP)
        assert await asyncio.to_thread(left.wait, WAIT_S) == 130
        left.communicate()
        server.send_signal(signal.SIGINT)
        await asyncio.to_thread(server.communicate, None, WAIT_S)
        ends = [detail for action, detail in audited(state_dir, session) if action == "port_end"]
        assert ends == ["13 connections", "0 connections"]


async def test_of_an_ended_session_what_is_kept_of_its_copy_is_read_and_written(
    stage: Stage, tmp_path: Path, state_dir: Path, embedded: Embedded
) -> None:
    settings = Settings(state_dir=state_dir, redis_url=embedded.redis_url)
    script = [bash("mkdir made; echo x > made/file; ln -s /etc/passwd link"), Turn("done")]
    session = (await stage.play(script, copy=True, keep="always")).result.session_id

    await copy_out(settings, session, "made", str(tmp_path / "out"))
    assert (tmp_path / "out" / "file").read_text() == "x\n"
    with pytest.raises(NotCopied, match="not below /workspace"):
        await copy_out(settings, session, "/etc/passwd", str(tmp_path))
    (tmp_path / "new.txt").write_text("new\n")
    await copy_in(settings, session, str(tmp_path / "new.txt"), "made/renamed.txt")
    await copy_out(settings, session, "made/renamed.txt", str(tmp_path / "again.txt"))
    assert (tmp_path / "again.txt").read_text() == "new\n"
    with pytest.raises(NoBox, match="has no box now"):
        await Sitting(settings, session, (), has_tty=False).run()
    with pytest.raises(NoBox, match="no private copy of it is kept"):
        await copy_out(settings, "20300131-120000-aaaaaaaa", "a.txt", str(tmp_path))
