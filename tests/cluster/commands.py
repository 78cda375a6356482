"""The `sandhog` command as a process of a test: what it is started with, what it says, what it leaves behind."""

import contextlib
import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import docker

from coordinator.endpoint.scripted import Script, ScriptedEndpoint

SANDHOG = [sys.executable, "-c", "from coordinator.start import main; main()"]
REMOVAL_S = 20.0
SECRET = "sk-test-0123456789abcdef0123456789abcdef"


def environment(endpoint: ScriptedEndpoint, state_dir: Path, **variables: str) -> dict[str, str]:
    """What a command knows that works in a state directory and asks an endpoint; `variables` are more, or others."""
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(state_dir),
        "OPENAI_BASE_URL": endpoint.base_url,
        "OPENAI_API_KEY": SECRET,
        "SANDHOG_MODEL": "scripted",
        "SANDHOG_STATE_DIR": str(state_dir),
        "PYTHONPATH": str(Path(__file__).parents[2]),
        **variables,
    }


@contextlib.contextmanager
def running(script: Script, state_dir: Path, *arguments: str, **variables: str) -> Iterator[subprocess.Popen[str]]:
    """A `sandhog` process against a scripted endpoint of its own."""
    with ScriptedEndpoint(script) as endpoint, started(endpoint, state_dir, *arguments, **variables) as process:
        yield process


@contextlib.contextmanager
def started(
    endpoint: ScriptedEndpoint, state_dir: Path, *arguments: str, **variables: str
) -> Iterator[subprocess.Popen[str]]:
    """A `sandhog` process against an endpoint; it is killed should it still run at the end."""
    process = subprocess.Popen(
        [*SANDHOG, *arguments],
        env=environment(endpoint, state_dir, **variables),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def hears_hang_ups() -> None:
    """In a new process: let it hear of them also where the tests themselves were started with `nohup`."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def hung_up(
    endpoint: ScriptedEndpoint, state_dir: Path, is_time: Callable[[], bool], *arguments: str, limit_s: float = 240.0
) -> int:
    """Run `sandhog` on a terminal of its own, which is closed when it is time; its exit code."""
    pid, terminal = pty.fork()
    if pid == 0:
        try:
            hears_hang_ups()
            os.execvpe(SANDHOG[0], [*SANDHOG, *arguments], environment(endpoint, state_dir, TERM="xterm"))
        finally:
            os._exit(127)
    shown, deadline = b"", time.monotonic() + limit_s
    try:
        while not is_time():
            assert time.monotonic() < deadline, shown.decode(errors="replace")
            if select.select([terminal], [], [], 0.1)[0]:
                shown += os.read(terminal, 65_536)
        os.close(terminal)
        found, status = 0, 0
        while found == 0:
            assert time.monotonic() < deadline, shown.decode(errors="replace")
            time.sleep(0.1)
            found, status = os.waitpid(pid, os.WNOHANG)
    except BaseException:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        raise
    return os.waitstatus_to_exitcode(status)


def ended(process: subprocess.Popen[str]) -> tuple[dict[str, Any], str]:
    """Wait for the process; its one JSON object and what it wrote to stderr."""
    out, err = process.communicate(timeout=120)
    assert out.count("\n") == 1, f"exactly one line on stdout: {out!r}\n{err}"
    return json.loads(out), err


def leftovers(state_dir: Path) -> list[str]:
    """What a finished command left behind but transcripts, the guest folder and results."""
    found = containers(state_dir)
    deadline = time.monotonic() + REMOVAL_S
    while found and time.monotonic() < deadline:
        # The engine takes a moment to remove what has ended, most of all with gVisor.
        time.sleep(0.2)
        found = containers(state_dir)
    found += [f"run {path.name}" for path in (state_dir / "runs").iterdir()] if (state_dir / "runs").exists() else []
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            try:
                environment = (process / "environ").read_bytes()
            except OSError:
                continue
            if f"SANDHOG_STATE_DIR={state_dir}".encode() in environment:
                found.append(f"process {process.name}")
    return found


def containers(state_dir: Path) -> list[str]:
    """The containers of a command of this test that are still there."""
    with contextlib.closing(docker.from_env()) as client:
        return [
            f"container {one.name}"
            for one in client.containers.list(all=True, ignore_removed=True)
            if is_ours(one, state_dir)
        ]


def is_ours(container: Any, state_dir: Path) -> bool:
    """Whether a container was started by a command of this test: its guest folder lies in the state directory."""
    return any(str(mount.get("Source", "")).startswith(str(state_dir)) for mount in container.attrs["Mounts"])
