"""The terminal's questions, on a real pseudo-terminal and on a pipe."""

import asyncio
import contextlib
import io
import os
import select
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TextIO

import pytest

from coordinator.commands.terminal import TerminalApprover, is_terminal
from coordinator.commands.typed_lines import TypedLines
from coordinator.session.approvals import Decided
from worker.contract.approvals import ApprovalRequest

REQUEST = ApprovalRequest(session="s", step=1, index=0, tool="Bash", digest="d", text="make", reason="why")


@dataclass
class Screen:
    """Knows whether something else may draw."""

    is_paused: bool = False

    def paused(self) -> AbstractContextManager[None]:
        @contextlib.contextmanager
        def pause() -> Iterator[None]:
            self.is_paused = True
            yield
            self.is_paused = False

        return pause()


@dataclass
class Seat:
    """A person before a terminal."""

    answers: TextIO
    keyboard: int
    questions: io.StringIO = field(default_factory=io.StringIO)
    screen: Screen = field(default_factory=Screen)
    cancelled: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.lines = TypedLines(self.answers)
        self.approver = TerminalApprover(self.screen, self.cancelled, self.lines, self.questions)

    def ask(self, request: ApprovalRequest = REQUEST) -> "asyncio.Task[Decided | None]":
        return asyncio.create_task(self.approver.ask(request))

    async def sees(self, words: str, times: int = 1) -> None:
        async with asyncio.timeout(60):
            while self.questions.getvalue().count(words) < times:
                await asyncio.sleep(0.005)

    def types(self, text: str) -> None:
        os.write(self.keyboard, text.encode())

    async def has_typed(self) -> None:
        """Wait until a line that was typed has come to the terminal's other side: the kernel passes it on later."""
        async with asyncio.timeout(60):
            while not select.select([self.answers], [], [], 0)[0]:
                await asyncio.sleep(0.005)


@pytest.fixture
def terminal() -> Iterator[Seat]:
    master, slave = os.openpty()
    with os.fdopen(slave, "r") as answers:
        yield Seat(answers, master)
        # Ends a read that is still under way. It must be over before its descriptor is somebody else's.
        os.close(master)
        for thread in threading.enumerate():
            if thread.name == "typed":
                thread.join(60)


@pytest.fixture
def pipe() -> Iterator[Callable[[str], Seat]]:
    """Answers that lie ready, and the end of the input behind them."""
    opened: list[TextIO] = []

    def make(text: str) -> Seat:
        reading, writing = os.pipe()
        os.write(writing, text.encode())
        os.close(writing)
        opened.append(os.fdopen(reading, "r"))
        return Seat(opened[-1], -1)

    yield make
    for stream in opened:
        stream.close()


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("y\n", Decided(True, by="a person at the terminal")),
        (" YES \n", Decided(True, by="a person at the terminal")),
        ("a\n", Decided(True, by="a person at the terminal, for this session", is_lasting=True)),
        ("n\n", Decided(False, by="a person at the terminal", note="a person said no")),
        ("n use make instead\n", Decided(False, by="a person at the terminal", note="use make instead")),
    ],
)
async def test_what_is_typed_is_the_answer(terminal: Seat, typed: str, expected: Decided) -> None:
    task = terminal.ask()
    await terminal.sees("allow?")
    assert terminal.screen.is_paused, "nothing else draws meanwhile"
    terminal.types(typed)
    assert await task == expected
    assert not terminal.screen.is_paused


async def test_what_is_no_answer_is_asked_again(terminal: Seat) -> None:
    task = terminal.ask()
    await terminal.sees("allow?")
    terminal.types("perhaps\n")
    await terminal.sees("allow?", times=2)
    terminal.types("\n")
    await terminal.sees("allow?", times=3)
    terminal.types("y\n")
    decided = await task
    assert decided is not None
    assert decided.is_allowed


async def test_what_was_typed_before_the_question_is_not_its_answer(terminal: Seat) -> None:
    terminal.types("y\nalw")
    await terminal.has_typed()
    task = terminal.ask()
    await terminal.sees("allow?")
    terminal.types("n\n")
    decided = await task
    assert decided is not None
    assert not decided.is_allowed


async def test_a_line_typed_for_an_earlier_question_answers_no_later_one(terminal: Seat) -> None:
    first = terminal.ask()
    await terminal.sees("allow?")
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    await terminal.sees("no longer asked here")
    terminal.types("y\n")
    reading = terminal.lines._reading
    assert reading is not None
    await reading
    second = terminal.ask()
    await terminal.sees("allow?", times=2)
    terminal.types("n no\n")
    assert await second == Decided(False, by="a person at the terminal", note="no")


async def test_one_read_serves_all_questions(terminal: Seat) -> None:
    for asked in range(1, 4):
        task = terminal.ask()
        await terminal.sees("allow?", times=asked)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    task = terminal.ask()
    await terminal.sees("allow?", times=4)
    terminal.types("y\n")
    async with asyncio.timeout(60):
        decided = await task
    assert decided is not None
    assert decided.is_allowed


async def test_a_cancelled_session_is_a_no(terminal: Seat) -> None:
    task = terminal.ask()
    await terminal.sees("allow?")
    terminal.cancelled.set()
    decided = await task
    assert decided is not None
    assert (decided.is_allowed, decided.by) == (False, "nobody answered")


@pytest.mark.parametrize("text", ["", "perhaps\n", "perhaps"])
async def test_the_end_of_the_input_is_a_no(pipe: Callable[[str], Seat], text: str) -> None:
    decided = await pipe(text).ask()
    assert decided is not None
    assert (decided.is_allowed, decided.by) == (False, "nobody answered")


async def test_answers_that_lie_ready_in_a_pipe_are_taken_in_turn(pipe: Callable[[str], Seat]) -> None:
    seat = pipe("y\nn\n")
    decisions = [await seat.ask(), await seat.ask()]
    assert [decided.is_allowed for decided in decisions if decided] == [True, False]


async def test_the_question_says_what_always_would_mean(terminal: Seat) -> None:
    for request, scope in [
        (REQUEST, "always, this very call"),
        (REQUEST.model_copy(update={"lasting": [["make"]]}), "always, these commands"),
    ]:
        task = terminal.ask(request)
        await terminal.sees(scope)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def test_a_terminal_is_all_of_its_streams(terminal: Seat) -> None:
    assert is_terminal(terminal.answers)
    assert not is_terminal(terminal.answers, terminal.questions)
