"""Commands in real boxes: what comes back, and what is left."""

import threading
from collections.abc import Callable

import pytest

from sandbox.box import Box
from sandbox.errors import GuestRefused
from sandbox.requests import RunAnswer
from tests.sandbox.asking import is_alive

pytestmark = pytest.mark.docker

Run = Callable[..., RunAnswer]


def test_a_directory_only_the_agent_may_enter_can_be_the_cwd(run: Run) -> None:
    assert run("mkdir -p -m 700 own && cd own").cwd == "/workspace/own"
    assert run("pwd").stdout.head == b"/workspace/own\n"


def test_a_workspace_that_a_command_shut_is_opened_from_elsewhere(
    fresh_box: Callable[..., Box], shell: Callable[[Box], Run]
) -> None:
    run = shell(fresh_box())
    run("chmod 000 /workspace")
    with pytest.raises(GuestRefused, match=r"working directory /workspace \(the session is now in /\)"):
        run("chmod 755 /workspace")
    run("chmod 755 /workspace && cd /workspace")
    assert run("pwd").stdout.head == b"/workspace\n"


def test_a_syntax_error_is_the_shells_own(run: Run) -> None:
    answer = run("if true; then echo")
    assert answer.exit_code != 0
    assert b"syntax error" in answer.stderr.head


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


def test_kill_minus_one_ends_only_the_agents_own(run: Run, box: Box) -> None:
    if box.info.uid == 0:
        pytest.skip("as root a command can end its own box")
    run("kill -9 -1; sleep 100", timeout_ms=1000)
    assert run("echo next").stdout.head == b"next\n"
    run("for p in /proc/[0-9]*; do kill -9 ${p#/proc/}; done", timeout_ms=10_000)
    assert run("echo next").stdout.head == b"next\n"


BEATER = """python3 - >/dev/null 2>&1 <<'END' &
import os
while True:
    for number in range(1, 65):
        for pid in range(1, 10):
            try:
                os.kill(pid, number)
            except OSError:
                pass
END
"""


def test_nobody_can_end_the_main_process_even_while_it_starts_a_command(
    fresh_box: Callable[..., Box], shell: Callable[[Box], Run]
) -> None:
    run = shell(fresh_box())
    assert run("readlink /proc/1/exe").exit_code != 0
    assert run(BEATER, timeout_ms=20_000).left_running
    for number in range(60):
        assert run(f"echo {number}", timeout_ms=20_000).stdout.head == b"%d\n" % number


def test_a_command_has_the_agents_rights_for_good(run: Run, box: Box) -> None:
    lines = run("cat /proc/self/status").stdout.text().splitlines()
    fields = {name: values.split() for name, values in (line.split(":", 1) for line in lines)}
    # Real, effective, saved and for files: with any that is root's it could become root again.
    assert fields["Uid"] == [str(box.info.uid)] * 4
    assert fields["Gid"] == [str(box.info.gid)] * 4
    assert len(fields["Groups"]) == 1
    assert run("ulimit -Sn; umask; kill -l $(( 1 + 128 + 12 ))").stdout.text().splitlines()[1:] == ["0022", "PIPE"]


def test_variables_that_are_none_are_refused_and_the_box_goes_on(run: Run) -> None:
    for env in ({"A": "x\0y"}, {"A\0B": "x"}):
        with pytest.raises(GuestRefused):
            run("true", env=env)
    assert run("echo $A", env={"A": "b"}).stdout.head == b"b\n"
    assert run("echo ${A-none}").stdout.head == b"none\n"


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
    thread.join(60)
    assert sum(sizes) == 50_000_000
    assert answers[0].spill_complete


def test_one_megabyte_on_one_line(run: Run) -> None:
    answer = run("head -c 1000000 /dev/zero | tr '\\0' x")
    assert (answer.stdout.total_bytes, answer.stdout.total_lines) == (1_000_000, 1)


def test_a_command_that_fills_its_descriptors_hurts_only_itself(run: Run) -> None:
    run("python3 -c 'import os\nwhile True: os.dup(1)'")
    assert run("echo next").stdout.head == b"next\n"


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


def test_output_that_imitates_our_frames_is_just_output(run: Run) -> None:
    text = '{"id":1,"exit_code":0}'
    assert run(f"printf '\\0\\0\\0\\026\\0\\0\\0\\0{text}' | tee /proc/self/fd/9").stdout.head.endswith(text.encode())
    assert run("echo /etc >&9; true").cwd == "/workspace"
