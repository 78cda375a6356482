"""Gates: asked in their order, and the permission gate with the real rules and a real Redis."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import redis
from pydantic import JsonValue

from tests.orders import box_order, builtin_call, call_order
from tools.base import ErrorCode, ToolResult
from worker.contract import keys
from worker.contract.orders import Policy
from worker.gates.gate import GateCall, Handler, in_row
from worker.gates.permission import PermissionGate

DONE = ToolResult(status="success", text="done")
BOX = box_order()
MAKE: dict[str, JsonValue] = {"command": "make all"}

MakeCall = Callable[..., GateCall]


@pytest.fixture
def make_call(tmp_path: Path) -> MakeCall:
    def make(
        tool: str, arguments: dict[str, JsonValue], policy: Policy = Policy.GUARDED, joining: bool = False
    ) -> GateCall:
        return builtin_call(call_order(tool, arguments, box=BOX, policy=policy), tmp_path, joining=joining)

    return make


def ran(call: GateCall) -> ToolResult:
    return DONE


def grant(client: redis.Redis, tool: str, arguments: dict[str, JsonValue], make_call: MakeCall) -> None:
    client.set(keys.grant("s1", make_call(tool, arguments).order.digest), "1")


def code(result: ToolResult) -> ErrorCode | None:
    return result.error_code


class TestRow:
    def test_gates_are_asked_in_order_and_see_the_result_backwards(self, make_call: MakeCall) -> None:
        seen: list[str] = []

        class Noting:
            def __init__(self, name: str) -> None:
                self.name = name

            def __call__(self, call: GateCall, following: Handler) -> ToolResult:
                seen.append(f"{self.name} in")
                result = following(call)
                seen.append(f"{self.name} out")
                return result.with_text(f"{result.text} {self.name}")

        result = in_row([Noting("a"), Noting("b")], ran)(make_call("Read", {"path": "x"}))

        assert seen == ["a in", "b in", "b out", "a out"]
        assert result.text == "done b a"

    def test_a_gate_that_answers_ends_the_row(self, make_call: MakeCall) -> None:
        def refuse(call: GateCall, following: Handler) -> ToolResult:
            return ToolResult.failure(ErrorCode.CIRCUIT_OPEN, "not now")

        def unreachable(call: GateCall) -> ToolResult:
            raise AssertionError("the row went on")

        assert code(in_row([refuse], unreachable)(make_call("Read", {"path": "x"}))) is ErrorCode.CIRCUIT_OPEN

    def test_an_empty_row_is_its_last(self, make_call: MakeCall) -> None:
        assert in_row([], ran)(make_call("Read", {"path": "x"})) == DONE


class TestPermission:
    @pytest.fixture
    def row(self, redis_client: redis.Redis) -> Handler:
        return in_row([PermissionGate(redis_client)], ran)

    def test_reading_needs_no_grant(self, row: Handler, make_call: MakeCall) -> None:
        assert row(make_call("Read", {"path": "x"})) == DONE
        assert row(make_call("Bash", {"command": "ls -l"})) == DONE

    def test_without_a_grant_it_is_denied(self, row: Handler, make_call: MakeCall) -> None:
        result = row(make_call("Bash", MAKE))

        assert code(result) is ErrorCode.PERMISSION_DENIED
        assert result.error_message is not None
        assert result.error_message.startswith("Bash was not run: ")

    def test_a_grant_is_used_once(self, row: Handler, make_call: MakeCall, redis_client: redis.Redis) -> None:
        grant(redis_client, "Bash", MAKE, make_call)

        assert row(make_call("Bash", MAKE)) == DONE
        assert redis_client.dbsize() == 0
        assert code(row(make_call("Bash", MAKE))) is ErrorCode.PERMISSION_DENIED

    def test_of_eight_at_once_one_uses_it(self, row: Handler, make_call: MakeCall, redis_client: redis.Redis) -> None:
        grant(redis_client, "Bash", MAKE, make_call)

        with ThreadPoolExecutor(8) as threads:
            results = list(threads.map(row, [make_call("Bash", MAKE) for _ in range(8)]))
        assert results.count(DONE) == 1

    @pytest.mark.parametrize(
        ("tool", "arguments"),
        [
            ("Bash", {"command": "make all install"}),
            ("Bash", {"command": "make all", "timeout_ms": 1000}),
            ("Write", {"path": "a", "content": "make all"}),
        ],
    )
    def test_a_grant_for_other_arguments_is_none(
        self,
        row: Handler,
        make_call: MakeCall,
        redis_client: redis.Redis,
        tool: str,
        arguments: dict[str, JsonValue],
    ) -> None:
        grant(redis_client, "Bash", MAKE, make_call)

        assert code(row(make_call(tool, arguments))) is ErrorCode.PERMISSION_DENIED
        assert redis_client.dbsize() == 1

    def test_another_sessions_grant_is_none(self, row: Handler, make_call: MakeCall, redis_client: redis.Redis) -> None:
        redis_client.set(keys.grant("s2", make_call("Bash", MAKE).order.digest), "1")

        assert code(row(make_call("Bash", MAKE))) is ErrorCode.PERMISSION_DENIED

    def test_what_is_denied_runs_with_no_grant_either(
        self, row: Handler, make_call: MakeCall, redis_client: redis.Redis
    ) -> None:
        harmful: dict[str, JsonValue] = {"command": "sudo make install"}
        grant(redis_client, "Bash", harmful, make_call)

        assert code(row(make_call("Bash", harmful))) is ErrorCode.PERMISSION_DENIED

    def test_boxed_needs_no_grant_and_uses_none(
        self, row: Handler, make_call: MakeCall, redis_client: redis.Redis
    ) -> None:
        grant(redis_client, "Bash", MAKE, make_call)

        assert row(make_call("Bash", MAKE, Policy.BOXED)) == DONE
        assert redis_client.dbsize() == 1

    def test_a_join_passes_since_its_call_used_the_grant(
        self, row: Handler, make_call: MakeCall, redis_client: redis.Redis
    ) -> None:
        grant(redis_client, "Bash", MAKE, make_call)
        assert row(make_call("Bash", MAKE)) == DONE

        assert row(make_call("Bash", MAKE, joining=True)) == DONE
