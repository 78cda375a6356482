"""The node side's program that packs and unpacks trees on this machine, as a child: carrying → **program** → disk."""

import sys
from asyncio import create_subprocess_exec
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Self

from coordinator.visible import visible_line
from worker.contract.channels import CHUNK_BYTES

MAX_WORDS = 2_000


class TreeProgram:
    """One run of it; `start` makes one."""

    def __init__(self, process: Process) -> None:
        self._process = process

    @classmethod
    @asynccontextmanager
    async def start(cls, *words: str) -> AsyncIterator[Self]:
        """Yield one that runs; it has ended behind the block."""
        # Safe path: a module in the user's directory must not be taken for one of ours.
        argv = [sys.executable, "-P", "-m", "worker", *words]
        # A Ctrl-C is ours to act on.
        process = await create_subprocess_exec(*argv, stdin=PIPE, stdout=PIPE, stderr=PIPE, start_new_session=True)
        try:
            yield cls(process)
        finally:
            if process.returncode is None:
                process.kill()
            # What it still says is read, so that its pipes are closed.
            await process.communicate()

    async def read(self) -> bytes:
        """Return what it says next, at most a frame's worth; empty at the end."""
        assert self._process.stdout is not None
        return await self._process.stdout.read(CHUNK_BYTES)

    async def write(self, data: bytes) -> bool:
        """Give it bytes; False once it takes no more."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(data)
            await self._process.stdin.drain()
        except OSError:
            return False
        return True

    async def failure(self) -> str:
        """Say that nothing more comes, and return why it failed once it has ended; "" if it did not."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        _, said = await self._process.communicate()
        if not self._process.returncode:
            return ""
        words = visible_line(said.decode(errors="replace").strip(), MAX_WORDS)
        return words or f"the program ended with {self._process.returncode}"
