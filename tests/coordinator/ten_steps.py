"""A session of ten steps on a node in memory, and how it is played and gone on with."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from coordinator.cluster.parts import Cluster
from coordinator.endpoint.model import ModelClient, ModelSettings
from coordinator.endpoint.scripted import ScriptedCall, ScriptedEndpoint, Turn
from coordinator.session.approvals import Always
from coordinator.session.events import Event
from coordinator.session.model_table import ModelTable
from coordinator.session.reading import read_session
from coordinator.session.request import SessionRequest
from coordinator.session.result import SessionResult
from coordinator.session.resume import find, resume
from coordinator.session.runner import SessionRunner
from coordinator.session.workspace_choice import Chosen
from tests.coordinator.resuming import in_memory_cluster
from worker.contract.orders import Policy, WorkspaceMode

KEY = "sk-test-0123456789abcdef0123456789abcdef"
TODOS = {"todos": [{"content": "mend it", "status": "in_progress"}]}


def read(path: str) -> ScriptedCall:
    return ScriptedCall("Read", {"path": path})


def bash(command: str) -> ScriptedCall:
    return ScriptedCall("Bash", {"command": command})


TEN_STEPS = [
    Turn("I look.", calls=(read("a"), read("b"))),
    Turn(calls=(bash("echo 1"),)),
    Turn(calls=(ScriptedCall("TodoWrite", TODOS),)),
    Turn("Many.", calls=(read("c"), bash("echo 2"), read("d"), bash("echo 3"))),
    Turn(calls=(ScriptedCall("Nothing", {}), bash("touch 4"), bash("touch 5"))),
    Turn(calls=(ScriptedCall("Read", "{"),)),
    Turn("cut", finish_reason="length"),
    Turn(calls=(bash("echo 5"), bash("echo 6"))),
    Turn(calls=(read("e"),)),
    Turn("All done."),
]


HOME = {"3.0"}
"""TodoWrite, which runs in the coordinator."""


def replies(messages: list[dict[str, Any]]) -> int:
    return sum(message["role"] == "assistant" for message in messages)


def by_replies(messages: list[dict[str, Any]]) -> Turn:
    """What is said follows from the number of replies, whatever else was said meanwhile."""
    return TEN_STEPS[replies(messages)]


@pytest.fixture
def endpoint() -> Iterator[ScriptedEndpoint]:
    with ScriptedEndpoint(by_replies) as running:
        yield running


@pytest.fixture
async def model(endpoint: ScriptedEndpoint) -> AsyncIterator[ModelClient]:
    client = ModelClient(ModelSettings("scripted", base_url=endpoint.base_url, api_key=KEY))
    yield client
    await client.close()


@pytest.fixture
async def cluster(redis_url: str, tmp_path: Path) -> AsyncIterator[Cluster]:
    async with in_memory_cluster(redis_url, tmp_path / "state") as opened:
        yield opened


def wanted(tmp_path: Path, **more: Any) -> SessionRequest:
    (tmp_path / "project").mkdir(exist_ok=True)
    chosen = Chosen(tmp_path / "project", WorkspaceMode.COPY, "because", Policy.BOXED, False)
    return SessionRequest(**{"prompt": "mend it", "workspace": chosen, "image": "box:1", **more})


async def play(cluster: Cluster, model: ModelClient, request: SessionRequest, **more: Any) -> SessionResult:
    runner = SessionRunner(request, cluster=cluster, model=model, approver=Always(), sinks=[], **more)
    return await runner.run(asyncio.Event())


async def go_on(cluster: Cluster, model: ModelClient, session: str, message: str = "", **more: Any) -> SessionRunner:
    found = find(cluster.state_dir, session)
    request = found.saved.to_request(ModelTable())
    options: dict[str, Any] = {"approver": Always(), "sinks": [], **more}
    return await resume(found, request, cluster=cluster, model=model, message=message, **options)


def events_of(cluster: Cluster, session: str) -> list[Event]:
    reading = read_session(cluster.state_dir / "sessions" / session)
    return [entry.event for entry in reading.entries if entry.event is not None]
