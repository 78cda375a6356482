"""Requests in short, for tests of boxes."""

from collections.abc import Callable
from typing import Any

import pytest

from sandbox.box import Box
from sandbox.errors import GuestRefused, RefusalCode
from sandbox.requests import (
    Background,
    BackgroundOutput,
    CallMark,
    Edit,
    EditRequest,
    ReadAnswer,
    ReadRequest,
    RunAnswer,
    WriteRequest,
)

Run = Callable[..., RunAnswer]
MakeMark = Callable[..., CallMark]
MIB = 1024 * 1024
TICK = "for i in $(seq 1000); do [ -e {} ] && break; sleep 0.01; done"
"""Waits for a file, at most ten seconds."""


class Files:
    """File requests of one session in short."""

    def __init__(self, box: Box, mark: MakeMark) -> None:
        self.box = box
        self._mark = mark

    def read(self, path: str, **fields: Any) -> ReadAnswer:
        return self.box.read(ReadRequest(self._mark(), path, **fields))

    def write(self, path: str, content: bytes, expected: Any = None, **fields: Any) -> Any:
        return self.box.write(WriteRequest(self._mark(), path, content, expected, **fields))

    def edit(self, path: str, *pairs: tuple[str, str], expected: Any = None) -> Any:
        edits = tuple(Edit(old, new) for old, new in pairs)
        return self.box.edit(EditRequest(self._mark(), path, edits, expected))

    def refusal(self, action: Callable[[], object]) -> RefusalCode:
        with pytest.raises(GuestRefused) as refused:
            action()
        return refused.value.code


def output_of(box: Box, name: str, offset: int = 0, max_bytes: int = MIB, session: str = "s") -> BackgroundOutput:
    return box.background_output(session, name, offset, max_bytes)


def printed(box: Box, name: str, run: Run, until: bytes) -> BackgroundOutput:
    """The output of a background command once it is so, looked at a thousand times at most."""
    for _ in range(1000):
        output = output_of(box, name)
        if output.data == until:
            return output
        run("sleep 0.01")
    raise AssertionError(f"{name} printed {output.data!r}")


def end_of(box: Box, name: str, run: Run) -> Background:
    """The state of a background command once it is over, looked at a thousand times at most."""
    for _ in range(1000):
        state = output_of(box, name).state
        if not state.is_running:
            return state
        run("sleep 0.01")
    raise AssertionError(f"{name} goes on: {state}")


def started(run: Run, command: str, **fields: object) -> str:
    answer = run(command, background=True, **fields)
    assert answer.background_id is not None
    return answer.background_id


def code_of(act: Callable[[], object]) -> RefusalCode:
    with pytest.raises(GuestRefused) as refused:
        act()
    return refused.value.code


def is_alive(run: Run, pid: int) -> bool:
    """Whether a process runs; one that is dead may still wait to be reaped."""
    return run(f"grep State /proc/{pid}/status | grep -v Z").exit_code == 0
