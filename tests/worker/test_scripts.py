"""The Lua scripts on a real Redis: what must not be torn in two is not."""

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest
import redis

from worker.contract import keys, scripts
from worker.contract.orders import CallKey

KEY = CallKey(session="s1", generation=2, step=3, index=0)
TTL_S = 60


def open_session(client: redis.Redis, least: int = 1) -> int:
    return int(client.register_script(scripts.OPEN_SESSION)(keys=[keys.session("s1")], args=[least, TTL_S]))


def begin_step(client: redis.Redis, generation: int, step: int) -> bool:
    answer = client.register_script(scripts.BEGIN_STEP)(keys=[keys.session("s1")], args=[generation, step, TTL_S, "1"])
    return bool(answer == 1)


def claim(client: redis.Redis, key: CallKey = KEY, token: str = "t1") -> str:
    names = [keys.claim(str(key)), keys.session(key.session)]
    answer = client.register_script(scripts.CLAIM)(keys=names, args=[token, key.generation, key.step, TTL_S])
    assert isinstance(answer, bytes)
    return scripts.ClaimVerdict(answer.decode()).value


def fence(client: redis.Redis, *call_keys: CallKey) -> list[int]:
    answer = client.register_script(scripts.FENCE)(keys=[keys.claim(str(key)) for key in call_keys], args=[TTL_S])
    assert isinstance(answer, list)
    return answer


def take(client: redis.Redis, limit: int, *holders: str, ttl_s: int = TTL_S) -> int:
    return int(client.register_script(scripts.TAKE)(keys=[keys.lanes("a")], args=[limit, ttl_s, *holders]))


@pytest.fixture
def session(redis_client: redis.Redis) -> redis.Redis:
    """A client; session `s1` stands at generation 2, step 3."""
    assert open_session(redis_client, least=2) == 2
    assert begin_step(redis_client, 2, 3)
    return redis_client


class TestClaim:
    def test_it_is_granted_once(self, session: redis.Redis) -> None:
        assert claim(session, token="t1") == "granted"
        assert claim(session, token="t2") == "taken"

    def test_the_same_delivery_is_granted_again(self, session: redis.Redis) -> None:
        assert claim(session, token="t1") == "granted"
        assert claim(session, token="t1") == "granted"

    @pytest.mark.parametrize("name", [keys.session_breakers("s1"), keys.node_breakers("a")])
    def test_it_says_whether_a_breaker_has_a_record_of_the_tool(self, session: redis.Redis, name: str) -> None:
        def claim_of(tool: str, index: int) -> str:
            key = KEY.model_copy(update={"index": index})
            breakers = [keys.session_breakers("s1"), keys.node_breakers("a")]
            names = [keys.claim(str(key)), keys.session("s1"), *breakers]
            arguments: list[str | int] = ["t", key.generation, key.step, TTL_S, tool]
            answer = session.register_script(scripts.CLAIM)(keys=names, args=arguments)
            assert isinstance(answer, bytes)
            return answer.decode()

        session.hset(name, "Bash", "{}")

        assert claim_of("Bash", 0) == "granted_marked"
        assert claim_of("Bash", 0) == "granted_marked"
        assert claim_of("Read", 1) == "granted"

    def test_of_a_sub_agent_only_while_the_session_above_it_is_the_same_and_goes_on(self, session: redis.Redis) -> None:
        child = CallKey(session="s1.2-3-0", generation=1, step=1, index=0)
        script = session.register_script(scripts.OPEN_SESSION)
        assert script(keys=[keys.session(child.session)], args=[1, TTL_S]) == 1

        def claim_in(index: int, box_generation: int = 2) -> str:
            breakers = [keys.session_breakers(child.session), keys.node_breakers("a")]
            names = [keys.claim(f"{child}/{index}"), keys.session(child.session), *breakers, keys.session("s1")]
            arguments: list[str | int] = ["t", child.generation, child.step, TTL_S, "Bash", box_generation]
            answer = session.register_script(scripts.CLAIM)(keys=names, args=arguments)
            assert isinstance(answer, bytes)
            return answer.decode()

        assert claim_in(1) == "granted"
        assert claim_in(2, box_generation=1) == "stale_generation"
        session.hset(keys.session("s1"), "cancelled", "1")
        assert claim_in(3) == "cancelled"
        assert open_session(session) == 3
        assert claim_in(4) == "stale_generation"
        session.delete(keys.session("s1"))
        assert claim_in(5) == "granted"

    def test_of_eight_at_once_one_gets_it(self, session: redis.Redis) -> None:
        start = threading.Barrier(8)

        def ask(number: int) -> str:
            start.wait(60)
            return claim(session, token=f"t{number}")

        with ThreadPoolExecutor(8) as threads:
            assert Counter(threads.map(ask, range(8))) == {"granted": 1, "taken": 7}

    def test_each_attempt_and_place_has_its_own(self, session: redis.Redis) -> None:
        assert claim(session) == "granted"
        assert claim(session, KEY.next_attempt()) == "granted"
        assert claim(session, KEY.model_copy(update={"index": 1})) == "granted"

    def test_a_fenced_call_never_starts(self, session: redis.Redis) -> None:
        assert fence(session, KEY) == [1]
        assert claim(session) == "fenced"

    @pytest.mark.parametrize("generation", [1, 3])
    def test_another_generation_is_stale(self, session: redis.Redis, generation: int) -> None:
        assert claim(session, KEY.model_copy(update={"generation": generation})) == "stale_generation"

    def test_an_earlier_step_is_stale(self, session: redis.Redis) -> None:
        assert claim(session, KEY.model_copy(update={"step": 2})) == "stale_step"

    def test_steps_are_compared_as_numbers(self, session: redis.Redis) -> None:
        assert begin_step(session, 2, 10)
        assert claim(session, KEY.model_copy(update={"step": 9})) == "stale_step"
        assert claim(session, KEY.model_copy(update={"step": 10})) == "granted"

    def test_a_later_step_is_granted(self, session: redis.Redis) -> None:
        assert claim(session, KEY.model_copy(update={"step": 4})) == "granted"

    def test_a_session_that_has_begun_no_step_is_granted(self, redis_client: redis.Redis) -> None:
        open_session(redis_client, least=2)
        assert claim(redis_client) == "granted"

    def test_a_cancelled_session_starts_nothing(self, session: redis.Redis) -> None:
        session.hset(keys.session("s1"), "cancelled", "1")
        assert claim(session) == "cancelled"

    def test_no_session_is_a_stale_generation(self, redis_client: redis.Redis) -> None:
        assert claim(redis_client) == "stale_generation"

    def test_a_refusal_leaves_no_claim(self, session: redis.Redis) -> None:
        stale = KEY.model_copy(update={"step": 1})
        claim(session, stale)
        assert not session.exists(keys.claim(str(stale)))

    def test_it_expires(self, session: redis.Redis) -> None:
        claim(session)
        assert 0 < int(session.ttl(keys.claim(str(KEY)))) <= TTL_S


class TestFence:
    def test_before_the_claim_it_holds(self, session: redis.Redis) -> None:
        assert fence(session, KEY) == [1]
        assert fence(session, KEY) == [1]

    def test_after_the_claim_it_says_that_the_call_started(self, session: redis.Redis) -> None:
        claim(session)
        assert fence(session, KEY) == [0]
        assert claim(session, token="t1") == "granted"

    def test_many_calls_are_answered_each_in_its_place(self, session: redis.Redis) -> None:
        other, third = KEY.next_attempt(), KEY.model_copy(update={"index": 9})
        claim(session, other)
        assert fence(session, KEY, other, third) == [1, 0, 1]

    def test_it_expires(self, session: redis.Redis) -> None:
        fence(session, KEY)
        assert 0 < int(session.ttl(keys.claim(str(KEY)))) <= TTL_S

    def test_claim_and_fence_at_once_agree(self, session: redis.Redis) -> None:
        for index in range(50):
            key = KEY.model_copy(update={"index": index})
            start = threading.Barrier(2)

            def ask(key: CallKey = key, start: threading.Barrier = start) -> str:
                start.wait(60)
                return claim(session, key)

            with ThreadPoolExecutor(1) as thread:
                asked = thread.submit(ask)
                start.wait(60)
                is_fenced = fence(session, key) == [1]
            assert asked.result() == ("fenced" if is_fenced else "granted")


class TestSession:
    def test_generations_count_up(self, redis_client: redis.Redis) -> None:
        assert [open_session(redis_client) for _ in range(3)] == [1, 2, 3]

    def test_a_generation_is_never_below_the_least(self, redis_client: redis.Redis) -> None:
        assert open_session(redis_client, least=7) == 7
        assert open_session(redis_client, least=2) == 8

    def test_a_step_of_an_older_generation_is_refused(self, session: redis.Redis) -> None:
        assert open_session(session) == 3
        assert not begin_step(session, 2, 4)
        assert session.hget(keys.session("s1"), "step") == b"0"
        assert begin_step(session, 3, 4)

    def test_generations_are_compared_as_numbers(self, redis_client: redis.Redis) -> None:
        assert begin_step(redis_client, 10, 1)
        assert not begin_step(redis_client, 9, 2)

    def test_a_step_brings_back_a_session_that_redis_lost(self, redis_client: redis.Redis) -> None:
        assert begin_step(redis_client, 2, 3)
        assert claim(redis_client) == "granted"

    def test_it_expires(self, session: redis.Redis) -> None:
        assert 0 < int(session.ttl(keys.session("s1"))) <= TTL_S


class TestTake:
    def test_as_many_as_fit_are_in_from_the_first(self, redis_client: redis.Redis) -> None:
        assert take(redis_client, 2, "a", "b", "c") == 2
        assert redis_client.zrange(keys.lanes("a"), 0, -1) == [b"a", b"b"]

    def test_a_full_house_takes_nobody(self, redis_client: redis.Redis) -> None:
        assert take(redis_client, 1, "a") == 1
        assert take(redis_client, 1, "b") == 0

    def test_a_holder_keeps_its_seat_in_a_full_house(self, redis_client: redis.Redis) -> None:
        take(redis_client, 1, "a")
        assert take(redis_client, 1, "a") == 1
        assert redis_client.zcard(keys.lanes("a")) == 1

    def test_a_lower_limit_turns_nobody_out(self, redis_client: redis.Redis) -> None:
        take(redis_client, 3, "a", "b", "c")
        assert take(redis_client, 1, "d") == 0
        assert redis_client.zcard(keys.lanes("a")) == 3

    def test_who_let_its_time_lapse_loses_the_seat(self, redis_client: redis.Redis) -> None:
        seconds = redis_client.time()[0]
        redis_client.zadd(keys.lanes("a"), {"gone": seconds, "here": seconds + 60})
        assert take(redis_client, 2, "new") == 1
        assert redis_client.zrange(keys.lanes("a"), 0, -1) == [b"here", b"new"]

    def test_asking_again_makes_the_time_longer(self, redis_client: redis.Redis) -> None:
        take(redis_client, 1, "a", ttl_s=10)
        take(redis_client, 1, "a", ttl_s=1_000)
        score = redis_client.zscore(keys.lanes("a"), "a")
        assert score is not None
        assert score > redis_client.time()[0] + 900

    def test_the_whole_set_goes_when_everybody_lapsed(self, redis_client: redis.Redis) -> None:
        take(redis_client, 1, "a")
        assert 0 < int(redis_client.ttl(keys.lanes("a"))) <= TTL_S

    def test_eight_threads_never_go_over_the_limit(self, redis_client: redis.Redis) -> None:
        limit, start, guard = 3, threading.Barrier(8), threading.Lock()
        inside: set[str] = set()
        seen: list[int] = []

        def work(number: int) -> None:
            start.wait(60)
            for turn in range(100):
                holder = f"{number}-{turn}"
                if take(redis_client, limit, holder) == 0:
                    continue
                with guard:
                    inside.add(holder)
                    seen.append(len(inside))
                assert redis_client.zcard(keys.lanes("a")) <= limit
                with guard:
                    inside.remove(holder)
                redis_client.zrem(keys.lanes("a"), holder)

        with ThreadPoolExecutor(8) as threads:
            list(threads.map(work, range(8)))
        assert 1 < max(seen) <= limit
        assert redis_client.zcard(keys.lanes("a")) == 0
