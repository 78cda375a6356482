"""The worker is killed in the middle of an Edit; a result that is cut at the node licenses what is left of it."""

import asyncio
import json
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import redis

from coordinator.embedded import Embedded
from coordinator.endpoint.scripted import ScriptedCall, Turn
from coordinator.session.bounds import Budgets
from coordinator.session.call_events import CallFinished
from tests.cluster.machines import kept_up
from tests.cluster.test_deaths import contents
from worker.contract import keys

pytestmark = [pytest.mark.docker, pytest.mark.timeout(400)]
LINES = 200_000
END = "sandhog-test-end"


def edit(old: str, new: str) -> Turn:
    return Turn(calls=(ScriptedCall("Edit", {"path": "big", "old_string": old, "new_string": new}),))


def read(path: str, **more: int) -> Turn:
    return Turn(calls=(ScriptedCall("Read", {"path": path, **more}),))


@contextmanager
def killing(embedded: Embedded, delays_s: list[float]) -> Iterator[list[int]]:
    """Kill the worker each time it has just taken hold of a path, so many seconds later; which ones were killed."""
    killed: list[int] = []
    lock = keys.path_lock("")
    ready = threading.Event()

    def watch() -> None:
        with redis.Redis.from_url(embedded.redis_url) as client, client.monitor() as monitor:
            ready.set()
            for command in monitor.listen():
                words = command["command"]
                if words.startswith(f"ECHO {END}"):
                    return
                # A script's own commands are shown, too: the one that takes hold is told by its lifetime.
                is_hold = words.startswith(f"SET {lock}") and " PX " in words
                if is_hold and delays_s and embedded.worker_pid not in killed:
                    pid = embedded.worker_pid
                    killed.append(pid)
                    threading.Event().wait(delays_s.pop(0))
                    os.kill(pid, signal.SIGKILL)

    thread = threading.Thread(target=watch)
    thread.start()
    assert ready.wait(60)
    try:
        yield killed
    finally:
        with redis.Redis.from_url(embedded.redis_url) as client:
            client.echo(END)
        thread.join(60)


async def test_a_worker_killed_in_an_edit_leaves_the_file_whole_and_gives_one_answer(
    stage: Any, embedded: Embedded
) -> None:
    """Twice, at other moments: at once after taking hold, and while the guest is likely to be writing."""
    big = stage.project / "big"
    original = "".join(f"line {number} of a large file\n" for number in range(LINES))
    big.write_text(original)
    os.chown(big, stage.project.stat().st_uid, stage.project.stat().st_gid)
    turns = [
        read("big", limit=1),
        edit("line 7 of", "LINE 7 OF"),
        read("big", limit=1),
        edit("line 9 of", "LINE 9 OF"),
        read("big", limit=1),
        edit("line 11 of", "LINE 11 OF"),
        Turn("done"),
    ]
    async with kept_up(embedded):
        with killing(embedded, [0.0, 0.1]) as killed:
            played = await stage.play(turns)

    assert len(killed) == 2
    assert played.result.status == "completed"
    answers = contents(played)
    assert len(answers) == 6
    finished = [event for event in played.events if isinstance(event, CallFinished)]
    assert sorted(event.step for event in finished) == [1, 2, 3, 4, 5, 6], "each call has one answer"
    expected = [original]
    for number, answer in ((7, answers[1]), (9, answers[3]), (11, answers[5])):
        changed = [text.replace(f"line {number} of", f"LINE {number} OF", 1) for text in expected]
        code = answer.get("error", {}).get("code")
        assert code in {None, "OUTCOME_UNKNOWN"}, [one.get("error") for one in answers]
        expected = changed if code is None else [*expected, *changed]
    assert answers[5]["status"] == "success", "nothing of the killed ones holds up the next"
    assert await asyncio.to_thread(big.read_text) in expected
    assert [path.name for path in stage.project.iterdir() if path.name.startswith(".sandhog")] == []


async def test_lines_that_the_node_cut_away_were_not_shown(stage: Any) -> None:
    """One line is longer than all that may be shown of a result: its middle is left out."""
    wide = stage.project / "wide.txt"
    wide.write_text("€" * 1_900 + "\nshort\n")
    os.chown(wide, stage.project.stat().st_uid, stage.project.stat().st_gid)
    write = Turn(calls=(ScriptedCall("Write", {"path": "wide.txt", "content": "new\n"}),))
    turns = [read("wide.txt"), read("wide.txt", offset=2), write, Turn("done")]
    played = await stage.play(turns, budgets=Budgets(result_bytes=4_000))

    first, second, third = (json.loads(str(answer["content"])) for answer in played.answers())
    assert len(first["text"].encode()) <= 4_000
    assert "left out here" in first["text"]
    assert "all of it: /spill/" in first["text"]
    assert second["text"] == "     2\tshort\n"
    assert third["error"]["code"] == "CONFLICT"
    assert "has 2 lines, of which these were not shown: 1." in third["error"]["message"]
    assert wide.read_text().endswith("short\n")
