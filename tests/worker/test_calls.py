"""What a node remembers of its calls: real Redis, real engine; the calls are of a tool that no node has."""

import os
from collections.abc import Iterator
from pathlib import Path

import docker
import pytest
import redis

from sandbox.engine import DockerEngine, EngineSettings
from tests.orders import call_order
from tools.base import ToolResult
from tools.loading import load_tools
from worker import calls as module
from worker.boxes import Boxes
from worker.calls import Calls, ClaimRefused
from worker.contract import keys, scripts
from worker.contract.orders import BoxOrder, CallKey, CallOrder, CallOutcome, Fate, FinishOrder, WorkspaceMode
from worker.errors import BoxUnavailable
from worker.gates.gate import GateCall
from worker.mcp.entry import Mcp
from worker.own_secrets import Secrets
from worker.own_tools import OwnTools
from worker.spill import Spills

pytestmark = pytest.mark.docker

NODE = f"calls-test-{os.getpid()}"


@pytest.fixture
def boxes(guest_folder: Path, tmp_path: Path) -> Iterator[Boxes]:
    boxes = Boxes(
        DockerEngine(
            EngineSettings(NODE, guest_folder, tmp_path / "records", proofs_dir=Path(os.environ["SANDHOG_PROOFS_DIR"]))
        ),
        30,
    )
    yield boxes
    boxes.close()


@pytest.fixture
def calls(boxes: Boxes, redis_client: redis.Redis, tmp_path: Path) -> Calls:
    own = OwnTools(load_tools(), Secrets(None), tmp_path / "scratch")

    def unreachable(call: GateCall) -> ToolResult:
        raise AssertionError("no call of these tests has a tool")

    redis_client.register_script(scripts.OPEN_SESSION)(keys=[keys.session("s1")], args=[1, 60])
    return Calls(
        client=redis_client,
        registry=own.registry,
        boxes=boxes,
        own=own,
        mcp=Mcp(boxes, tmp_path / "scratch"),
        gates=unreachable,
        spills=Spills(),
        incarnation="now",
        on_cut=lambda *_: None,
    )


@pytest.fixture
def box_order(tmp_path: Path) -> BoxOrder:
    session_dir, project = tmp_path / "s1", tmp_path / "project"
    (session_dir / "spill").mkdir(parents=True)
    project.mkdir()
    return BoxOrder(
        session="s1",
        generation=1,
        session_dir=str(session_dir),
        image="sandhog-box:latest",
        workspace=str(project),
        workspace_mode=WorkspaceMode.COPY,
    )


def order(box: BoxOrder, index: int = 0, incarnation: str = "now") -> CallOrder:
    key = CallKey(session="s1", generation=1, step=1, index=index)
    return call_order("Fly", key=key, box=box, incarnation=incarnation)


def kept(calls: Calls) -> list[CallOutcome]:
    return [future.result() for future in calls._known.values() if future is not None and future.exception() is None]


def test_few_outcomes_are_kept_and_no_key_is_forgotten(
    calls: Calls, box_order: BoxOrder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "KEPT_OUTCOMES", 8)
    for index in range(30):
        assert calls.call(order(box_order, index)).fate is Fate.RAN

    assert [outcome.key.index for outcome in kept(calls)] == list(range(22, 30))
    for index in range(30):
        with pytest.raises(ClaimRefused, match="accepted before"):
            calls.call(order(box_order, index))
    assert calls.join(order(box_order, 29)) == kept(calls)[-1]


def test_refused_deliveries_do_not_pile_up(
    calls: Calls, box_order: BoxOrder, redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "KEPT_OUTCOMES", 8)
    redis_client.delete(keys.session("s1"))
    for index in range(30):
        with pytest.raises(ClaimRefused, match="stale"):
            calls.call(order(box_order, index))

    assert sum(future is not None for future in calls._known.values()) == 8
    # Whoever asks for one gets words for a model, not for a log.
    joined = calls.join(order(box_order, 29))
    assert (joined.fate, joined.reason) == (Fate.UNKNOWN, module.REFUSED)


def test_a_call_hears_of_its_cancel_while_it_is_on_its_way(calls: Calls, box_order: BoxOrder) -> None:
    heard = []

    def cancelled_on_the_way(call: GateCall) -> ToolResult:
        heard.append(call.is_cancelled())
        calls.cancel([str(call.order.key)])
        heard.append(call.is_cancelled())
        return ToolResult(status="success", text="")

    calls._gates = cancelled_on_the_way
    key = CallKey(session="s1", generation=1, step=1, index=0)
    calls.call(call_order("Bash", {"command": "true"}, key=key, box=box_order, incarnation="now"))

    assert heard == [False, True]


def test_an_order_for_another_life_leaves_no_claim(
    calls: Calls, box_order: BoxOrder, redis_client: redis.Redis
) -> None:
    late = order(box_order, incarnation="before")

    assert calls.call(late).fate is Fate.DID_NOT_RUN
    assert not redis_client.exists(keys.claim(str(late.key)))


def test_a_late_preparation_starts_no_box_for_a_session_that_has_ended(boxes: Boxes, box_order: BoxOrder) -> None:
    boxes.finish(FinishOrder(box=box_order, node="n", incarnation="now"))

    with pytest.raises(BoxUnavailable, match="has ended"):
        boxes.box_for(box_order)
    client = docker.APIClient(version="auto")
    assert not client.containers(all=True, filters={"label": f"sandhog.node={NODE}"})
    client.close()
