"""The circuit breaker's scripts on a real Redis: against a plain model, and one probe among eight processes."""

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import redis
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from worker.contract import breaker, keys
from worker.contract.breaker import BreakerView, Ending, Phase

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
                max_examples=25, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
            ),
        )


ASKER = """
import json, sys, redis
url, script, places, token = sys.argv[1:]
client = redis.Redis.from_url(url)
admit = client.register_script(script)
client.ping()
for tool in sys.stdin:
    print(admit(keys=json.loads(places), args=[tool.strip(), token, 3600000, 60000])[0], flush=True)
"""
"""It imports nothing of ours: eight of them begin."""
ROUNDS = 25


def test_of_eight_processes_exactly_one_is_the_probe(
    scripts: Scripts, redis_url: str, until: Callable[..., None]
) -> None:
    for number in range(ROUNDS):
        for fault in range(FAULTS):
            scripts.report("s1", f"f{fault}", Ending.FAULT, Ending.NEUTRAL, f"tool{number}", recovery_ms=1)
    until(lambda: all(one.phase is Phase.HALF_OPEN for one in scripts.look(names("s1")[0])), "the cool-downs are over")
    asker = [sys.executable, "-c", ASKER, redis_url, breaker.ADMIT, json.dumps(names("s1"))]
    askers = [
        subprocess.Popen([*asker, f"asker{number}"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for number in range(8)
    ]
    try:
        asked = [ask_all(askers, f"tool{number}") for number in range(ROUNDS)]
    finally:
        for process in askers:
            process.communicate()
    assert asked == [[0] + [1] * 7] * ROUNDS


def ask_all(askers: list["subprocess.Popen[str]"], tool: str) -> list[int]:
    for asker in askers:
        assert asker.stdin is not None
        asker.stdin.write(f"{tool}\n")
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
