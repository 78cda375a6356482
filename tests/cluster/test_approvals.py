"""Approvals in whole sessions: asked before dispatch, answered from elsewhere, enforced by the node; and what is beside
them on that way, a user's own policy and the list of things to do."""

import asyncio
import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from coordinator.cluster.approval_requests import Requests
from coordinator.cluster.parts import Cluster
from coordinator.commands.answering import waiting
from coordinator.embedded import Embedded
from coordinator.endpoint.scripted import ScriptedCall, ScriptedEndpoint, Turn
from coordinator.errors import ConfigError
from coordinator.session.approvals import Decided, Elsewhere
from coordinator.session.call_events import ApprovalAnswered, ApprovalAsked, CallFinished, CallStarted, TodosWritten
from coordinator.session.ceilings import Ceiling
from coordinator.session.transcript import read_transcript
from tests.cluster.commands import SANDHOG
from tests.cluster.machines import calls_of, watched_queue
from tools.policy_file import read_policy
from tools.registry import builtin_registry
from worker.contract.approvals import ApprovalAnswer, ApprovalRequest
from worker.contract.orders import CALL_TASK, CallKey, Policy

pytestmark = [pytest.mark.docker, pytest.mark.shared_node]

MAKE = ScriptedCall("Bash", {"command": "echo made >> made; cat made"})


def contents(played: Any) -> list[dict[str, Any]]:
    return [json.loads(str(answer["content"])) for answer in played.answers()]


class Person:
    """Answers with what the test gives, and keeps what was asked."""

    waits = False

    def __init__(self, *answers: Decided) -> None:
        self.asked: list[str] = []
        self._answers = list(answers)

    async def ask(self, request: ApprovalRequest) -> Decided | None:
        self.asked.append(request.text)
        return self._answers.pop(0)


YES, NO = Decided(True, by="ann"), Decided(False, by="ann", note="use the Makefile")
ALWAYS = Decided(True, by="ann", is_lasting=True)


async def next_request(requests: Requests) -> ApprovalRequest:
    async with asyncio.timeout(60):
        while True:
            found = await requests.waiting()
            if found:
                return found[0]
            await asyncio.sleep(0.02)


async def test_a_call_runs_after_a_yes_and_is_denied_after_a_no(stage: Any) -> None:
    person = Person(YES, NO)
    played = await stage.play([Turn(calls=(MAKE, MAKE)), Turn("done")], policy=Policy.GUARDED, approver=person)
    first, second = contents(played)
    assert first["text"].strip() == "made"
    assert second["error"]["code"] == "PERMISSION_DENIED"
    assert "use the Makefile" in second["error"]["message"]
    assert (stage.project / "made").read_text() == "made\n"
    reading = read_transcript(Path(played.result.transcript))
    kinds = [entry.fields["type"] for entry in reading.entries if "approval" in entry.fields["type"]]
    assert kinds == ["approval_asked", "approval_answered"] * 2


async def test_the_person_sees_the_results_of_the_calls_before(stage: Any) -> None:
    person = Person(YES)
    read = ScriptedCall("Bash", {"command": "cat a.txt"})
    played = await stage.play([Turn(calls=(read, MAKE)), Turn("done")], policy=Policy.GUARDED, approver=person)
    kinds = [event.type for event in played.events if isinstance(event, CallStarted | CallFinished | ApprovalAsked)]
    assert kinds == ["call_started", "call_finished", "approval_asked", "call_started", "call_finished"]


async def test_changed_arguments_need_a_new_yes(stage: Any) -> None:
    other = ScriptedCall("Bash", {"command": "echo made >> made", "timeout_ms": 5_000})
    person = Person(YES, NO)
    played = await stage.play([Turn(calls=(MAKE,)), Turn(calls=(other,)), Turn("done")],
                              policy=Policy.GUARDED, approver=person)  # fmt: skip
    assert [content["status"] for content in contents(played)] == ["success", "error"]
    assert len(person.asked) == 2


async def test_always_holds_for_the_very_commands_and_no_others(stage: Any) -> None:
    commands = ["touch x", "cat a.txt; touch x", "touch y", "touch x > z"]
    person = Person(ALWAYS, NO, NO)
    turns = [Turn(calls=(ScriptedCall("Bash", {"command": command}),)) for command in commands]
    played = await stage.play([*turns, Turn("done")], policy=Policy.GUARDED, approver=person)
    assert person.asked == ["touch x", "touch y", "touch x > z"]
    assert [content["status"] for content in contents(played)] == ["success", "success", "error", "error"]
    assert (stage.project / "x").exists()
    assert not (stage.project / "y").exists()


async def test_the_wait_counts_for_no_call_and_nobody_within_it_is_a_no(stage: Any) -> None:
    played = await stage.play(
        [Turn(calls=(MAKE,)), Turn("done")], policy=Policy.GUARDED, approver=Elsewhere(), approval_s=0.5
    )
    (content,) = contents(played)
    assert content["error"]["code"] == "PERMISSION_DENIED"
    assert "nobody answered within" in content["error"]["message"]
    assert not [event for event in played.events if isinstance(event, CallStarted)]
    (answered,) = [event for event in played.events if isinstance(event, ApprovalAnswered)]
    assert answered.note == "the deadline"


async def test_an_answer_through_redis_lets_a_call_run(stage: Any, cluster: Cluster) -> None:
    script = [Turn(calls=(MAKE,)), Turn("done")]
    playing = asyncio.create_task(stage.play(script, policy=Policy.GUARDED, approver=Elsewhere()))
    request = await next_request(cluster.requests)
    assert (request.tool, request.text) == ("Bash", MAKE.arguments["command"])  # type: ignore[index]
    answer = ApprovalAnswer(answer_id="1", decision="allow", by="page")
    await cluster.requests.answer(request.session, request.name, answer)
    played = await playing
    assert contents(played)[0]["text"].strip() == "made"
    (finished,) = [event for event in played.events if isinstance(event, CallFinished)]
    assert finished.status == "success"


async def test_the_users_rules_decide_above_and_below(stage: Any) -> None:
    rules = read_policy(
        """
        [[rule]]
        tool = "Bash"
        command = "touch allowed*"
        decision = "allow"
        [[rule]]
        tool = "Bash"
        command = "touch *"
        decision = "ask"
        """,
        builtin_registry(),
    )
    commands = ["touch allowed1", "touch asked", "touch allowed2; mkdir d"]
    turn = Turn(calls=tuple(ScriptedCall("Bash", {"command": command}) for command in commands))
    played = await stage.play([turn, Turn("done")], approver=Person(YES), rules=rules)
    assert [content["status"] for content in contents(played)] == ["success", "success", "error"]
    assert sorted(path.name for path in stage.project.iterdir()) == ["a.txt", "allowed1", "asked", "b.txt"]


async def test_a_session_that_only_reads_changes_nothing_and_sees_no_tool_that_does(stage: Any) -> None:
    calls = [ScriptedCall("Bash", {"command": "cat a.txt"}), MAKE, ScriptedCall("Write", {"path": "c", "content": ""})]
    played = await stage.play([Turn(calls=tuple(calls)), Turn("done")], is_read_only=True)
    codes = [content.get("error", {}).get("code") for content in contents(played)]
    assert codes == [None, "PERMISSION_DENIED", "UNKNOWN_TOOL"]
    offered = {tool["function"]["name"] for tool in played.requests[0]["tools"]}
    assert {"Bash", "Glob", "Grep", "Read", "TodoWrite"} <= offered
    assert not {"Edit", "Write"} & offered


async def test_a_ceiling_holds_or_refuses_the_session(stage: Any) -> None:
    ceiling = Ceiling(tools=frozenset({"Read"}), max_steps=1, images=("sandhog-box:*",))
    played = await stage.play(lambda _: Turn(calls=(MAKE,)), ceiling=ceiling)
    assert [tool["function"]["name"] for tool in played.requests[0]["tools"]] == ["Read"]
    assert played.result.stop_reason.startswith("limit: steps: 1 ")
    assert not (stage.project / "made").exists()
    with pytest.raises(ConfigError, match="local may not use the policy boxed"):
        await stage.play([Turn("done")], ceiling=Ceiling(policies=frozenset({Policy.GUARDED})))


async def test_a_list_of_things_to_do_ends_the_chain_and_never_travels(stage: Any, embedded: Embedded) -> None:
    todos = ScriptedCall("TodoWrite", {"todos": [{"content": "mend", "status": "in_progress"}]})
    echo = ScriptedCall("Bash", {"command": "echo x >> log; wc -l < log"})
    with watched_queue(embedded.redis_url, embedded.node) as messages:
        played = await stage.play([Turn(calls=(echo, echo, todos, echo)), Turn("done")])
    found = contents(played)
    texts = [content["text"].strip() for content in found]
    assert texts == ["1", "2", "0 completed, 1 in_progress, 0 pending. Now: mend", "3"]
    sent = [calls_of(message) for message in messages if message["headers"]["task"] == CALL_TASK]
    assert [[CallKey.parse(call).index for call in calls] for calls in sent] == [[0, 1], [3]]
    kinds = [
        (event.type, event.index)
        for event in played.events
        if isinstance(event, CallFinished | CallStarted | TodosWritten)
    ]
    assert kinds[-5:] == [
        ("call_started", 2),
        ("todos_written", 2),
        ("call_finished", 2),
        ("call_started", 3),
        ("call_finished", 3),
    ]


class TestCommandLine:
    """Two commands beside each other: one runs a session, the other answers it."""

    @pytest.fixture
    def environment(self, state_dir: Path) -> dict[str, str]:
        return {
            "PATH": os.environ["PATH"],
            "HOME": str(state_dir),
            "OPENAI_API_KEY": "sk-test",
            "SANDHOG_MODEL": "scripted",
            "SANDHOG_STATE_DIR": str(state_dir),
            "PYTHONPATH": str(Path(__file__).parents[2]),
        }

    def sandhog(self, environment: dict[str, str], *arguments: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [*SANDHOG, *arguments], env=environment, capture_output=True, text=True, check=False, timeout=150
        )

    def test_a_session_is_answered_from_another_terminal(  # four commands, each with its start
        self, environment: dict[str, str], state_dir: Path, project: Path, until: Callable[..., None]
    ) -> None:
        with ScriptedEndpoint([Turn(calls=(MAKE, MAKE)), Turn("done")]) as endpoint:
            options = ["--workspace", str(project), "--bind", "--policy", "guarded", "--approve", "wait", "--json"]
            session = subprocess.Popen(
                [*SANDHOG, "run", "make it", *options],
                env={**environment, "OPENAI_BASE_URL": endpoint.base_url},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )

            def waits(name: str) -> bool:
                return [request.name for request in waiting(None, state_dir, None)] == [name]

            until(lambda: waits("1.0"), "the session asks", 90)
            listed = self.sandhog(environment, "approve").stdout.splitlines()
            session_id, name = listed[0].split(":")[0].split()
            assert (name, any("echo made >> made" in line for line in listed)) == ("1.0", True)
            denied = self.sandhog(environment, "approve", session_id, "1.0", "--deny", "--note", "not on Mondays")
            until(lambda: waits("1.1"), "the session asks again", 90)
            allowed = self.sandhog(environment, "approve", session_id, "1.1", "--allow")
            out, err = session.communicate(timeout=150)
        assert denied.stdout.strip() == f"{session_id} 1.0: deny", denied.stderr
        assert allowed.stdout.strip() == f"{session_id} 1.1: allow", allowed.stderr
        assert json.loads(out)["status"] == "completed", err
        assert (project / "made").read_text() == "made\n"
        assert "not on Mondays" in json.dumps(endpoint.requests[-1]["messages"])
        assert "by sandhog approve" in err
        kept = [json.loads(line) for line in (state_dir / "audit.jsonl").read_text().splitlines()]
        assert [(one["action"], one["session"], one["detail"]) for one in kept] == [
            ("run", session_id, str(project)),
            ("deny", session_id, "call 1.0"),
            ("allow", session_id, "call 1.1"),
        ]

    def test_an_answer_must_say_which(self, environment: dict[str, str]) -> None:
        unclear = self.sandhog(environment, "approve", "20300101-000000-00000000", "1.0")
        assert (unclear.returncode, "--allow or --deny" in unclear.stderr) == (2, True)

    def test_what_nobody_asks_cannot_be_answered(self, environment: dict[str, str]) -> None:
        done = self.sandhog(environment, "approve", "20300101-000000-00000000", "1.0", "--allow")
        assert (done.returncode, "No session here asks" in done.stderr) == (2, True)
        assert self.sandhog(environment, "approve").stdout == ""

    def test_always_on_the_users_own_directory_warns_in_one_line(
        self, environment: dict[str, str], project: Path
    ) -> None:
        with ScriptedEndpoint([Turn("done")]) as endpoint:
            options = ["--workspace", str(project), "--bind", "--approve", "always", "--json"]
            done = self.sandhog({**environment, "OPENAI_BASE_URL": endpoint.base_url}, "run", "do it", *options)
        warnings = [line for line in done.stderr.splitlines() if "--approve always" in line]
        assert len(warnings) == 1, done.stderr
        assert str(project) in warnings[0]

    def test_a_policy_file_decides_and_a_wrong_one_is_refused(
        self, environment: dict[str, str], project: Path, tmp_path: Path
    ) -> None:
        policy = tmp_path / "policy.toml"
        policy.write_text('[[rule]]\ntool = "Bash"\ncommand = "cat ..."\ndecision = "allow"\n')
        cat = ScriptedCall("Bash", {"command": "cat a.txt"})
        with ScriptedEndpoint([Turn(calls=(cat, MAKE)), Turn("done")]) as endpoint:
            environment = {**environment, "OPENAI_BASE_URL": endpoint.base_url}
            options = ["--workspace", str(project), "--copy", "--json"]
            done = self.sandhog({**environment, "SANDHOG_POLICY_FILE": str(policy)}, "run", "do it", *options)
            answers = [message for message in endpoint.requests[-1]["messages"] if message["role"] == "tool"]
        assert done.returncode == 0, done.stderr
        found = [json.loads(answer["content"]) for answer in answers]
        assert [content["status"] for content in found] == ["success", "error"]
        policy.write_text('[[rule]]\ntool = "Bash"\ndecision = "perhaps"\n')
        wrong = self.sandhog(environment, "run", "do it", *options, "--policy-file", str(policy))
        assert wrong.returncode == 2
        assert "policy.toml: rule 1, key 'decision': 'perhaps'; write one of allow, ask, deny" in wrong.stderr
