"""Background commands of whole sessions: they outlive calls and workers, and end with the session."""

import asyncio
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from coordinator.embedded import Embedded
from coordinator.endpoint.scripted import ScriptedCall, Turn

pytestmark = pytest.mark.docker


async def look_after(embedded: Embedded) -> None:
    """Restart the worker whenever it dies, as the command line does."""
    while True:
        embedded.look_after()
        await asyncio.sleep(0.05)


async def kill_once(path: Path, pid: int) -> None:
    """Kill the process as soon as the file is there."""
    async with asyncio.timeout(60):
        while not await asyncio.to_thread(path.exists):
            await asyncio.sleep(0.02)
    os.kill(pid, signal.SIGKILL)


def kept_output(state_dir: Path) -> list[str]:
    """What is kept of background commands after their sessions."""
    return [file.read_text() for file in state_dir.glob("**/spill/background-*.txt")]


async def test_a_background_command_outlives_the_worker_and_its_output_the_session(
    stage: Any, embedded: Embedded, state_dir: Path
) -> None:
    wait = "for i in $(seq 3000); do [ -e {} ] && break; sleep 0.01; done"
    server = f"echo one; {wait.format('go')}; echo two; touch said; sleep 100"
    script = [
        Turn(calls=(ScriptedCall("Bash", {"command": server, "background": True}),)),
        Turn(calls=(ScriptedCall("Bash", {"command": f"touch begun; sleep 1; touch go; {wait.format('said')}"}),)),
        Turn(calls=(ScriptedCall("BashOutput", {"id": "bg1"}), ScriptedCall("BashOutput", {"id": "bg2"}))),
        Turn("done"),
    ]
    worker = embedded.worker_pid
    tasks = [
        asyncio.create_task(look_after(embedded)),
        asyncio.create_task(kill_once(stage.project / "begun", worker)),
    ]
    try:
        played = await stage.play(script)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    assert embedded.worker_pid != worker
    assert played.result.status == "completed"
    start, wait_for_it, seen, unknown = (json.loads(str(answer["content"])) for answer in played.answers())
    assert start["status"] == "success", start
    assert "[started in the background as bg1]" in start["text"]
    assert wait_for_it["status"] == "success"
    shown = start["text"].partition("[started")[0] + seen["text"].partition("[bg1")[0]
    assert shown == "one\ntwo\n"
    assert "[bg1 is still running: " in seen["text"]
    assert unknown["error"]["code"] == "NOT_FOUND"
    assert "Running: bg1 (`echo one; " in unknown["error"]["message"]
    assert kept_output(state_dir) == ["one\ntwo\n"]
