"""Messages of a person, typed on a pseudo-terminal or coming from a pipe."""

import asyncio
import contextlib
import io
import os
import threading
from collections.abc import Callable, Iterator
from typing import TextIO

import pytest

from coordinator.commands.messages import ChatSignals, Messages
from coordinator.commands.typed_lines import TypedLines
from coordinator.session.event_fields import SessionStatus
from coordinator.session.session_events import TurnEnded


class Screen:
    """Nothing else draws."""

    def paused(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()


Make = Callable[..., Messages]


@pytest.fixture
def piped() -> Iterator[Make]:
    opened: list[TextIO] = []

    def make(text: str, *, is_chat: bool = True) -> Messages:
        reading, writing = os.pipe()
        os.write(writing, text.encode())
        os.close(writing)
        opened.append(os.fdopen(reading, "r"))
        return Messages(TypedLines(opened[-1]), io.StringIO(), Screen(), asyncio.Event(), is_chat=is_chat)

    yield make
    for stream in opened:
        stream.close()


@pytest.fixture
def typed() -> Iterator[tuple[Make, Callable[[str], None]]]:
    master, slave = os.openpty()
    with os.fdopen(slave, "r") as stream:

        def make(*, is_chat: bool = True) -> Messages:
            return Messages(TypedLines(stream), io.StringIO(), Screen(), asyncio.Event(), is_chat=is_chat)

        yield make, lambda text: void(os.write(master, text.encode()))
        os.close(master)
        for thread in threading.enumerate():
            if thread.name == "typed":
                thread.join(60)


def void(_: object) -> None: ...


def turn(status: SessionStatus = "completed", reason: str = "done") -> TurnEnded:
    return TurnEnded(status=status, stop_reason=reason, text="")


async def all_of(messages: Messages) -> list[str]:
    found = []
    while (message := await messages.next(turn())) is not None:
        found.append(message)
    return found


async def test_a_piped_line_is_a_message_and_a_backslash_goes_on(piped: Make) -> None:
    assert await all_of(piped("one\n\n  \ntwo \\\nlines\\\nmore\nlast")) == ["one", "two \nlines\nmore", "last"]
    assert await all_of(piped("ends\\\n")) == ["ends"]
    assert await all_of(piped("")) == []


async def test_a_blank_line_ends_a_run(piped: Make) -> None:
    assert await all_of(piped("more\n\nnot this\n", is_chat=False)) == ["more"]


@pytest.mark.parametrize(
    ("status", "reason", "chat", "run"),
    [
        ("completed", "done", True, True),
        ("stopped", "limit: steps", True, True),
        ("cancelled", "cancelled", True, False),
        ("failed", "model: away", True, False),
        ("failed", "box: none", False, False),
        ("failed", "storage: full", False, False),
    ],
)
async def test_what_may_follow_a_turn(piped: Make, status: SessionStatus, reason: str, chat: bool, run: bool) -> None:
    assert (await piped("x\n").next(turn(status, reason)) is not None) == chat
    assert (await piped("x\n", is_chat=False).next(turn(status, reason)) is not None) == run


async def test_what_is_pasted_is_one_message(typed: tuple[Make, Callable[[str], None]]) -> None:
    make, types = typed
    messages = make()
    types("first line\nsecond line\n")
    assert await messages.next() == "first line\nsecond line"
    types("alone\n")
    assert await messages.next() == "alone"
    types("\x04")
    assert await messages.next() is None


async def test_enter_alone_ends_a_run(typed: tuple[Make, Callable[[str], None]]) -> None:
    make, types = typed
    messages = make(is_chat=False)
    types("\n")
    assert await messages.next(turn()) is None
    assert "Enter to end" in str(messages.questions.getvalue())  # type: ignore[attr-defined]


async def test_ctrl_c_ends_the_step_and_then_the_chat(piped: Make) -> None:
    signals = ChatSignals()
    messages = piped("one\ntwo\n")
    messages.signals, messages.stop = signals, signals.leave
    second = asyncio.Event()
    assert await messages.next() == "one"
    signals.came(second)
    assert signals.turn.is_set()
    assert not signals.leave.is_set()
    assert await messages.next(turn("cancelled")) == "two"
    assert not signals.turn.is_set()
    signals.came(second)
    signals.came(second)
    assert signals.leave.is_set()
    assert not second.is_set()
    signals.came(second)
    assert second.is_set()
    assert await messages.next(turn("cancelled")) is None


async def test_ctrl_c_where_a_message_is_asked_for_leaves(typed: tuple[Make, Callable[[str], None]]) -> None:
    make, _ = typed
    signals = ChatSignals()
    messages = make()
    messages.signals, messages.stop = signals, signals.leave
    asked = asyncio.create_task(messages.next())
    await asyncio.sleep(0)
    signals.came(asyncio.Event())
    assert await asked is None
