"""The scripts of an earlier release and today's on one Redis: each side's hold against the other's."""

from collections.abc import Mapping
from typing import Any

import pytest
import redis

from tests.upgrade.contract import lua
from tests.upgrade.releases import RELEASES, recorded
from worker.contract import keys
from worker.contract.orders import CallKey

TTL_S = 60
Lua = Mapping[str, str]


@pytest.fixture(params=[(release, is_owner_new) for release in RELEASES for is_owner_new in (True, False)], ids=str)
def sides(request: pytest.FixtureRequest) -> tuple[Lua, Lua]:
    """The scripts of whoever owns the session, and those of its node."""
    release, is_owner_new = request.param
    old, new = recorded(release, "scripts"), lua()
    return (new, old) if is_owner_new else (old, new)


def test_who_owns_a_session_and_what_was_claimed_holds_between_two_releases(
    sides: tuple[Lua, Lua], redis_client: redis.Redis
) -> None:
    def told(side: Lua, name: str, names: list[str], *arguments: Any) -> Any:
        said = redis_client.eval(side[name], len(names), *names, *map(str, arguments))
        return said.decode() if isinstance(said, bytes) else said

    def claimed(side: Lua, key: CallKey) -> Any:
        names = [keys.claim(str(key)), session, keys.session_breakers("s"), keys.node_breakers("a")]
        return told(side, "CLAIM", names, f"token of {key}", key.generation, key.step, TTL_S, "Bash")

    def fenced(key: CallKey) -> Any:
        return told(owner, "FENCE", [keys.claim(str(key))], TTL_S)

    owner, node = sides
    session, ours, theirs = keys.session("s"), keys.owned("one"), keys.owned("two")
    calls: list[CallKey] = [CallKey(session="s", generation=1, step=1, index=at) for at in range(3)]

    assert told(owner, "OPEN_SESSION", [session], 1, TTL_S, "one") == 1
    assert told(owner, "OWN", [session, ours], 1, "one", "s", TTL_S, "1", "0") == 1
    assert told(owner, "BEGIN_STEP", [session], 1, 1, TTL_S, "0") == 1
    assert claimed(node, calls[0]) == "granted"
    assert fenced(calls[0]) == [0], "it has started"
    assert fenced(calls[1]) == [1]
    assert claimed(node, calls[1]) == "fenced"
    assert told(owner, "TAKE", [keys.lanes("a")], 1, TTL_S, "mine") == 1
    assert told(node, "TAKE", [keys.lanes("a")], 1, TTL_S, "another's") == 0

    # A coordinator of the other release takes the session over.
    adopted = [session, keys.coordinator_lease("one"), ours, theirs]
    assert told(node, "ADOPT", adopted, "one", "two", "s", 2, TTL_S) == 2
    assert told(owner, "BEGIN_STEP", [session], 1, 2, TTL_S, "0") == 0, "the earlier owner is fenced"
    assert claimed(owner, calls[2]) == "stale_generation"
    cancelled = CallKey(session="s", generation=2, step=1, index=0)
    assert told(node, "BEGIN_STEP", [session], 2, 1, TTL_S, "0") == 1
    assert told(node, "CANCEL", [session, keys.claim(str(cancelled))], 2, TTL_S) == [1]
    assert claimed(owner, cancelled) == "fenced"
    assert claimed(owner, CallKey(session="s", generation=2, step=1, index=1)) == "cancelled"
