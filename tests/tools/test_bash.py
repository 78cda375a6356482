import threading
from collections.abc import Callable

import pytest

from tools.base import ErrorCode, RunContext, ToolFailure, ToolResult
from tools.bash import Bash, BashParameters

pytestmark = pytest.mark.docker
Call = Callable[..., ToolResult]


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


def test_a_cancelled_command_keeps_what_was_printed(context: Callable[..., RunContext]) -> None:
    here = context()
    started = threading.Event()

    class Watched:
        box_path, written_bytes, bound_hit = "/spill/x.txt", 1, False

        def write(self, chunk: bytes) -> None:
            started.set()

    def cancel() -> None:
        assert started.wait(20)
        assert here.box.cancel(here.mark.key)

    canceller = threading.Thread(target=cancel)
    canceller.start()
    watched = RunContext(here.box, here.mark, here.principal, Watched())
    result = Bash().run(BashParameters(command="seq 20000; sleep 100"), watched)
    canceller.join()
    assert result.error_code is ErrorCode.CANCELLED
    assert result.text.startswith("1\n2\n")


def test_what_is_left_running_is_listed_and_does_not_hold_the_call(call: Call) -> None:
    result = call("Bash", command="sleep 100 & echo hi")
    assert result.status == "success"
    pids = result.data["left_running"]
    assert isinstance(pids, list)
    [pid] = pids
    assert result.text.startswith(f"hi\n[still running in the background: {pid};")
    assert call("Bash", command=f"kill {pid}").status == "success"


def test_a_long_output_shows_head_and_tail_and_names_the_file_of_all(call: Call, spilled: Callable[[], bytes]) -> None:
    result = call("Bash", command="seq 100000")
    expected = "".join(f"{number}\n" for number in range(1, 100_001)).encode()
    assert spilled() == expected
    assert result.text.startswith("1\n2\n")
    assert result.text.endswith("99999\n100000")
    assert result.data["output_path"] == "/spill/1-1-0-1.txt"
    assert f"of {len(expected)} bytes, 100000 lines left out here; all output is in /spill/1-1-0-1.txt" in result.text


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


def test_a_full_volume_ends_the_spill_and_not_the_command(context: Callable[..., RunContext]) -> None:
    class Full:
        box_path, written_bytes, bound_hit = "/spill/x.txt", 10, False

        def write(self, chunk: bytes) -> None:
            raise OSError(28, "No space left on device")

    here = context()
    result = Bash().run(BashParameters(command="seq 100000"), RunContext(here.box, here.mark, "tester", Full()))
    assert result.status == "success"
    assert "output, with parts missing, is in /spill/x.txt" in result.text


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
