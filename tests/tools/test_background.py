"""Bash in the background, BashOutput and KillBash on a real box."""

from collections.abc import Callable

import pytest

from tools.base import ErrorCode, RunContext, ToolFailure, ToolResult
from tools.bash import Bash, BashParameters
from tools.bash_output import BashOutput, BashOutputParameters

pytestmark = pytest.mark.docker
Call = Callable[..., ToolResult]
WAIT = "for i in $(seq 1000); do [ -e {} ] && break; sleep 0.01; done"
END_OF = "while kill -0 {} 2>/dev/null; do sleep 0.01; done"


def first_pid(result: ToolResult) -> int:
    pids = result.data["pids"]
    assert isinstance(pids, list)
    assert isinstance(pids[0], int)
    return pids[0]


@pytest.fixture
def start(call: Call) -> Callable[[str, str], ToolResult]:
    """Starts a background command and comes back when it has printed the text; its first result.

    Nothing of the text is new afterwards.
    """

    def begin(command: str, until: str) -> ToolResult:
        begun = call("Bash", command=command, background=True)
        seen = begun.text.partition("[started")[0]
        for _ in range(1000):
            if seen.split() == until.split():
                return begun
            call("Bash", command="sleep 0.01")
            look = call("BashOutput", id=begun.data["background_id"])
            seen += look.text.partition("[bg")[0] if look.data["new_bytes"] else ""
        raise AssertionError(f"it printed {seen!r}")

    return begin


def test_it_goes_on_while_other_calls_run_and_each_look_shows_what_is_new(
    call: Call, start: Callable[[str, str], ToolResult]
) -> None:
    command = f"echo one; {WAIT.format('two')}; echo two; touch said; {WAIT.format('go')}; exit 3"
    begun = start(command, "one")
    name = begun.data["background_id"]
    assert begun.status == "success"
    assert f"[started in the background as {name}]\n[{name} is still running: " in begun.text
    assert call("BashOutput", id=name).text.startswith(f"(no new output)\n[{name} is still running: ")
    call("Bash", command=f"touch two; {WAIT.format('said')}")
    assert call("BashOutput", id=name).text.startswith("two\n[")
    call("Bash", command=f"touch go; {END_OF.format(first_pid(begun))}")
    ended = call("BashOutput", id=name)
    assert (ended.status, ended.data["exit_code"]) == ("partial", 3)
    assert ended.text == f"(no new output)\n[{name} has ended with exit code 3]"


def test_what_ends_at_once_says_so(call: Call) -> None:
    # A busy machine may take longer than the guest waits for it.
    results = [call("Bash", command="echo quick; exit 2", background=True) for _ in range(20)]
    result = next(result for result in results if not result.data["running"])
    name = result.data["background_id"]
    assert result.status == "partial"
    assert result.text == f"quick\n[started in the background as {name}]\n[{name} has ended with exit code 2]"


def test_kill_answers_the_last_words(call: Call, start: Callable[[str, str], ToolResult]) -> None:
    name = start("trap 'echo bye; exit 0' TERM; echo up; while :; do sleep 0.01; done", "up")
    killed = call("KillBash", id=name.data["background_id"])
    assert "bye\n" in killed.text
    assert (killed.status, killed.data["running"]) == ("success", False)
    assert call("KillBash", id=name.data["background_id"]).status == "success"


@pytest.mark.parametrize("tool", ["BashOutput", "KillBash"])
def test_an_unknown_id_is_answered_with_the_known_ones(call: Call, tool: str) -> None:
    with pytest.raises(ToolFailure, match=r"Running: none\.") as none:
        call(tool, id="bg999")
    assert none.value.code is ErrorCode.NOT_FOUND
    first = call("Bash", command="sleep 100", background=True).data["background_id"]
    second = call("Bash", command="true", background=True).data["background_id"]
    with pytest.raises(ToolFailure) as known:
        call(tool, id="bg999")
    assert known.value.message == (
        f"There is no background command 'bg999'. Running: {first} (`sleep 100`). Ended: {second} (`true`)."
    )
    call("KillBash", id=first)


def test_the_same_look_asked_again_shows_the_same(
    call: Call, context: Callable[..., RunContext], start: Callable[[str, str], ToolResult]
) -> None:
    command = f"echo one; {WAIT.format('go')}; echo two; touch said; sleep 100"
    name = str(start(command, "one").data["background_id"])
    call("Bash", command=f"touch go; {WAIT.format('said')}")
    asked = BashOutputParameters(id=name)
    assert BashOutput().run(asked, context(step=900)).text.startswith("two\n")
    assert BashOutput().run(asked, context(step=900, join=True)).text.startswith("two\n")
    assert BashOutput().run(asked, context(step=901)).text.startswith("(no new output)\n")
    call("KillBash", id=name)


def test_a_joined_start_starts_nothing_and_shows_all_again(context: Callable[..., RunContext]) -> None:
    command = BashParameters(command="echo x >> log; wc -l < log; sleep 100", background=True)
    first = Bash().run(command, context(step=950))
    for _ in range(1000):
        joined = Bash().run(command, context(step=950, join=True))
        if joined.data["new_bytes"]:
            break
    assert joined.text.startswith(f"1\n[started in the background as {first.data['background_id']}]")
    looked = BashOutput().run(BashOutputParameters(id=str(first.data["background_id"])), context(step=951))
    assert looked.text.startswith("(no new output)")


def test_much_new_output_shows_head_and_tail_and_lies_in_a_file(
    call: Call, spilled: Callable[[ToolResult], bytes]
) -> None:
    expected = "".join(f"{number}\n" for number in range(1, 100_001)).encode()
    command = f"{WAIT.format('go')}; seq 100000; touch said; exec sleep 100"
    name = call("Bash", command=command, background=True).data["background_id"]
    call("Bash", command=f"touch go; {WAIT.format('said')}")
    result = call("BashOutput", id=name)
    assert spilled(result) == expected
    assert result.text.startswith("1\n2\n")
    assert "\n99999\n100000\n[" in result.text
    where = f"left out here; all of it: {result.data['output_path']} …]"
    assert f"of {len(expected)} bytes, 100000 lines {where}" in result.text
    killed = call("KillBash", id=name)
    assert killed.text == f"[{name} was killed by signal 15 (SIGTERM)]"
    assert "output_path" not in killed.data


def test_at_its_end_all_that_is_left_lies_in_one_file(
    call: Call, spilled: Callable[[ToolResult], bytes], start: Callable[[str, str], ToolResult]
) -> None:
    half = "".join(f"{number}\n" for number in range(1, 6001)).encode()
    begun = start(f"seq 6000; {WAIT.format('go')}; seq 6000; exit 0", half.decode().strip())
    assert "output_path" not in begun.data
    name = begun.data["background_id"]
    call("Bash", command=f"touch go; {END_OF.format(first_pid(begun))}")
    ended = call("BashOutput", id=name)
    assert ended.text.startswith("1\n2\n")
    assert ended.data["new_bytes"] == len(half)
    assert spilled(ended) == half + half


def test_characters_are_not_torn_between_two_looks(call: Call, start: Callable[[str, str], ToolResult]) -> None:
    command = f"printf 'a\\303'; {WAIT.format('go')}; printf '\\251b'; touch said; sleep 100"
    begun = start(command, "a")
    name = begun.data["background_id"]
    call("Bash", command=f"touch go; {WAIT.format('said')}")
    assert call("BashOutput", id=name).text.startswith("éb\n[")
    call("KillBash", id=name)


def test_output_that_was_overwritten_is_counted(call: Call) -> None:
    command = f"{WAIT.format('go')}; yes | head -c 20000000; touch said; sleep 100"
    name = call("Bash", command=command, background=True).data["background_id"]
    call("Bash", command=f"touch go; {WAIT.format('said')}")
    lost = 20_000_000 - 16 * 1024 * 1024
    result = call("BashOutput", id=name)
    assert result.data["lost_bytes"] == lost
    assert f"[{lost} bytes before this are lost" in result.text
    assert result.status == "partial"
    call("KillBash", id=name)


def test_bytes_that_are_no_text_are_replaced_and_flagged(call: Call) -> None:
    result = call("Bash", command="printf '\\377\\376\\n'", background=True)
    while not result.data["new_bytes"]:
        result = call("BashOutput", id=result.data["id"])
    assert result.text.startswith("\ufffd\ufffd\n")
    assert result.data["binary"] is True
