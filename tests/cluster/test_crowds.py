"""Much at once, much of it odd: every call has one answer all the same."""

import asyncio
import json
from typing import Any

import pytest

from coordinator.endpoint.scripted import ScriptedCall, Turn
from coordinator.session.history import validate

pytestmark = [pytest.mark.docker, pytest.mark.shared_node]


def contents(played: Any) -> list[dict[str, Any]]:
    return [json.loads(str(answer["content"])) for answer in played.answers()]


async def test_sixty_calls_of_one_reply_are_answered_in_order(stage: Any) -> None:
    calls = [ScriptedCall("Bash", {"command": f"echo {n}"}) for n in range(20)]
    calls += [ScriptedCall("Read", {"path": "a.txt", "offset": 1 + n % 2, "limit": 1}) for n in range(40)]
    played = await stage.play([Turn(calls=tuple(calls)), Turn("done")])

    texts = [content["text"] for content in contents(played)]
    assert [text.strip() for text in texts[:20]] == [str(n) for n in range(20)]
    assert all(("beta" if n % 2 else "alpha") in text for n, text in enumerate(texts[20:]))


async def test_hostile_names_repeated_ids_and_odd_texts_get_one_answer_each(stage: Any) -> None:
    odd = "\u202e\x00\x1b]52;c;x\x07\ud83d\ude00é\u2028" * 3
    calls = (
        ScriptedCall("Read", {"path": "a.txt"}, id="same"),
        ScriptedCall("N" * 300_000, {"x": 1}, id="same"),
        ScriptedCall("\x1b[2J\x00; DROP TABLE", {}, id=""),
        ScriptedCall("__class__", {}, id="same"),
        ScriptedCall("Read", {"path": "a.txt", "n" * 200_000: 1}),
        ScriptedCall("Bash", {"command": f"printf '%s' '{odd.replace(chr(0), '')}'; printf '\\xed\\xa0\\x80\\xff\\0'"}),
        ScriptedCall("Read", {"path": odd}),
        ScriptedCall("Bash", '{"command": "echo \\ud800"}'),
    )
    played = await stage.play([Turn(calls=calls), Turn("done")])

    found = contents(played)
    assert len(found) == len(calls)
    codes = [content.get("error", {}).get("code") for content in found]
    assert codes[:6] == [None, "UNKNOWN_TOOL", "UNKNOWN_TOOL", "UNKNOWN_TOOL", "INVALID_PARAM", None], codes
    assert all(code is not None for code in codes[6:])
    assert all(len(str(answer["content"])) < 20_000 for answer in played.answers()), "nothing is echoed at length"
    for request in played.requests:
        validate(request["messages"], for_request=True)


async def test_long_arguments_and_long_texts_travel(stage: Any) -> None:
    long, output = "é" * 150_000, "wc -c < long.txt; head -c 5000000 /dev/zero | tr '\\0' y"
    calls = (
        ScriptedCall("Write", {"path": "long.txt", "content": long}),
        ScriptedCall("Bash", {"command": f": {'x' * 90_000}; {output}"}),
        ScriptedCall("Bash", {"command": f"echo {'z' * 300_000} | wc -c"}),
    )
    played = await stage.play([Turn(calls=calls), Turn("done")])

    found = contents(played)
    assert [content["status"] for content in found][:2] == ["success", "success"], [one.get("error") for one in found]
    assert found[1]["text"].startswith("300000\n")
    assert len(found[1]["text"].encode()) <= 50_000
    assert found[2]["error"]["code"] == "INVALID_PARAM"
    assert (stage.project / "long.txt").read_text() == long


async def test_more_sessions_than_places_take_turns(stage: Any) -> None:
    turn = Turn(calls=(ScriptedCall("Bash", {"command": "echo $$ >> log; echo hi"}),))
    plays = [stage.play([turn, Turn("done")]) for _ in range(12)]
    played = await asyncio.gather(*plays)

    assert [one.result.status for one in played] == ["completed"] * 12
    assert len((stage.project / "log").read_text().splitlines()) == 12


async def test_a_group_larger_than_the_lanes_shares_them_with_another_sessions_chain(stage: Any) -> None:
    reads = Turn(calls=tuple(ScriptedCall("Grep", {"pattern": "a"}) for _ in range(80)))
    chain = Turn(calls=tuple(ScriptedCall("Bash", {"command": "sleep 0.05; echo x >> log"}) for _ in range(20)))
    played = await asyncio.gather(stage.play([reads, Turn("done")]), stage.play([chain, Turn("done")]))

    assert all(content["status"] == "success" for one in played for content in contents(one))
    assert (stage.project / "log").read_text() == "x\n" * 20
