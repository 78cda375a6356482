"""The optimistic lock and the breaker in whole sessions, on real parts."""

import asyncio
import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis

from coordinator.commands.breakers import list_breakers
from coordinator.embedded import Embedded
from coordinator.endpoint.scripted import ScriptedCall, Turn
from coordinator.session.breakers import table
from coordinator.session.session_events import Notice, SessionEnded
from worker.contract import breaker, keys
from worker.contract.breaker import Phase

pytestmark = pytest.mark.docker


def read(path: str, **more: int) -> ScriptedCall:
    return ScriptedCall("Read", {"path": path, **more})


def edit(path: str, old: str, new: str, **more: Any) -> ScriptedCall:
    return ScriptedCall("Edit", {"path": path, "old_string": old, "new_string": new, **more})


def bash(command: str, **more: int) -> ScriptedCall:
    return ScriptedCall("Bash", {"command": command, **more})


def write(path: str, content: str) -> ScriptedCall:
    return ScriptedCall("Write", {"path": path, "content": content})


def in_turn(*calls: ScriptedCall) -> list[Turn]:
    return [*(Turn(calls=(call,)) for call in calls), Turn("done")]


def contents(played: Any) -> list[dict[str, Any]]:
    return [json.loads(str(answer["content"])) for answer in played.answers()]


def codes(played: Any) -> list[str | None]:
    return [content.get("error", {}).get("code") for content in contents(played)]


def message(content: dict[str, Any]) -> str:
    return str(content["error"]["message"])


def tools_of(request: dict[str, Any]) -> list[str]:
    return [tool["function"]["name"] for tool in request.get("tools", [])]


@pytest.mark.shared_node
class TestLock:
    async def test_edit_unread_is_refused_and_every_spelling_is_the_same_file(self, stage: Any) -> None:
        played = await stage.play(
            in_turn(
                edit("a.txt", "alpha", "1"),
                bash("mkdir x && ln -s ../a.txt x/link"),
                read("./a.txt"),
                edit("x/../a.txt", "alpha", "1"),
                edit("/workspace/x/link", "beta", "2"),
            )
        )
        assert codes(played) == ["CONFLICT", None, None, None, None], contents(played)
        assert "was not read in this session. Nothing was changed: Read it first." in message(contents(played)[0])
        assert (stage.project / "a.txt").read_text() == "1\n2\n"
        assert (stage.project / "x" / "link").is_symlink()

    async def test_a_change_between_read_and_edit_is_a_conflict_also_with_size_and_time_as_before(
        self, stage: Any
    ) -> None:
        played = await stage.play(
            in_turn(
                read("a.txt"),
                bash(
                    "cp -p a.txt kept; sed -i s/alpha/ALPHA/ a.txt; touch -r kept a.txt; rm kept; stat -c '%s %Y' a.txt"
                ),
                edit("a.txt", "beta", "2"),
                write("a.txt", "all new\n"),
                read("a.txt"),
                edit("a.txt", "beta", "2"),
            )
        )
        assert codes(played) == [None, None, "CONFLICT", "CONFLICT", None, None], contents(played)
        assert "changed since it was read. Read it again" in message(contents(played)[2])
        assert (stage.project / "a.txt").read_text() == "ALPHA\n2\n"

    async def test_a_whole_overwrite_needs_every_line_shown(self, stage: Any) -> None:
        played = await stage.play(
            in_turn(
                read("a.txt", limit=1),
                write("a.txt", "new\n"),
                read("a.txt", offset=2),
                write("a.txt", "new\n"),
                write("a.txt", "newer\n"),
                edit("a.txt", "newer", "newest"),
                write("fresh.txt", "one\n"),
                write("fresh.txt", "two\n"),
            )
        )
        assert codes(played) == [None, "CONFLICT", None, None, None, None, None, None], contents(played)
        assert "has 2 lines, of which these were not shown: 2." in message(contents(played)[1])
        assert (stage.project / "a.txt").read_text() == "newest\n"
        assert (stage.project / "fresh.txt").read_text() == "two\n"

    async def test_a_version_that_the_model_supplies_is_refused(self, stage: Any) -> None:
        played = await stage.play(
            in_turn(edit("a.txt", "alpha", "1", expected=None), edit("a.txt", "alpha", "1", version={"sha256": ""}))
        )
        assert codes(played) == ["INVALID_PARAM", "INVALID_PARAM"]
        assert (stage.project / "a.txt").read_text() == "alpha\nbeta\n"

    async def test_lines_that_the_steps_budget_cut_away_were_not_shown(self, stage: Any) -> None:
        make = "for f in 1 2 3 4 5 6; do seq -f 'line %g of a long file' 1 1500 > $f; done"
        reads = tuple(read(str(number)) for number in range(1, 7))
        turns = [Turn(calls=(bash(make),)), Turn(calls=reads), Turn(calls=(write("1", "x\n"),)), Turn("done")]
        played = await stage.play(turns)
        answers = contents(played)
        assert sum(len(answer["text"].encode()) for answer in answers[1:7]) <= 200_000
        assert "left out here" in answers[1]["text"]
        assert codes(played)[-1] == "CONFLICT", answers[-1]
        assert "has 1500 lines, of which these were not shown: " in message(answers[-1])

    async def test_of_two_sessions_on_one_directory_one_wins_and_one_is_told(self, stage: Any) -> None:
        """Both read a file, then both edit it at the same moment; several times, so that they meet."""
        rounds = 4
        for number in range(rounds):
            path = stage.project / f"r{number}"
            path.write_text("free\n")
            path.chmod(0o666)
        together = threading.Barrier(2)

        def script_of(name: str) -> Callable[[list[dict[str, Any]]], Turn]:
            def script(messages: list[dict[str, Any]]) -> Turn:
                number, is_edit = divmod(sum(one["role"] == "assistant" for one in messages), 2)
                if number == rounds:
                    return Turn("done")
                together.wait(90)
                path = f"r{number}"
                return Turn(calls=(edit(path, "free", f"taken by {name}") if is_edit else read(path),))

            return script

        played = await asyncio.gather(*(stage.play(script_of(name)) for name in ("A", "B")))

        outcomes = [codes(one)[1::2] for one in played]
        for number, pair in enumerate(zip(*outcomes, strict=True)):
            assert sorted(pair, key=str) == ["CONFLICT", None], outcomes
            winner = "AB"[pair.index(None)]
            assert (stage.project / f"r{number}").read_text() == f"taken by {winner}\n"


@pytest.fixture
def short_cool_down(monkeypatch: pytest.MonkeyPatch) -> None:
    rule = {"faults": 3, "recovery_timeout_s": 2}
    monkeypatch.setenv("SANDHOG_BREAKER", json.dumps({"default": rule}))


class TestBreaker:
    async def test_three_not_found_do_nothing(self, stage: Any, embedded: Embedded) -> None:
        seen: list[list[bytes]] = []

        def script(messages: list[dict[str, Any]]) -> Turn:
            done = sum(one["role"] == "assistant" for one in messages)
            if done == 4:
                with redis.Redis.from_url(embedded.redis_url) as client:
                    seen.append(client.keys(keys.BREAKERS))
                return Turn("done")
            return Turn(calls=(read("nowhere") if done < 3 else read("a.txt"),))

        played = await stage.play(script)
        assert codes(played) == ["NOT_FOUND", "NOT_FOUND", "NOT_FOUND", None]
        assert seen == [[]]

    async def test_three_timeouts_hide_the_tool_until_a_probe_has_found_it_working(
        self, short_cool_down: None, stage: Any, embedded: Embedded, state_dir: Path, until: Callable[..., None]
    ) -> None:
        shown: list[str] = []

        def is_cool() -> bool:
            with redis.Redis.from_url(embedded.redis_url) as client:
                (key,) = client.keys(keys.BREAKERS)
                (view,) = breaker.views(client.hgetall(key), breaker.now_ms(client.time()))
                return view.phase is Phase.HALF_OPEN

        def script(messages: list[dict[str, Any]]) -> Turn:
            done = sum(one["role"] == "assistant" for one in messages)
            if done < 3:
                return Turn(calls=(bash("sleep 60", timeout_ms=50),))
            if done == 3:
                shown.append(table(list_breakers(None, state_dir)))
                return Turn(calls=(bash("echo hidden"),))
            if done == 4:
                until(is_cool, "the cool-down is over")
                return Turn(calls=(read("a.txt"),))
            return Turn(calls=(bash("echo works"),)) if done < 7 else Turn("done")

        played = await stage.play(script)

        assert codes(played) == ["TIMEOUT", "TIMEOUT", "TIMEOUT", "CIRCUIT_OPEN", None, None, None], contents(played)
        assert "Bash is switched off now for 2 s: 3 faults in a row." in message(contents(played)[2])
        assert "It may be tried again in" in message(contents(played)[3])
        assert ["Bash" in tools_of(request) for request in played.requests] == [True] * 3 + [False] * 2 + [True] * 3
        assert shown[0].splitlines()[1].split()[2:6] == ["Bash", "open", "3", "TIMEOUT"]
        told = [event.text for event in played.events if isinstance(event, Notice)]
        assert [text.split()[:3] for text in told] == [["Bash", "is", "switched"], ["Bash", "is", "shown"]]
        (ended,) = [event for event in played.events if isinstance(event, SessionEnded)]
        assert ended.tool_list_changes == 2
        with redis.Redis.from_url(embedded.redis_url) as client:
            assert client.keys(keys.BREAKERS) == client.keys(keys.seen("*")) == []

    async def test_without_any_tool_the_model_has_one_last_step(self, stage: Any, embedded: Embedded) -> None:
        tools = [tool["function"]["name"] for tool in stage.cluster.registry.function_schemas()]

        def script(messages: list[dict[str, Any]]) -> Turn:
            if not any(one["role"] == "assistant" for one in messages):
                with redis.Redis.from_url(embedded.redis_url) as client:
                    report = client.register_script(breaker.REPORT)
                    for tool in tools:
                        for session in ("x1", "x2", "x3"):
                            names = [keys.session_breakers(session), keys.node_breakers(embedded.node)]
                            rule = [session, 3, 60_000, "BOX_LOST", "fault", "fault"]
                            report(keys=names, args=[tool, f"{tool}{session}", breaker.RECORD_TTL_MS, *rule])
                return Turn(calls=(read("a.txt"),))
            assert messages[-1]["role"] == "user"
            return Turn("This is what I know.")

        played = await stage.play(script)
        assert played.result.status == "stopped"
        assert played.result.stop_reason == "no_tools: every tool is switched off"
        assert played.result.text == "This is what I know."
        assert len(played.requests) == 2
        assert "tools" in played.requests[0]
        assert "tools" not in played.requests[1]
