"""Commands on every engine: what comes back, and what is left."""

import os
import threading
from collections.abc import Callable

import pytest

from sandbox.box import Box
from sandbox.errors import GuestRefused, RefusalCode
from sandbox.requests import CallMark, RunAnswer, RunRequest
from tests.conftest import Until
from tests.sandbox.asking import is_alive

Run = Callable[..., RunAnswer]
MakeMark = Callable[..., CallMark]
NAP = 100_000 + os.getpid()
"""How long the sleeps of this test run sleep: nobody else's on this machine do so long."""


def test_both_streams_and_the_exit_code_come_back(run: Run) -> None:
    answer = run("echo out; echo err >&2; exit 3")
    assert (answer.stdout.head, answer.stderr.head, answer.exit_code) == (b"out\n", b"err\n", 3)
    assert answer.signal is None
    assert not answer.timed_out


def test_death_by_a_signal_is_told_by_its_number(run: Run) -> None:
    answer = run("kill -TERM $$")
    assert (answer.exit_code, answer.signal) == (None, 15)


def test_the_cwd_is_kept_between_commands_of_one_session(run: Run, here: str, home: str) -> None:
    assert run("mkdir -p sub && cd sub").cwd == f"{here}/sub"
    assert run("pwd").stdout.head == f"{here}/sub\n".encode()
    assert run("pwd", session="another").stdout.head == f"{home}\n".encode()


def test_exit_and_a_failing_command_keep_the_cwd_and_end_nothing(run: Run, here: str) -> None:
    run("mkdir -p sub")
    assert run("cd sub; exit 7").exit_code == 7
    assert run("pwd").stdout.head == f"{here}/sub\n".encode()
    assert run("exec false").exit_code == 1
    assert run("pwd").stdout.head == f"{here}/sub\n".encode()


def test_a_cwd_that_is_gone_is_refused_once_and_the_session_is_back_in_its_workspace(run: Run, home: str) -> None:
    run("mkdir -p gone && cd gone")
    run("rmdir ../gone")
    with pytest.raises(GuestRefused) as refused:
        run("echo here")
    assert refused.value.code is RefusalCode.NOT_FOUND
    assert run("pwd").stdout.head == f"{home}\n".encode()


@pytest.mark.parametrize(
    ("command", "printed"),
    [
        ("cat <<END\nhello\nEND", b"hello\n"),
        ("cat <<'END'\n$HOME \\ '\nEND", b"$HOME \\ '\n"),
        ("echo a # comment", b"a\n"),
        ("echo 'it''s' \"a b\"", b"its a b\n"),
        ("for i in 1 2; do echo $i; done", b"1\n2\n"),
        ("", b""),
    ],
)
def test_the_text_is_run_as_typed(run: Run, command: str, printed: bytes) -> None:
    answer = run(command)
    assert (answer.stdout.head, answer.stderr.head, answer.exit_code) == (printed, b"", 0)


def test_standard_input_is_closed(run: Run) -> None:
    assert run('cat; read x; echo "[$x]"').stdout.head == b"[]\n"


def test_the_cancel_of_a_call_ends_what_it_left_running(run: Run, box: Box, mark: MakeMark, until: Until) -> None:
    given = mark()
    answer = run("sleep 100 &", mark=given)
    assert box.cancel(given.key)
    assert not box.cancel(given.key)
    until(lambda: not is_alive(run, answer.left_running[0]), "what it left is gone", 60)


def test_a_timeout_ends_the_whole_tree_and_keeps_the_output(run: Run) -> None:
    command = (
        f"echo before; setsid sleep {NAP}0 & (setsid sh -c 'sleep {NAP}1 & sleep {NAP}2' &) ; "
        f"env -i sleep {NAP}3 & sleep {NAP}4"
    )
    answer = run(command, timeout_ms=2000)
    assert answer.timed_out
    assert answer.stdout.head == b"before\n"
    assert answer.left_running == ()
    assert run(f"ps -ef | grep -c '[s]leep {NAP}'").stdout.head == b"0\n"


def test_a_command_that_ignores_sigterm_is_killed(run: Run) -> None:
    answer = run("trap '' TERM; echo deaf; while :; do sleep 0.1; done", timeout_ms=2000)
    assert (answer.timed_out, answer.signal, answer.stdout.head) == (True, 9, b"deaf\n")


def test_cancel_ends_a_running_command(run: Run, box: Box, mark: MakeMark) -> None:
    given = mark()
    printed = threading.Event()
    answers: list[RunAnswer] = []
    command = "head -c 40000 /dev/zero; sleep 100"
    thread = threading.Thread(target=lambda: answers.append(run(command, lambda _: printed.set(), mark=given)))
    thread.start()
    assert printed.wait(60)
    assert box.cancel(given.key)
    thread.join(60)
    assert answers[0].cancelled
    assert answers[0].stdout.total_bytes > 32_768
    assert not box.cancel("no such call")


def test_much_output_is_streamed_whole_and_in_order(run: Run) -> None:
    parts: list[bytes] = []
    answer = run("seq 1 400000", parts.append)
    assert b"".join(parts) == b"".join(b"%d\n" % n for n in range(1, 400_001))
    assert answer.streamed
    assert answer.spill_complete
    assert answer.stdout.total_lines == 400_000


def test_little_output_is_not_streamed(run: Run) -> None:
    parts: list[bytes] = []
    answer = run("seq 1 100", parts.append)
    assert parts == []
    assert not answer.streamed
    assert answer.spill_complete


def test_an_argv_runs_without_a_shell_and_keeps_the_cwd(box: Box, run: Run, mark: MakeMark, here: str) -> None:
    run("mkdir -p sub; cd sub")
    answer = box.run(RunRequest(mark(), argv=("printf", "%s|", "a b", "$HOME")))
    assert (answer.stdout.head, answer.cwd) == (b"a b|$HOME|", f"{here}/sub")
    answer = box.run(RunRequest(mark(), argv=("pwd",), cwd="/"))
    assert (answer.stdout.head, answer.cwd) == (b"/\n", f"{here}/sub")


@pytest.mark.parametrize("argv", [("no-such-program",), ("/no/such/program",), ("./sub",)])
def test_a_program_that_cannot_run_is_refused(box: Box, run: Run, mark: MakeMark, argv: tuple[str, ...]) -> None:
    run("mkdir -p sub")
    with pytest.raises(GuestRefused) as refused:
        box.run(RunRequest(mark(), argv=argv))
    assert refused.value.code in (RefusalCode.NOT_FOUND, RefusalCode.ACCESS_DENIED)


@pytest.mark.parametrize("command", ["x" * 100_001, "echo \0"], ids=["too long", "NUL"])
def test_a_text_no_shell_can_take_is_refused(run: Run, command: str) -> None:
    with pytest.raises(GuestRefused) as refused:
        run(command)
    assert refused.value.code is RefusalCode.INVALID_PARAM


def test_environment_of_one_command(run: Run) -> None:
    assert run("echo $X", env={"X": "one"}).stdout.head == b"one\n"
    assert run("export Y=1; echo $X").stdout.head == b"\n"
    assert run("echo $Y").stdout.head == b"\n"


def test_many_commands_at_once(run: Run) -> None:
    answers: dict[int, bytes] = {}

    def one(number: int) -> None:
        answers[number] = run(f"sleep 0.0{number % 7}; echo {number}").stdout.head

    threads = [threading.Thread(target=one, args=(number,)) for number in range(24)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert answers == {number: b"%d\n" % number for number in range(24)}


def test_frozen_commands_stand_still_and_so_does_their_time(run: Run, box: Box) -> None:
    began = threading.Event()
    answers: list[RunAnswer] = []
    command = "head -c 40000 /dev/zero; for i in 1 2 3 4 5 6; do sleep 0.1; echo >> ticks; done"
    thread = threading.Thread(target=lambda: answers.append(run(command, lambda _: began.set(), timeout_ms=3000)))
    thread.start()
    assert began.wait(60)
    box.freeze()
    with pytest.raises(GuestRefused) as refused:
        run("true")
    assert refused.value.code is RefusalCode.FROZEN
    # Longer than its limit, so that only a limit that stands still too lets it end by itself.
    thread.join(3.5)
    assert thread.is_alive()
    box.thaw()
    thread.join(60)
    assert not answers[0].timed_out
    assert run("wc -l < ticks").stdout.head.strip() == b"6"
