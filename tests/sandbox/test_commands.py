"""Commands in real boxes: what comes back, and what is left."""

import threading
import time
from collections.abc import Callable

import pytest

from sandbox.box import Box
from sandbox.errors import GuestRefused, RefusalCode
from sandbox.requests import CallMark, RunAnswer, RunRequest

pytestmark = pytest.mark.docker

Run = Callable[..., RunAnswer]


def is_alive(run: Run, pid: int) -> bool:
    """Whether a process runs; one that is dead may still wait to be reaped."""
    return run(f"grep State /proc/{pid}/status | grep -v Z").exit_code == 0


def test_both_streams_and_the_exit_code_come_back(run: Run) -> None:
    answer = run("echo out; echo err >&2; exit 3")
    assert (answer.stdout.head, answer.stderr.head, answer.exit_code) == (b"out\n", b"err\n", 3)
    assert answer.signal is None
    assert not answer.timed_out


def test_death_by_a_signal_is_told_by_its_number(run: Run) -> None:
    answer = run("kill -TERM $$")
    assert (answer.exit_code, answer.signal) == (None, 15)


def test_the_cwd_is_kept_between_commands_of_one_session(run: Run) -> None:
    assert run("mkdir -p sub && cd sub").cwd == "/workspace/sub"
    assert run("pwd").stdout.head == b"/workspace/sub\n"
    assert run("pwd", session="another").stdout.head == b"/workspace\n"


def test_exit_and_a_failing_command_keep_the_cwd_and_end_nothing(run: Run) -> None:
    run("mkdir -p sub")
    assert run("cd sub; exit 7").exit_code == 7
    assert run("pwd").stdout.head == b"/workspace/sub\n"
    assert run("exec false").exit_code == 1
    assert run("pwd").stdout.head == b"/workspace/sub\n"


def test_a_cwd_that_is_gone_is_refused_once_and_the_session_is_back_in_its_workspace(run: Run) -> None:
    run("mkdir -p gone && cd gone")
    run("rmdir ../gone")
    with pytest.raises(GuestRefused) as refused:
        run("echo here")
    assert refused.value.code is RefusalCode.NOT_FOUND
    assert run("pwd").stdout.head == b"/workspace\n"


def test_a_directory_only_the_agent_may_enter_can_be_the_cwd(run: Run) -> None:
    assert run("mkdir -p -m 700 own && cd own").cwd == "/workspace/own"
    assert run("pwd").stdout.head == b"/workspace/own\n"


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


def test_a_syntax_error_is_the_shells_own(run: Run) -> None:
    answer = run("if true; then echo")
    assert answer.exit_code != 0
    assert b"syntax error" in answer.stderr.head


def test_standard_input_is_closed(run: Run) -> None:
    assert run('cat; read x; echo "[$x]"', timeout_ms=5000).stdout.head == b"[]\n"


def test_git_commit_without_a_message_opens_no_editor(run: Run) -> None:
    answer = run("git init -q repo 2>&1; cd repo; git commit --allow-empty; echo $?; cd ..", timeout_ms=10_000)
    assert answer.stdout.head.endswith(b"1\n")
    assert not answer.timed_out


def test_a_background_process_does_not_hold_the_call_and_is_listed(run: Run, box: Box) -> None:
    answer = run("sleep 100 & echo hi", timeout_ms=20_000)
    assert answer.stdout.head == b"hi\n"
    assert answer.duration_ms < 5000
    assert len(answer.left_running) == 1
    assert answer.background_id is not None
    assert box.kill_background("s", answer.background_id).was_killed
    assert not is_alive(run, answer.left_running[0])


def test_a_background_process_without_our_pipes_is_listed_too(run: Run, box: Box) -> None:
    answer = run("setsid sleep 100 </dev/null >/dev/null 2>&1 9>&- & exit 0")
    assert len(answer.left_running) == 1
    assert not box.kill_background("s", str(answer.background_id)).is_running


def test_the_cancel_of_a_call_ends_what_it_left_running(run: Run, box: Box, mark: Callable[..., CallMark]) -> None:
    given = mark()
    answer = run("sleep 100 &", mark=given)
    assert box.cancel(given.key)
    assert not box.cancel(given.key)
    assert not is_alive(run, answer.left_running[0])


def test_a_timeout_ends_the_whole_tree_and_keeps_the_output(run: Run) -> None:
    command = "echo before; setsid sleep 100 & (setsid sh -c 'sleep 101 & sleep 102' &) ; env -i sleep 103 & sleep 104"
    began = time.monotonic()
    answer = run(command, timeout_ms=1000)
    assert time.monotonic() - began < 4
    assert answer.timed_out
    assert answer.stdout.head == b"before\n"
    assert answer.left_running == ()
    assert run("ps -ef | grep -c '[s]leep 10'").stdout.head == b"0\n"


def test_a_command_that_ignores_sigterm_is_killed(run: Run) -> None:
    answer = run("trap '' TERM; echo deaf; while :; do sleep 0.1; done", timeout_ms=300)
    assert (answer.timed_out, answer.signal, answer.stdout.head) == (True, 9, b"deaf\n")


def test_cancel_ends_a_running_command(run: Run, box: Box, mark: Callable[..., CallMark]) -> None:
    given = mark()
    printed = threading.Event()
    answers: list[RunAnswer] = []
    command = "head -c 40000 /dev/zero; sleep 100"
    thread = threading.Thread(target=lambda: answers.append(run(command, lambda _: printed.set(), mark=given)))
    thread.start()
    assert printed.wait(10)
    assert box.cancel(given.key)
    thread.join(10)
    assert answers[0].cancelled
    assert answers[0].stdout.total_bytes > 32_768
    assert not box.cancel("no such call")


def test_kill_minus_one_ends_only_the_agents_own(run: Run, box: Box) -> None:
    if box.info.uid == 0:
        pytest.skip("as root a command can end its own box")
    run("kill -9 -1; sleep 100", timeout_ms=1000)
    assert run("echo next").stdout.head == b"next\n"
    run("for p in /proc/[0-9]*; do kill -9 ${p#/proc/}; done", timeout_ms=10_000)
    assert run("echo next").stdout.head == b"next\n"


def test_binary_output_is_counted_and_decoded_with_replacement(run: Run) -> None:
    answer = run("printf '\\377\\376\\000x'")
    assert answer.stdout.head == b"\xff\xfe\0x"
    assert answer.stdout.text() == "\ufffd\ufffd\0x"
    assert run("cat /dev/urandom | head -c 1000000").stdout.total_bytes == 1_000_000


def test_a_flood_is_counted_and_cut_in_bounded_memory(run: Run, box: Box) -> None:
    answer = run("yes | head -c 200000000", keep_bytes=10_000, timeout_ms=60_000)
    out = answer.stdout
    assert (out.total_bytes, out.total_lines) == (200_000_000, 100_000_000)
    assert (len(out.head), len(out.tail), out.dropped_bytes) == (10_000, 10_000, 200_000_000 - 20_000)
    assert guest_memory_kib(run) < 40_000


def guest_memory_kib(run: Run) -> int:
    text = run("grep -l guest.pyc /proc/[0-9]*/cmdline | cut -d/ -f3").stdout.text()
    sizes = [int(run(f"awk '/VmRSS/ {{print $2}}' /proc/{pid}/status").stdout.text() or 0) for pid in text.split()]
    return max(sizes)


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


def test_a_slow_listener_slows_the_command_down_and_loses_nothing(run: Run, box: Box) -> None:
    go_on = threading.Event()
    sizes: list[int] = []

    def listen(data: bytes) -> None:
        if not sizes:
            go_on.wait(20)
        sizes.append(len(data))

    answers: list[RunAnswer] = []
    thread = threading.Thread(target=lambda: answers.append(run("yes | head -c 50000000", listen)))
    thread.start()
    # The guest stops reading at about a megabyte, so the command cannot end while nobody listens.
    thread.join(1.0)
    assert thread.is_alive()
    go_on.set()
    thread.join(30)
    assert sum(sizes) == 50_000_000
    assert answers[0].spill_complete


def test_one_megabyte_on_one_line(run: Run) -> None:
    answer = run("head -c 1000000 /dev/zero | tr '\\0' x")
    assert (answer.stdout.total_bytes, answer.stdout.total_lines) == (1_000_000, 1)


def test_a_command_that_fills_its_descriptors_hurts_only_itself(run: Run) -> None:
    run("python3 -c 'import os\nwhile True: os.dup(1)'")
    assert run("echo next").stdout.head == b"next\n"


def test_an_argv_runs_without_a_shell_and_keeps_the_cwd(box: Box, run: Run, mark: Callable[..., CallMark]) -> None:
    run("mkdir -p sub; cd sub")
    answer = box.run(RunRequest(mark(), argv=("printf", "%s|", "a b", "$HOME")))
    assert (answer.stdout.head, answer.cwd) == (b"a b|$HOME|", "/workspace/sub")
    answer = box.run(RunRequest(mark(), argv=("pwd",), cwd="/"))
    assert (answer.stdout.head, answer.cwd) == (b"/\n", "/workspace/sub")


@pytest.mark.parametrize("argv", [("no-such-program",), ("/no/such/program",), ("./sub",)])
def test_a_program_that_cannot_run_is_refused(
    box: Box, run: Run, mark: Callable[..., CallMark], argv: tuple[str, ...]
) -> None:
    run("mkdir -p sub")
    with pytest.raises(GuestRefused) as refused:
        box.run(RunRequest(mark(), argv=argv))
    assert refused.value.code in (RefusalCode.NOT_FOUND, RefusalCode.ACCESS_DENIED)


@pytest.mark.parametrize("command", ["x" * 100_001, "echo \0"], ids=["too long", "NUL"])
def test_a_text_no_shell_can_take_is_refused(run: Run, command: str) -> None:
    with pytest.raises(GuestRefused) as refused:
        run(command)
    assert refused.value.code is RefusalCode.INVALID_PARAM


def test_a_very_long_text_runs(run: Run) -> None:
    assert run("echo " + "x" * 99_000).stdout.total_bytes == 99_001


def test_nothing_of_ours_is_in_the_environment(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SANDHOG_SECRET_TOKEN", "do-not-tell")
    printed = run("env; cat /proc/*/environ /proc/*/cmdline 2>/dev/null").stdout.text()
    assert "do-not-tell" not in printed
    assert "SANDHOG" not in printed
    assert "PAGER=cat" in printed


def test_there_is_no_network(run: Run) -> None:
    probe = "import socket; socket.create_connection(('1.1.1.1', 80), 5)"
    answer = run(f'python3 -c "{probe}"', timeout_ms=10_000)
    assert answer.exit_code == 1
    # gVisor has the second.
    assert b"Network is unreachable" in answer.stderr.head or b"No route to host" in answer.stderr.head


def test_environment_of_one_command(run: Run) -> None:
    assert run("echo $X", env={"X": "one"}).stdout.head == b"one\n"
    assert run("export Y=1; echo $X").stdout.head == b"\n"
    assert run("echo $Y").stdout.head == b"\n"


def test_output_that_imitates_our_frames_is_just_output(run: Run) -> None:
    text = '{"id":1,"exit_code":0}'
    assert run(f"printf '\\0\\0\\0\\026\\0\\0\\0\\0{text}' | tee /proc/self/fd/9").stdout.head.endswith(text.encode())
    assert run("echo /etc >&9; true").cwd == "/workspace"


def test_many_commands_at_once(run: Run) -> None:
    answers: dict[int, bytes] = {}

    def one(number: int) -> None:
        answers[number] = run(f"sleep 0.0{number % 7}; echo {number}").stdout.head

    threads = [threading.Thread(target=one, args=(number,)) for number in range(24)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert answers == {number: b"%d\n" % number for number in range(24)}


def test_frozen_commands_stand_still_and_so_does_their_time(run: Run, box: Box) -> None:
    if box.info.uid == 0:
        pytest.skip("once is enough")
    run("rm -f ticks")
    began = threading.Event()
    answers: list[RunAnswer] = []
    command = "head -c 40000 /dev/zero; for i in 1 2 3 4 5 6; do sleep 0.1; echo >> ticks; done"
    thread = threading.Thread(target=lambda: answers.append(run(command, lambda _: began.set(), timeout_ms=1500)))
    thread.start()
    assert began.wait(10)
    box.freeze()
    with pytest.raises(GuestRefused) as refused:
        run("true")
    assert refused.value.code is RefusalCode.FROZEN
    thread.join(2.0)
    assert thread.is_alive()
    box.thaw()
    thread.join(10)
    assert not answers[0].timed_out
    assert run("wc -l < ticks").stdout.head.strip() == b"6"
