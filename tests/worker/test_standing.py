"""Whether a box that stood still may go on, as Redis and the session's transcript tell it."""

from pathlib import Path

import pytest
import redis

from sandbox.heart import Standing
from sandbox.record import BoxRecord
from worker.contract import keys
from worker.standing import Owners

ENDED = '{"v":1,"seq":9,"at":"t","type":"session_ended"}\n'
GOES_ON = '{"v":1,"seq":1,"at":"t","type":"session_resumed"}\n'


def record(session_dir: Path) -> BoxRecord:
    (session_dir / "spill").mkdir(parents=True, exist_ok=True)
    return BoxRecord(
        box_id="b",
        container="c",
        node="n",
        session="s",
        generation=2,
        born=0.0,
        expires=0.0,
        image="i",
        workspace_dir=str(session_dir / "work"),
        spill_dir=str(session_dir / "spill"),
        uid=1,
        gid=1,
        profile="p",
    )


@pytest.mark.parametrize(
    ("segments", "standing"),
    [
        ({}, Standing.UNKNOWN),
        ({1: GOES_ON + ENDED}, Standing.LOST),
        # By number, not by name.
        ({9: GOES_ON, 10: GOES_ON + ENDED}, Standing.LOST),
        ({1: GOES_ON + ENDED, 2: GOES_ON}, Standing.UNKNOWN),
        ({1: GOES_ON + ENDED, 2: ""}, Standing.UNKNOWN),
        ({1: GOES_ON + ENDED[:-9]}, Standing.UNKNOWN),
        ({1: '"session_ended"\n'}, Standing.UNKNOWN),
    ],
)
def test_the_box_of_a_session_that_has_ended_is_nobodys(
    redis_client: redis.Redis, tmp_path: Path, segments: dict[int, str], standing: Standing
) -> None:
    owned = record(tmp_path / "s")
    for generation, text in segments.items():
        (tmp_path / "s" / f"s.{generation}.jsonl").write_text(text)
    assert Owners(redis_client, "n")(owned) is standing


def test_what_redis_knows_counts_more_than_the_transcript(redis_client: redis.Redis, tmp_path: Path) -> None:
    owned = record(tmp_path / "s")
    (tmp_path / "s" / "s.2.jsonl").write_text(ENDED)
    redis_client.hset(keys.session("s"), mapping={"generation": "2", "node": "n"})
    assert Owners(redis_client, "n")(owned) is Standing.OURS
    redis_client.hset(keys.session("s"), "node", "elsewhere")
    assert Owners(redis_client, "n")(owned) is Standing.LOST
