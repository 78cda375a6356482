"""What the chaos suite reads from claims."""

from pathlib import Path

import redis

from coordinator.session.call_events import CallFinished
from coordinator.session.events import Event
from coordinator.session.session_events import SessionEnded
from coordinator.session.transcript import Transcript
from tests.chaos.claims import claimed, without_claim
from worker.contract import keys, scripts


def ran(index: int) -> CallFinished:
    return CallFinished(step=1, index=index, call_id=f"c{index}", tool="Bash", status="success", answer="")


def written(sessions: Path, name: str, *events: Event) -> None:
    (sessions / name).mkdir()
    transcript = Transcript(sessions / name / f"{name}.1.jsonl")
    for event in events:
        transcript(event)
    transcript.close()


def test_a_fence_is_no_claim(redis_client: redis.Redis) -> None:
    redis_client.set(keys.claim("s:2:1:0:1"), "life/token")
    redis_client.set(keys.claim("s:2:1:1:1"), scripts.FENCED)
    assert claimed(redis_client) == {("s", 1, 0)}


def test_what_ran_in_a_running_session_has_its_claim(tmp_path: Path, redis_client: redis.Redis) -> None:
    redis_client.set(keys.claim("s:2:1:0:1"), "life/token")
    end = SessionEnded(status="completed", stop_reason="", text="", steps=1, calls=1)
    written(tmp_path, "s", ran(0), ran(1))
    # It has forgotten its claims.
    written(tmp_path, "ended", ran(0), end)
    assert without_claim(tmp_path, redis_client, end_s=0.1) == ["s step 1 call 1: ran without a claim"]
