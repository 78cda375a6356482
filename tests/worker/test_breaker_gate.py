"""The circuit breaker as a gate of a node, and its settings."""

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import redis
from pydantic import JsonValue, ValidationError

from tests.orders import box_order, builtin_call, call_order
from tools.base import AnyTool, ErrorCode, ToolResult
from tools.read import Read
from worker.contract import breaker, keys
from worker.contract.breaker import BreakerRule, BreakerSettings
from worker.contract.orders import CallKey
from worker.gates.breaker import BreakerGate
from worker.gates.gate import GateCall
from worker.settings import NodeSettings

NODE = "a"
TOOL = "Bash"
MakeCall = Callable[..., GateCall]


@pytest.fixture
def make_call(tmp_path: Path) -> MakeCall:
    numbers = iter(range(1_000))

    def make(tool: str = TOOL, session: str = "s1", joining: bool = False, key: CallKey | None = None) -> GateCall:
        arguments: dict[str, JsonValue] = {"command": "ls"} if tool == "Bash" else {"path": "x"}
        key = key or CallKey(session=session, generation=1, step=1, index=next(numbers))
        order = call_order(tool, arguments, key=key, box=box_order(session), node=NODE)
        return builtin_call(order, tmp_path, joining=joining)

    return make


def ends(code: ErrorCode | None) -> Callable[[GateCall], ToolResult]:
    """Return what follows the gate: a tool that ends so."""
    if code is None:
        return lambda _: ToolResult(status="success", text="done")
    return lambda _: ToolResult.failure(code, "It failed.")


def never(_: GateCall) -> ToolResult:
    raise AssertionError("the call ran")


class TestGate:
    @pytest.fixture
    def gate(self, redis_client: redis.Redis) -> BreakerGate:
        return BreakerGate(redis_client, NODE, BreakerSettings())

    def test_three_timeouts_open_it_and_the_next_call_does_not_run(
        self, gate: BreakerGate, make_call: MakeCall
    ) -> None:
        messages = [gate(make_call(), ends(ErrorCode.TIMEOUT)).error_message for _ in range(3)]
        assert messages == [
            "It failed. This was fault 1 in a row of Bash; after 3 it is switched off for a while.",
            "It failed. This was fault 2 in a row of Bash; after 3 it is switched off for a while.",
            "It failed. Bash is switched off now for 300 s: 3 faults in a row.",
        ]

        refused = gate(make_call(), never)

        assert refused.error_code is ErrorCode.CIRCUIT_OPEN
        assert refused.error_message is not None
        assert "3 faults in a row in this session, the last one TIMEOUT" in refused.error_message
        assert "tried again in 300 s" in refused.error_message
        assert refused.data == {"retry_in_s": 300, "scope": "session", "faults": 3, "last_fault": "TIMEOUT"}

    def test_a_call_that_no_breaker_knows_asks_none_and_counts_its_fault(
        self, gate: BreakerGate, make_call: MakeCall, redis_client: redis.Redis
    ) -> None:
        def scripts_run() -> int:
            stats: Any = redis_client.info("commandstats")
            return int(stats.get("cmdstat_evalsha", {"calls": 0})["calls"])

        before = scripts_run()
        assert gate(replace(make_call(), is_marked=False), ends(None)).text == "done"
        assert scripts_run() == before

        first = gate(replace(make_call(), is_marked=False), ends(ErrorCode.TIMEOUT)).error_message
        assert "fault 1 in a row" in str(first)
        second = gate(make_call(), ends(ErrorCode.TIMEOUT)).error_message
        assert "fault 2 in a row" in str(second)

    @pytest.mark.parametrize(
        "code",
        [
            ErrorCode.NOT_FOUND,
            ErrorCode.INVALID_PARAM,
            ErrorCode.CONFLICT,
            ErrorCode.CANCELLED,
            ErrorCode.PERMISSION_DENIED,
            ErrorCode.OUTCOME_UNKNOWN,
        ],
    )
    def test_the_models_mistakes_neither_count_nor_start_the_count_over(
        self, gate: BreakerGate, make_call: MakeCall, code: ErrorCode
    ) -> None:
        for _ in range(5):
            assert gate(make_call(), ends(code)).error_code is code
        for _ in range(2):
            gate(make_call(), ends(ErrorCode.TIMEOUT))
        assert gate(make_call(), ends(code)).error_message == "It failed."
        gate(make_call(), ends(ErrorCode.TIMEOUT))
        assert gate(make_call(), never).error_code is ErrorCode.CIRCUIT_OPEN

    @pytest.mark.parametrize("status", ["success", "partial"])
    def test_a_tool_that_works_starts_the_count_over(
        self, gate: BreakerGate, make_call: MakeCall, redis_client: redis.Redis, status: str
    ) -> None:
        for _ in range(2):
            gate(make_call(), ends(ErrorCode.TIMEOUT))
        gate(make_call(), lambda _: ToolResult(status=status, text="exit code 1"))
        assert redis_client.keys(keys.BREAKERS) == []

    @pytest.mark.parametrize("code", [ErrorCode.BOX_LOST, ErrorCode.INTERNAL_ERROR])
    def test_faults_of_the_node_in_three_sessions_close_the_tool_to_a_fourth(
        self, gate: BreakerGate, make_call: MakeCall, code: ErrorCode
    ) -> None:
        for session in ("s1", "s2", "s3"):
            gate(make_call(session=session), ends(code))
        refused = gate(make_call(session="s4"), never)
        assert refused.data["scope"] == "node"
        assert refused.error_message is not None
        assert "on this node, in several sessions" in refused.error_message
        assert gate(make_call("Read", session="s4"), ends(None)).status == "success"

    def test_timeouts_are_no_faults_of_the_node(self, gate: BreakerGate, make_call: MakeCall) -> None:
        for session in ("s1", "s2", "s3"):
            gate(make_call(session=session), ends(ErrorCode.TIMEOUT))
        assert gate(make_call(session="s4"), ends(None)).status == "success"

    def test_what_counts_and_when_it_opens_is_a_setting_of_each_tool(
        self, redis_client: redis.Redis, make_call: MakeCall
    ) -> None:
        patient = BreakerRule(counts_as_fault=("BOX_LOST",))
        strict = BreakerRule(faults=1, recovery_timeout_s=60)
        gate = BreakerGate(redis_client, NODE, BreakerSettings(tools={"Bash": patient, "Read": strict}))

        for _ in range(5):
            assert gate(make_call(), ends(ErrorCode.TIMEOUT)).error_message == "It failed."
        assert gate(make_call(), ends(ErrorCode.BOX_LOST)).error_message != "It failed."
        gate(make_call("Read"), ends(ErrorCode.TIMEOUT))
        assert gate(make_call("Read"), never).data["retry_in_s"] == 60

    def test_an_own_tool_says_itself_what_is_its_fault(self, gate: BreakerGate, make_call: MakeCall) -> None:
        class Own(Read):
            def counts_as_fault(self, code: ErrorCode) -> bool:
                return code is ErrorCode.EXECUTION_ERROR

        own: AnyTool = Own()
        for _ in range(3):
            gate(replace(make_call("Read"), tool=own), ends(ErrorCode.TIMEOUT))
        for _ in range(3):
            gate(replace(make_call("Read"), tool=own), ends(ErrorCode.EXECUTION_ERROR))
        assert gate(make_call("Read"), never).error_code is ErrorCode.CIRCUIT_OPEN

    def test_after_the_cool_down_a_neutral_end_closes_it(
        self, redis_client: redis.Redis, make_call: MakeCall, until: Callable[..., None]
    ) -> None:
        gate = BreakerGate(redis_client, NODE, BreakerSettings(default=BreakerRule(faults=1, recovery_timeout_s=0.05)))
        gate(make_call(), ends(ErrorCode.TIMEOUT))
        until(lambda: gate(make_call(), ends(ErrorCode.NOT_FOUND)).error_code is ErrorCode.NOT_FOUND, "the probe runs")
        assert redis_client.keys(keys.BREAKERS) == []

    def test_a_probe_that_fails_opens_it_again(
        self, redis_client: redis.Redis, make_call: MakeCall, until: Callable[..., None]
    ) -> None:
        def rule(recovery_s: float) -> BreakerSettings:
            return BreakerSettings(default=BreakerRule(faults=1, recovery_timeout_s=recovery_s))

        BreakerGate(redis_client, NODE, rule(0.05))(make_call(), ends(ErrorCode.TIMEOUT))
        gate = BreakerGate(redis_client, NODE, rule(90))
        until(lambda: gate(make_call(), ends(ErrorCode.TIMEOUT)).error_code is ErrorCode.TIMEOUT, "the probe runs")
        refused = gate(make_call(), never)
        assert refused.data["retry_in_s"] == 90
        assert refused.data["faults"] == 2

    def test_a_probe_whose_fate_is_unknown_decides_nothing(
        self, redis_client: redis.Redis, make_call: MakeCall, until: Callable[..., None]
    ) -> None:
        gate = BreakerGate(redis_client, NODE, BreakerSettings(default=BreakerRule(faults=1, recovery_timeout_s=0.05)))
        gate(make_call(), ends(ErrorCode.TIMEOUT))
        unknown = ErrorCode.OUTCOME_UNKNOWN
        until(lambda: gate(make_call(), ends(unknown)).error_code is unknown, "the probe runs")
        assert gate(make_call(), never).error_code is ErrorCode.CIRCUIT_OPEN

    def test_beside_a_running_probe_nothing_runs(
        self, redis_client: redis.Redis, make_call: MakeCall, until: Callable[..., None]
    ) -> None:
        gate = BreakerGate(redis_client, NODE, BreakerSettings(default=BreakerRule(faults=1, recovery_timeout_s=0.05)))
        gate(make_call(), ends(ErrorCode.TIMEOUT))
        beside: list[ToolResult] = []

        def probe(_: GateCall) -> ToolResult:
            beside.append(gate(make_call(), never))
            return ToolResult(status="success", text="done")

        until(lambda: gate(make_call(), probe).status == "success", "the probe runs")
        assert [one.error_code for one in beside] == [ErrorCode.CIRCUIT_OPEN]
        # Bash's own limit of 120 s, and 30 s of grace.
        wait_s = beside[0].data["retry_in_s"]
        assert isinstance(wait_s, int)
        assert 140 < wait_s <= 150

    def test_a_join_is_let_through_and_its_end_counts_once(self, gate: BreakerGate, make_call: MakeCall) -> None:
        call = make_call()
        gate(call, ends(ErrorCode.TIMEOUT))
        joined = gate(make_call(joining=True, key=call.order.key), ends(ErrorCode.TIMEOUT))
        assert joined.error_message is not None
        assert "fault 1 in a row" in joined.error_message
        for _ in range(2):
            gate(make_call(), ends(ErrorCode.TIMEOUT))
        assert gate(make_call(joining=True), ends(None)).status == "success"


def test_a_setting_that_names_no_error_code_is_refused() -> None:
    with pytest.raises(ValidationError, match="there is no error code TIME_OUT"):
        NodeSettings(
            redis_url="unix:///s", state_dir=Path("/"), breaker={"tools": {"Bash": {"counts_as_fault": ["TIME_OUT"]}}}
        )


@pytest.mark.parametrize(
    ("value", "words"),
    [("{oops", "SANDHOG_BREAKER"), ('{"tools": {"Bash": {"counts_as_fault": ["X"]}}}', "there is no error code X")],
)
def test_a_node_with_a_wrong_setting_ends_with_code_2_and_says_why(value: str, words: str, tmp_path: Path) -> None:
    environment = {**os.environ, "SANDHOG_BREAKER": value, "SANDHOG_REDIS_URL": "unix:///nowhere"}
    argv = [sys.executable, "-m", "worker", "run"]
    done = subprocess.run(
        argv,
        env={**environment, "SANDHOG_STATE_DIR": str(tmp_path)},
        cwd=Path(breaker.__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    assert words in done.stderr
    assert "Traceback" not in done.stderr
