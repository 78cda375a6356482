"""`sandhog batch --webhook`: who is told, what, and who is not. The command is a process, the receiver a real one."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from coordinator.batch.lines import ResultLine
from coordinator.endpoint.scripted import ScriptedEndpoint, Turn
from tests.cluster.commands import started
from tests.receiving import Receiver, is_signed, receiving

SECRET = "signs-what-is-told-1"
PROMPT = "a text that only the model may see"


def batch(
    state_dir: Path, receiver: Receiver, lines: int, *arguments: str, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run a batch of two tasks, of which so many have their lines already."""
    tasks, out = state_dir / "tasks.jsonl", state_dir / "numbers-of-may"
    tasks.write_text("".join(json.dumps({"id": f"t{n}", "prompt": PROMPT}) + "\n" for n in range(2)))
    prices = state_dir / "models.toml"
    prices.write_text("[scripted]\ninput_usd = 1.0\noutput_usd = 1.0\n")
    done = [ResultLine(id=f"t{n}", status="completed", stop_reason="done", text=PROMPT, cost=1.0) for n in range(lines)]
    out.mkdir()
    (out / "results.jsonl").write_text("".join(one.model_dump_json() + "\n" for one in done))
    known = {"SANDHOG_WEBHOOK_SECRET": SECRET, "SANDHOG_WEBHOOK_PRIVATE": '["localhost"]', **variables}
    url = f"http://localhost:{receiver.server_address[1]}/hook/part-that-nobody-may-see"
    more = ["--out", str(out), "--webhook", url, "--json", *arguments]
    known["SANDHOG_MODELS_FILE"] = str(prices)
    with (
        ScriptedEndpoint([Turn("done")]) as endpoint,
        started(endpoint, state_dir, "batch", str(tasks), *more, **known) as process,
    ):
        said, err = process.communicate(timeout=100)
    return subprocess.CompletedProcess(more, process.returncode, said, err)


def told(receiver: Receiver) -> dict[str, Any]:
    headers, body = receiver.got[-1]
    assert is_signed(headers, body, SECRET)
    assert not is_signed(headers, body + b" ", SECRET)
    for unsaid in (PROMPT, SECRET, "t0", "numbers-of-may/"):
        assert unsaid not in body.decode()
    message = json.loads(body)
    assert message["event"] == "batch_ended"
    return dict(message["batch"])


def test_the_end_is_told_signed_and_again_until_it_is_heard(state_dir: Path) -> None:
    with receiving(500) as receiver:
        done = batch(state_dir, receiver, 2)
        assert done.returncode == 0, done.stderr
        first, second = receiver.got
        assert first[0]["sandhog-delivery"] == second[0]["sandhog-delivery"]
        batch_told = told(receiver)
    summary = json.loads(done.stdout)
    assert (batch_told.pop("out"), batch_told.pop("outcome"), batch_told.pop("left")) == (
        "numbers-of-may", "finished", 0,
    )  # fmt: skip
    assert batch_told.pop("ended_at") > "2"
    assert batch_told == {name: value for name, value in summary.items() if name != "out"}
    assert batch_told["completed"] == 2
    kept = (state_dir / "numbers-of-may" / "manifest.json").read_text()
    assert "--webhook" in kept
    assert "part-that-nobody-may-see" not in kept


def test_a_batch_that_was_stopped_is_told_of_too(state_dir: Path, redis_url: str) -> None:
    with receiving() as receiver:
        done = batch(state_dir, receiver, 1, "--budget", "0.5", SANDHOG_REDIS_URL=redis_url)
        assert (done.returncode, "budget is used up" in done.stderr) == (1, True), done.stderr
        batch_told = told(receiver)
    assert len(receiver.got) == 1
    assert (batch_told["outcome"], batch_told["left"], batch_told["completed"]) == ("stopped", 1, 1)


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"SANDHOG_WEBHOOK_PRIVATE": "[]"}, "an address inside"),
        ({"SANDHOG_WEBHOOK_SECRET": "short"}, "secret"),
        ({"SANDHOG_WEBHOOK_SECRET": ""}, "SANDHOG_WEBHOOK_SECRET"),
    ],
)
def test_what_may_not_be_told_or_cannot_be_signed_begins_nothing(
    state_dir: Path, variables: dict[str, str], words: str
) -> None:
    with receiving() as receiver:
        done = batch(state_dir, receiver, 1, **variables)
        assert done.returncode == 2, done.stderr
        assert words in done.stderr
        assert "part-that-nobody-may-see" not in done.stderr
        assert receiver.got == []
    assert not (state_dir / "numbers-of-may" / "manifest.json").exists()
