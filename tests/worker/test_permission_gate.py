"""Gate 1 under a user's own rules and ceilings: the node enforces what travelled with the order."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis
from pydantic import JsonValue

from tests.orders import box_order, builtin_call, call_order
from tools.base import ErrorCode, ToolResult
from tools.policy_file import read_policy
from tools.registry import builtin_registry
from tools.rules import rules_to_text
from worker.contract import keys
from worker.gates.gate import in_row
from worker.gates.permission import PermissionGate

DONE = ToolResult(status="success", text="done")
BOX = box_order()
POLICY = """
[[rule]]
tool = "Bash"
command = "git push ..."
decision = "deny"
[[rule]]
tool = "Bash"
command = "make ..."
decision = "ask"
[[rule]]
tool = ["Bash", "Read"]
decision = "allow"
"""
RULES = rules_to_text(read_policy(POLICY, builtin_registry()))

Send = Callable[..., ToolResult]


@pytest.fixture
def send(redis_client: redis.Redis, tmp_path: Path) -> Send:
    """Sends one call through the gate; what passes is DONE."""

    def through(tool: str, arguments: dict[str, JsonValue], *, is_granted: bool = False, **terms: Any) -> ToolResult:
        order = call_order(tool, arguments, box=BOX, **terms)
        if is_granted:
            redis_client.set(keys.grant("s1", order.digest), "1")
        call = builtin_call(order, tmp_path)
        return in_row([PermissionGate(redis_client)], lambda _: DONE)(call)

    return through


def denied(result: ToolResult) -> str:
    assert result.error_code is ErrorCode.PERMISSION_DENIED
    return result.error_message or ""


def test_the_users_rules_hold_on_the_node(send: Send) -> None:
    assert send("Bash", {"command": "ls"}, rules=RULES) == DONE
    assert "rule 1 of the policy file" in denied(send("Bash", {"command": "cd a; git push"}, rules=RULES))
    assert "no rule of the policy file" in denied(send("Write", {"path": "a", "content": ""}, rules=RULES))
    assert send("Bash", {"command": "git push"}) == DONE, "without rules the session is boxed"


def test_what_a_rule_asks_needs_a_grant(send: Send) -> None:
    assert "rule 2" in denied(send("Bash", {"command": "make all"}, rules=RULES))
    assert send("Bash", {"command": "make all"}, rules=RULES, is_granted=True) == DONE
    assert "rule 2" in denied(send("Bash", {"command": "make all"}, rules=RULES))


def test_no_grant_helps_against_a_rule_that_denies(send: Send) -> None:
    denied(send("Bash", {"command": "git push"}, rules=RULES, is_granted=True))


@pytest.mark.parametrize("rules", ["{", '{"rules": 3}', " " * 40_000])
def test_rules_that_cannot_be_read_deny(send: Send, rules: str) -> None:
    assert "void rules" in denied(send("Bash", {"command": "ls"}, rules=rules))


def test_a_session_that_only_reads_does_so_on_the_node_too(send: Send) -> None:
    assert send("Bash", {"command": "ls"}, is_read_only=True) == DONE
    denied(send("Bash", {"command": "make"}, is_read_only=True, is_granted=True))
    denied(send("Write", {"path": "a", "content": ""}, is_read_only=True, is_granted=True))


def test_a_principals_tools_are_all_that_its_node_runs(send: Send) -> None:
    assert send("Read", {"path": "a"}, allowed_tools=["Read"]) == DONE
    denied(send("Bash", {"command": "ls"}, allowed_tools=["Read"]))
    denied(send("Bash", {"command": "ls"}, allowed_tools=[]))


def test_a_tool_of_the_coordinator_does_not_run_on_a_node(send: Send) -> None:
    result = send("TodoWrite", {"todos": []})
    assert result.error_code is ErrorCode.INTERNAL_ERROR
