"""The circuit breaker: its scripts on a real Redis against a plain model, one probe among eight processes, the gate."""

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import redis
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from pydantic import JsonValue, ValidationError

from tools.base import AnyTool, ErrorCode, ToolResult
from tools.read import Read
from tools.registry import builtin_registry
from tools.schema import parse_arguments
from worker.contract import breaker, keys
from worker.contract.breaker import BreakerRule, BreakerSettings, BreakerView, Ending, Phase
from worker.contract.orders import BoxOrder, CallKey, CallOrder, Policy, WorkspaceMode
from worker.gates.breaker import BreakerGate
from worker.gates.gate import GateCall
from worker.settings import NodeSettings
from worker.spill import SpillFile

NODE = "a"
TOOL = "Bash"
FAULTS, RECOVERY_MS, PROBE_MS, TTL_MS = 3, 10_000, 2_000, 3_600_000


class Scripts:
    """The two scripts; with `clock` set, Redis' time is what that key holds."""

    def __init__(self, client: redis.Redis, clock: str | None = None) -> None:
        self.client = client
        admit, report = breaker.ADMIT, breaker.REPORT
        if clock is not None:
            assert admit.count(breaker.NOW) == report.count(breaker.NOW) == 1
            mine = f"\nlocal now = tonumber(redis.call('GET', '{clock}'))\n"
            admit, report = admit.replace(breaker.NOW, mine), report.replace(breaker.NOW, mine)
        self._admit, self._report = client.register_script(admit), client.register_script(report)

    def admit(self, session: str, token: str, tool: str = TOOL, probe_ms: int = PROBE_MS) -> tuple[int, ...]:
        """Return (0,) or (place that refuses, ms to wait)."""
        answer: Any = self._admit(keys=names(session), args=[tool, token, TTL_MS, probe_ms])
        return tuple(int(part) for part in answer[:2])

    def report(
        self,
        session: str,
        token: str,
        ending: Ending,
        at_node: Ending,
        tool: str = TOOL,
        recovery_ms: int = RECOVERY_MS,
    ) -> list[list[int]]:
        arguments: list[str | int] = [tool, token, TTL_MS, session, FAULTS, recovery_ms, "TIMEOUT", ending, at_node]
        answer: Any = self._report(keys=names(session), args=arguments)
        return [[int(part) for part in one] for one in answer]

    def fault(self, session: str, count: int = 1, recovery_ms: int = RECOVERY_MS) -> None:
        for number in range(count):
            self.report(session, f"f{number}", Ending.FAULT, Ending.NEUTRAL, recovery_ms=recovery_ms)

    def look(self, key: str, now_ms: int | None = None) -> list[BreakerView]:
        now = breaker.now_ms(self.client.time()) if now_ms is None else now_ms
        return breaker.views(self.client.hgetall(key), now)


def names(session: str) -> list[str]:
    return [keys.session_breakers(session), keys.node_breakers(NODE)]


@pytest.fixture
def scripts(redis_client: redis.Redis) -> Scripts:
    return Scripts(redis_client)


@dataclass
class Model:
    """One breaker in plain Python."""

    faults: int = 0
    sessions: set[str] = field(default_factory=set)
    open_until: int = 0
    probe: tuple[str, int] | None = None
    """Token and end of its lease."""
    last: str = ""
    changed: int = 0

    def at(self, now: int) -> "Model":
        alive_until = max(self.changed, self.open_until, self.probe[1] if self.probe else 0) + TTL_MS
        return self if now < alive_until else Model()

    def wait(self, now: int, token: str) -> int:
        if self.open_until == 0:
            return 0
        if now < self.open_until:
            return self.open_until - now
        if self.probe and self.probe[0] != token and now < self.probe[1]:
            return self.probe[1] - now
        return 0

    def ended(self, now: int, token: str, session: str, ending: Ending, *, once_a_session: bool) -> "Model":
        if self.last == token:
            return self
        if self.open_until:
            if self.probe is None or self.probe[0] != token:
                return self
            if ending is not Ending.FAULT:
                return Model()
            return Model(self.faults + 1, self.sessions, now + RECOVERY_MS, None, token, now)
        match ending:
            case Ending.SUCCESS:
                return Model()
            case Ending.NEUTRAL:
                return self
        if once_a_session and session in self.sessions:
            return self
        faults = self.faults + 1
        open_until = now + RECOVERY_MS if faults >= FAULTS else 0
        return Model(faults, self.sessions | ({session} if once_a_session else set()), open_until, None, token, now)

    def view(self, now: int) -> list[BreakerView]:
        if self == Model():
            return []
        why, is_probing = "TIMEOUT", self.probe is not None and now < self.probe[1]
        if self.open_until == 0:
            return [BreakerView(TOOL, Phase.CLOSED, self.faults, why, 0.0, False)]
        if now < self.open_until:
            return [BreakerView(TOOL, Phase.OPEN, self.faults, why, (self.open_until - now) / 1000, False)]
        left = (self.probe[1] - now) / 1000 if self.probe and is_probing else 0.0
        return [BreakerView(TOOL, Phase.HALF_OPEN, self.faults, why, left, is_probing)]


SESSIONS = st.sampled_from(["s1", "s2", "s3"])
WAITS = st.sampled_from([1, PROBE_MS - 1, PROBE_MS, RECOVERY_MS - 1, RECOVERY_MS, RECOVERY_MS + 1, TTL_MS])


class Machine(RuleBasedStateMachine):
    """Three sessions on one node call one tool; the scripts and the model must agree at every moment."""

    def __init__(self, client: redis.Redis) -> None:
        super().__init__()
        self.client = client
        self.scripts = Scripts(client, clock="clock")
        self.now = 1_800_000_000_000
        self.count = 0
        self.running: list[tuple[str, str]] = []

    @initialize(session=SESSIONS, is_of_node=st.booleans(), ms=WAITS)
    def begin(self, session: str, is_of_node: bool, ms: int) -> None:
        self.client.flushall()
        self.client.set("clock", self.now)
        self.models = {key: Model() for session in ("s1", "s2", "s3") for key in names(session)}
        self.a_call_asks(session)
        self.a_tool_breaks(session, is_of_node)
        self.time_passes(ms)

    @rule(session=SESSIONS, is_of_node=st.booleans())
    def a_tool_breaks(self, session: str, is_of_node: bool) -> None:
        """So many faults that it opens, of one session or of all."""
        for other in ("s1", "s2", "s3"):
            self.count += 1
            who = other if is_of_node else session
            self._end(who, f"t{self.count}", Ending.FAULT, Ending.FAULT if is_of_node else Ending.NEUTRAL)

    @rule(ms=WAITS)
    def time_passes(self, ms: int) -> None:
        self.now += ms
        self.client.set("clock", self.now)
        self.models = {key: model.at(self.now) for key, model in self.models.items()}

    @rule(session=SESSIONS)
    def a_call_asks(self, session: str) -> None:
        self.count += 1
        self._ask(session, f"t{self.count}")

    @rule(data=st.data())
    def a_call_asks_again(self, data: st.DataObject) -> None:
        if self.running:
            self._ask(*data.draw(st.sampled_from(self.running)))

    def _ask(self, session: str, token: str) -> None:
        mine = [self.models[key] for key in names(session)]
        waits = [model.wait(self.now, token) for model in mine]
        refusing = next(((place, wait) for place, wait in enumerate(waits, 1) if wait), None)
        assert self.scripts.admit(session, token) == (refusing or (0,))
        if refusing is None:
            for model in mine:
                if model.open_until:
                    model.probe = (token, self.now + PROBE_MS)
                    model.changed = self.now
            if (session, token) not in self.running:
                self.running.append((session, token))

    @rule(data=st.data(), ending=st.sampled_from(Ending), is_of_node=st.booleans(), stays=st.booleans())
    def a_call_ends(self, data: st.DataObject, ending: Ending, is_of_node: bool, stays: bool) -> None:
        if not self.running:
            return
        session, token = data.draw(st.sampled_from(self.running))
        if not stays:
            self.running.remove((session, token))
        at_node = Ending.NEUTRAL if ending is Ending.FAULT and not is_of_node else ending
        self._end(session, token, ending, at_node)

    def _end(self, session: str, token: str, ending: Ending, at_node: Ending) -> None:
        told = self.scripts.report(session, token, ending, at_node)
        for place, (key, one) in enumerate(zip(names(session), (ending, at_node), strict=True)):
            model = self.models[key].ended(self.now, token, session, one, once_a_session=place == 1)
            self.models[key] = model
            assert told[place] == [model.faults, 1 if self.now < model.open_until else 0]

    @invariant()
    def looking_tells_what_the_model_says_and_changes_nothing(self) -> None:
        for key, model in getattr(self, "models", {}).items():
            before = self.client.hgetall(key)
            assert self.scripts.look(key, self.now) == model.view(self.now)
            assert self.client.hgetall(key) == before


def test_the_scripts_do_what_the_model_does(second_redis: str) -> None:
    with redis.Redis.from_url(f"unix://{second_redis}") as client:
        run_state_machine_as_test(
            lambda: Machine(client),  # type: ignore[arg-type]  # it takes what makes one, too
            settings=settings(
                max_examples=40, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
            ),
        )


ASKER = """
import sys, redis
from worker.contract import breaker, keys
client = redis.Redis.from_url(sys.argv[1])
admit = client.register_script(breaker.ADMIT)
client.ping()
for line in sys.stdin:
    session, tool = line.split()
    names = [keys.session_breakers(session), keys.node_breakers("a")]
    print(admit(keys=names, args=[tool, sys.argv[2], 3600000, 60000])[0], flush=True)
"""
ROUNDS = 25


def test_of_eight_processes_exactly_one_is_the_probe(
    scripts: Scripts, redis_url: str, until: Callable[..., None]
) -> None:
    for number in range(ROUNDS):
        for fault in range(FAULTS):
            scripts.report("s1", f"f{fault}", Ending.FAULT, Ending.NEUTRAL, f"tool{number}", recovery_ms=1)
    until(lambda: all(one.phase is Phase.HALF_OPEN for one in scripts.look(names("s1")[0])), "the cool-downs are over")
    root = str(Path(breaker.__file__).parents[2])
    askers = [
        subprocess.Popen(
            [sys.executable, "-c", ASKER, redis_url, f"asker{number}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=root,
        )
        for number in range(8)
    ]
    try:
        asked = [ask_all(askers, f"tool{number}") for number in range(ROUNDS)]
    finally:
        for asker in askers:
            asker.communicate()
    assert asked == [[0] + [1] * 7] * ROUNDS


def ask_all(askers: list["subprocess.Popen[str]"], tool: str) -> list[int]:
    for asker in askers:
        assert asker.stdin is not None
        asker.stdin.write(f"s1 {tool}\n")
        asker.stdin.flush()
    return sorted(int(asker.stdout.readline()) for asker in askers if asker.stdout is not None)


class TestScripts:
    def test_a_probe_whose_lease_lapsed_makes_room_and_no_longer_decides(
        self, scripts: Scripts, until: Callable[..., None]
    ) -> None:
        scripts.fault("s1", FAULTS, recovery_ms=1)
        until(lambda: scripts.admit("s1", "first", probe_ms=5) == (0,), "the first probe")
        until(lambda: scripts.admit("s1", "second") == (0,), "the second probe")

        scripts.report("s1", "first", Ending.SUCCESS, Ending.SUCCESS)

        assert scripts.look(names("s1")[0])[0].is_probing
        scripts.report("s1", "second", Ending.SUCCESS, Ending.SUCCESS)
        assert scripts.look(names("s1")[0]) == []

    def test_a_refusal_by_the_node_takes_no_probe_of_the_session(
        self, scripts: Scripts, until: Callable[..., None]
    ) -> None:
        scripts.fault("s1", FAULTS, recovery_ms=1)
        for session in ("s2", "s3", "s4"):
            scripts.report(session, session, Ending.FAULT, Ending.FAULT)
        until(lambda: scripts.look(names("s1")[0])[0].phase is Phase.HALF_OPEN, "the session's cool-down is over")

        assert scripts.admit("s1", "t1")[0] == 2
        assert not scripts.look(names("s1")[0])[0].is_probing

    def test_one_session_alone_takes_no_tool_from_its_nodes_others(self, scripts: Scripts) -> None:
        for number in range(10):
            scripts.report("s1", f"t{number}", Ending.FAULT, Ending.FAULT)

        assert scripts.admit("s1", "t")[0] == 1
        assert scripts.admit("s2", "u") == (0,)

    def test_three_sessions_in_a_row_take_it(self, scripts: Scripts) -> None:
        for session in ("s1", "s2", "s3"):
            scripts.report(session, f"of {session}", Ending.FAULT, Ending.FAULT)
        assert scripts.admit("s4", "t")[0] == 2

    def test_tools_and_sessions_have_their_own(self, scripts: Scripts) -> None:
        scripts.fault("s1", FAULTS)
        assert scripts.admit("s1", "t", "Grep") == (0,)
        assert scripts.admit("s2", "t") == (0,)
        assert scripts.admit("s1", "t")[0] == 1

    def test_records_expire_and_a_success_leaves_none(self, scripts: Scripts) -> None:
        scripts.fault("s1")
        assert 0 < int(scripts.client.pttl(names("s1")[0])) <= TTL_MS
        scripts.report("s1", "t", Ending.SUCCESS, Ending.SUCCESS)
        assert scripts.client.keys(keys.BREAKERS) == []

    def test_what_is_open_outlives_its_cool_down(self, scripts: Scripts) -> None:
        scripts.fault("s1", FAULTS, recovery_ms=2 * TTL_MS)
        assert int(scripts.client.pttl(names("s1")[0])) > 2 * TTL_MS


MakeCall = Callable[..., GateCall]


@pytest.fixture
def make_call(tmp_path: Path) -> MakeCall:
    numbers = iter(range(1_000))

    def make(tool: str = TOOL, session: str = "s1", joining: bool = False, key: CallKey | None = None) -> GateCall:
        found = builtin_registry().get(tool)
        assert found is not None
        arguments: dict[str, JsonValue] = {"command": "ls"} if tool == "Bash" else {"path": "x"}
        box = BoxOrder(
            session=session,
            generation=1,
            session_dir=str(tmp_path),
            image="i",
            workspace="/w",
            workspace_mode=WorkspaceMode.BIND,
        )
        order = CallOrder(
            key=key or CallKey(session=session, generation=1, step=1, index=next(numbers)),
            call_id="c",
            node=NODE,
            incarnation="a-1",
            tool=tool,
            arguments=arguments,
            policy=Policy.BOXED,
            principal="me",
            sent_at=0.0,
            box=box,
        )
        return GateCall(order, found, parse_arguments(found, arguments), SpillFile(tmp_path, order.key), joining)

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
