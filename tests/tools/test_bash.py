import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tools.base import ErrorCode, RunContext, ToolFailure, ToolResult
from tools.bash import Bash, BashParameters
from tools.spilling import SpillFlaw
from worker.spill import SpillBounds, SpillFile

pytestmark = pytest.mark.docker
Call = Callable[..., ToolResult]


@pytest.fixture
def watched(tmp_path: Path) -> Callable[[RunContext, Callable[[], None]], RunContext]:
    """Makes of a call's context one that tells when output comes."""

    class Watched(SpillFile):
        def __init__(self, on_output: Callable[[], None]) -> None:
            super().__init__(tmp_path, "watched")
            self._on_output = on_output

        def write(self, chunk: bytes) -> None:
            super().write(chunk)
            self._on_output()

    return lambda here, on_output: replace(here, spill=Watched(on_output))


def test_both_streams_and_the_exit_code_come_back(call: Call, inside: str) -> None:
    result = call("Bash", command="echo out; echo err >&2; exit 3")
    assert result.status == "partial"
    assert result.text == "out\n[stderr]\nerr\n[exit code 3]"
    assert result.data["exit_code"] == 3
    assert (result.data["stdout_bytes"], result.data["stderr_bytes"]) == (4, 4)
    assert result.context["cwd"] == result.data["cwd"] == inside


def test_silence_is_said_in_words(call: Call) -> None:
    result = call("Bash", command="true")
    assert (result.status, result.text) == ("success", "(no output)")


def test_a_signal_is_named(call: Call) -> None:
    result = call("Bash", command="kill -9 $$")
    assert result.status == "partial"
    assert result.data["signal"] == 9
    assert "signal 9 (SIGKILL)" in result.text


def test_a_timeout_keeps_what_was_printed(call: Call) -> None:
    result = call("Bash", command="echo so far; sleep 100", timeout_ms=200)
    assert result.error_code is ErrorCode.TIMEOUT
    assert result.text == "so far"
    assert result.data["timed_out"] is True
    assert "200 ms" in str(result.error_message)


def test_a_cancelled_command_keeps_what_was_printed(
    context: Callable[..., RunContext], watched: Callable[[RunContext, Callable[[], None]], RunContext]
) -> None:
    here = context()
    started = threading.Event()

    def cancel() -> None:
        assert started.wait(60)
        assert here.box.cancel(here.mark.key)

    canceller = threading.Thread(target=cancel)
    canceller.start()
    result = Bash().run(BashParameters(command="seq 20000; sleep 100"), watched(here, started.set))
    canceller.join()
    assert result.error_code is ErrorCode.CANCELLED
    assert result.text.startswith("1\n2\n")


def test_what_is_left_running_has_an_id_and_does_not_hold_the_call(call: Call) -> None:
    result = call("Bash", command="(sleep 0.2; echo later; sleep 100) & echo hi")
    assert result.status == "success"
    name = result.data["background_id"]
    pids = result.data["left_running"]
    assert isinstance(pids, list)
    assert result.text.startswith(f"hi\n[still running in the background as {name}: {pids[0]}")
    killed = call("KillBash", id=name)
    assert killed.text.endswith(f"[{name} has ended]")
    # One that is dead may still wait to be reaped.
    assert call("Bash", command=f"grep State /proc/{pids[0]}/status | grep -v Z").data["exit_code"] == 1


def test_a_long_output_shows_head_and_tail_and_names_the_file_of_all(
    call: Call, spilled: Callable[[ToolResult], bytes]
) -> None:
    result = call("Bash", command="seq 100000")
    expected = "".join(f"{number}\n" for number in range(1, 100_001)).encode()
    assert spilled(result) == expected
    assert result.text.startswith("1\n2\n")
    assert result.text.endswith("99999\n100000")
    where = f"left out here; all of it: {result.data['output_path']} …]"
    assert f"of {len(expected)} bytes, 100000 lines {where}" in result.text


def test_read_and_grep_work_on_the_file_of_all(call: Call) -> None:
    result = call("Bash", command="for i in $(seq 3000); do printf 'line %04d %080d\\n' $i 0; done")
    assert (result.text[:9], result.text.splitlines()[-1][:9]) == ("line 0001", "line 3000")
    assert "line 1500" not in result.text
    path = result.data["output_path"]
    assert call("Read", path=path, offset=1500, limit=1).text.startswith("  1500\tline 1500")
    assert "line 1500" in call("Grep", pattern="line 1500", path=path).text
    denied = call("Bash", command=f"echo more >> {path}")
    assert denied.data["exit_code"] != 0


def test_the_file_of_all_can_be_read_while_it_grows(call: Call, context: Callable[..., RunContext]) -> None:
    here = context()
    assert here.spill is not None
    command = f"seq 20000; for i in $(seq 500); do grep -q '^20000$' {here.spill.box_path} && break; sleep 0.01; done"
    result = Bash().run(BashParameters(command=command + "; echo seen $i"), here)
    assert "seen 500" not in result.text
    assert "seen" in result.text


def test_characters_torn_at_the_gap_are_not_replaced(call: Call) -> None:
    result = call("Bash", command="yes xé | head -c 300000 | tr -d '\\n'")
    assert "left out here" in result.text
    assert "\ufffd" not in result.text
    assert "binary" not in result.data


@pytest.mark.parametrize("octal", ["\\377\\376", "a\\000b"])
def test_bytes_that_are_no_text_are_replaced_and_flagged(call: Call, octal: str) -> None:
    result = call("Bash", command=f"printf '{octal}'")
    assert "\ufffd" in result.text
    assert "\0" not in result.text
    assert result.data["binary"] is True


def test_the_working_directory_stays_and_variables_do_not(call: Call, inside: str) -> None:
    call("Bash", command="mkdir sub; cd sub; export X=1")
    assert call("Bash", command="pwd; echo [$X]").text == f"{inside}/sub\n[]"


def test_a_full_volume_ends_the_spill_and_not_the_command(context: Callable[..., RunContext], tmp_path: Path) -> None:
    gone = replace(context(), spill=SpillFile(tmp_path / "gone", "x"))
    result = Bash().run(BashParameters(command="seq 100000"), gone)
    assert result.status == "success"
    assert "the rest was not kept: the volume for kept output took no more: No such file or directory" in result.text
    assert "output_path" not in result.data
    assert "/spill" not in result.text


@pytest.mark.parametrize("bound", [0, 100_000])
def test_the_answer_says_when_a_bound_was_hit(context: Callable[..., RunContext], tmp_path: Path, bound: int) -> None:
    spill = SpillFile(tmp_path, "x", SpillBounds(bound))
    result = Bash().run(BashParameters(command="seq 100000"), replace(context(), spill=spill))
    assert (spill.flaw, spill.written_bytes) == (SpillFlaw.CALL_BOUND, bound)
    if bound:
        assert "left out here; its first 100000 bytes: /spill/x.txt (no more is kept of one call)" in result.text
    else:
        assert "left out here; the rest was not kept: no more is kept of one call" in result.text
    assert "all of it" not in result.text


def test_a_link_that_was_down_is_told(
    context: Callable[..., RunContext], watched: Callable[[RunContext, Callable[[], None]], RunContext]
) -> None:
    here = context()
    links = [here.box._link]

    def break_link() -> None:
        if links:
            link = links.pop()
            assert link is not None
            link.close()

    result = Bash().run(BashParameters(command="seq 20000; sleep 0.5; seq 20000"), watched(here, break_link))
    assert result.data["exit_code"] == 0
    path = result.data["output_path"]
    assert f"with parts missing in {path}: the link to the sandbox was down for a while" in result.text


def test_a_joined_call_is_answered_and_not_run_again(context: Callable[..., RunContext]) -> None:
    command = BashParameters(command="echo x >> log; wc -l < log")
    first = Bash().run(command, context(step=50))
    joined = Bash().run(command, context(step=50, join=True))
    assert first.text == joined.text == "1"


def test_a_join_of_an_unknown_call_runs_nothing(context: Callable[..., RunContext]) -> None:
    with pytest.raises(ToolFailure) as caught:
        Bash().run(BashParameters(command="touch made"), context(step=60, join=True))
    assert caught.value.code is ErrorCode.OUTCOME_UNKNOWN
    assert "made" not in Bash().run(BashParameters(command="ls"), context(step=61)).text
