"""A server on the node itself (`"where": "worker"`): a child with a user of its own and none of the node's secrets."""

import asyncio
import contextlib
import os
import signal
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from worker.beneath import remove_tree
from worker.mcp.lines import LINE_BYTES
from worker.own_process import PASSED_ON, end_all_of
from worker.own_wire import own_uid

PRINTED_BYTES = 8_000
LAST_WORDS_S = 0.5
GRACE_S = 2.0
"""How long a server may take to end once its input is closed."""


class ProcessPipe:
    """One server's process. For the loop's thread only."""

    def __init__(self, process: asyncio.subprocess.Process, home: Path) -> None:
        self._process = process
        self._home = home
        self._is_closed = False
        self.printed = b""
        """The end of what it said on standard error."""
        self._printing = asyncio.create_task(self._drain(), name="mcp stderr")

    @classmethod
    async def start(cls, command: str, args: tuple[str, ...], env: Mapping[str, str], scratch: Path) -> "ProcessPipe":
        """Start a server.

        Raises:
            OSError: it cannot be.
        """
        home = await asyncio.to_thread(_make_home, scratch)
        passed = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
        process = await asyncio.create_subprocess_exec(
            # Safe path: nothing is imported from the directory it runs in.
            sys.executable, "-P", "-m", "worker.mcp.launch", str(home), command, *args,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
            env={**passed, "HOME": str(home), "TMPDIR": str(home), **env},
            start_new_session=True, limit=LINE_BYTES,
        )  # fmt: skip
        return cls(process, home)

    @property
    def last_words(self) -> str:
        """The end of what it said on standard error."""
        return self.printed.decode(errors="replace")

    async def read(self) -> bytes:
        """Return the next line; empty at the end."""
        assert self._process.stdout is not None
        try:
            line = await self._process.stdout.readline()
        except ValueError:
            # Longer than the bound: what follows in it cannot be told from a new message.
            return b""
        if not line:
            # Its last words may be on their way still.
            await asyncio.wait({self._printing}, timeout=LAST_WORDS_S)
        return line

    async def write(self, data: bytes) -> None:
        """Send bytes."""
        assert self._process.stdin is not None
        self._process.stdin.write(data)
        await self._process.stdin.drain()

    async def close(self) -> None:
        """End the process with all it started."""
        if self._is_closed:
            return
        self._is_closed = True
        assert self._process.stdin is not None
        self._process.stdin.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(GRACE_S):
                await self._process.wait()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        if os.geteuid() == 0:
            await asyncio.to_thread(end_all_of, own_uid(self._process.pid))
        await self._process.wait()
        self._printing.cancel()
        with contextlib.suppress(OSError):
            await asyncio.to_thread(remove_tree, self._home)

    async def _drain(self) -> None:
        assert self._process.stderr is not None
        while chunk := await self._process.stderr.read(65_536):
            self.printed = (self.printed + chunk)[-PRINTED_BYTES:]


def _make_home(scratch: Path) -> Path:
    with contextlib.suppress(FileExistsError):
        scratch.mkdir(mode=0o711)
        scratch.chmod(0o711)
    return Path(tempfile.mkdtemp(prefix="mcp-", dir=scratch))
