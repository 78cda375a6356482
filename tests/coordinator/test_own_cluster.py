"""What signals mean to a command that runs sessions: real ones, to this process."""

import asyncio
import os
import signal
from collections.abc import Iterator

import pytest

from coordinator.commands.messages import ChatSignals
from coordinator.commands.own_cluster import Signals


@pytest.fixture(autouse=True)
def _nothing_of_them_stays() -> Iterator[None]:
    # Also where the tests themselves were started with `nohup`.
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


async def come(*numbers: int) -> None:
    """Have signals come, one after the other."""
    for number in numbers:
        os.kill(os.getpid(), number)
        # The loop hears of a signal by a byte that it reads in its next round.
        for _ in range(3):
            await asyncio.sleep(0)


async def test_a_closed_terminal_is_one_ctrl_c_however_often_it_is_told() -> None:
    signals = Signals()
    await come(signal.SIGHUP, signal.SIGHUP)
    assert (signals.first.is_set(), signals.second.is_set()) == (True, False)
    await come(signal.SIGINT)
    assert signals.second.is_set()


async def test_what_is_not_to_hear_of_its_terminal_does_not() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signals = Signals()
    await come(signal.SIGHUP)
    assert not signals.first.is_set()
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN


async def test_a_closed_terminal_ends_a_chat_and_its_turn() -> None:
    signals, chat = Signals(), ChatSignals()
    chat.take(signals)
    chat.runs()
    await come(signal.SIGHUP, signal.SIGHUP)
    assert (chat.turn.is_set(), chat.leave.is_set(), signals.second.is_set()) == (True, True, False)
