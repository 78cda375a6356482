"""A session is cancelled from another process, as `sandhog cancel` does it."""

import asyncio

import pytest

from coordinator.cluster.store import Store, connect
from coordinator.embedded import Embedded
from coordinator.endpoint.scripted import ScriptedCall, Turn
from coordinator.session.call_events import CallStarted
from coordinator.session.events import Event
from tests.cluster.conftest import Stage

pytestmark = pytest.mark.docker


async def test_who_runs_a_session_is_asked_to_cancel_it(stage: Stage, embedded: Embedded) -> None:
    started = asyncio.Event()

    def note(event: Event) -> None:
        if isinstance(event, CallStarted):
            started.set()

    elsewhere = connect(embedded.redis_url)
    store = Store(elsewhere)
    script = [Turn(calls=(ScriptedCall("Bash", {"command": "echo first; sleep 100"}),)), Turn("never said")]
    playing = asyncio.create_task(stage.play(script, sinks=(note,)))
    try:
        await asyncio.wait_for(started.wait(), 60)
        (session,) = [path.name for path in (stage.cluster.state_dir / "sessions").iterdir()]
        assert not await store.ask_cancel("20300131-120000-00000000")
        assert await store.ask_cancel(session)
        played = await asyncio.wait_for(playing, 60)
    finally:
        playing.cancel()
        await elsewhere.aclose()
    assert played.result.status == "cancelled"
    assert [event.error_code for event in played.events if event.type == "call_finished"] == ["CANCELLED"]
