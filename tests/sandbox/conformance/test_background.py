"""Background commands on every engine."""

import os
import threading
from contextlib import suppress

import pytest

from sandbox.box import Box
from sandbox.errors import RefusalCode
from sandbox.requests import Background
from tests.conftest import Until
from tests.sandbox.asking import TICK, Run, code_of, end_of, output_of, printed, started

NAP = 200_000 + os.getpid()
"""How long the sleeps of this test run sleep: nobody else's on this machine do so long."""


def test_it_is_answered_while_it_runs_and_read_by_offset(run: Run, box: Box) -> None:
    answer = run(f"rm -f go; echo one; {TICK.format('go')}; echo two >&2; exit 3", background=True, timeout_ms=1)
    assert (answer.exit_code, answer.signal, answer.timed_out) == (None, None, False)
    name = str(answer.background_id)
    first = printed(box, name, run, b"one\n")
    assert (first.start, first.state.is_running) == (0, True)
    assert first.state.pids[0] == answer.left_running[0]
    run("touch go")
    ended = end_of(box, name, run)
    assert (ended.exit_code, ended.signal, ended.was_killed, ended.total_bytes) == (3, None, False, 8)
    assert output_of(box, name, 4).data == b"two\n"
    assert output_of(box, name, 4).data == b"two\n"
    assert output_of(box, name, 0, max_bytes=3).data == b"one"
    assert output_of(box, name, 99).start == 8


def test_kill_ends_the_whole_tree_and_the_deaf(run: Run, box: Box) -> None:
    name = started(
        run,
        f"trap '' TERM; setsid sh -c 'sleep {NAP}1 & sleep {NAP}2' & (sleep {NAP}3 &); echo up; "
        f"sleep {NAP}4; sleep {NAP}5",
    )
    printed(box, name, run, b"up\n")
    state = box.kill_background("s", name)
    assert (state.is_running, state.was_killed, state.pids) == (False, True, ())
    assert run(f"ps -ef | grep -c '[s]leep {NAP}'").stdout.head == b"0\n"
    assert output_of(box, name).data.startswith(b"up\n")
    assert box.kill_background("s", name) == Background(
        **{**vars(state), "age_ms": pytest.approx(state.age_ms, abs=1e5)}
    )


def test_freeze_and_thaw_hold_for_background_commands(run: Run, box: Box, until: Until) -> None:
    name = started(run, "while :; do echo; sleep 0.01; done")
    box.freeze()
    assert code_of(lambda: box.kill_background("s", name)) is RefusalCode.FROZEN
    # What it had written before it stood still may yet lie in the pipe.
    sizes = [-1]

    def is_drained() -> bool:
        threading.Event().wait(0.1)
        sizes.append(output_of(box, name).state.total_bytes)
        return sizes[-1] == sizes[-2]

    until(is_drained, "nothing more comes out of the pipe", 60)
    before = output_of(box, name)
    assert before.state.is_running
    threading.Event().wait(0.2)
    assert output_of(box, name).state.total_bytes == before.state.total_bytes
    box.thaw()
    until(lambda: output_of(box, name).state.total_bytes > before.state.total_bytes, "it goes on", 60)
    box.kill_background("s", name)


def test_a_broken_link_neither_ends_nor_repeats_it(run: Run, box: Box) -> None:
    name = started(run, "echo before; sleep 100")
    printed(box, name, run, b"before\n")
    assert box._link is not None
    box._link.close()
    assert output_of(box, name).data == b"before\n"
    killers = [threading.Thread(target=lambda: box.kill_background("s", name)) for _ in range(3)]
    for killer in killers:
        killer.start()
    with suppress(AttributeError):
        box._link.close()
    for killer in killers:
        killer.join(60)
    assert not output_of(box, name).state.is_running
