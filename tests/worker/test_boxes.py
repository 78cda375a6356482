"""A session's box on its node: warm or cold, lost, idle, adopted, standing still. Real engine, real Redis."""

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import docker
import pytest
import redis

from sandbox.box import Box
from sandbox.creation import NAME_PREFIX, NODE_LABEL
from sandbox.engine import DockerEngine, EngineSettings
from sandbox.heart import Standing
from sandbox.pool import PoolSettings
from sandbox.record import BoxRecord
from sandbox.requests import CallMark, RunRequest
from worker.boxes import Boxes
from worker.contract import keys
from worker.contract.orders import BoxOrder, CopyOrder, FinishOrder, WorkspaceMode
from worker.errors import BoxUnavailable, NoPlace
from worker.places import Places
from worker.standing import Owners

pytestmark = pytest.mark.docker

IMAGE = "sandhog-box:latest"
OWNER = 54_321
Until = Callable[..., None]
Make = Callable[..., Boxes]


@pytest.fixture
def node(request: pytest.FixtureRequest, until: Until) -> Iterator[str]:
    """A node's name; none of its containers may be left."""
    name = f"boxes-{os.getpid()}-{request.node.name[5:40]}"
    yield name
    client = docker.APIClient(version="auto")
    until(lambda: not client.containers(all=True, filters={"label": f"{NODE_LABEL}={name}"}), "no box is left")
    client.close()


@pytest.fixture
def told() -> list[Standing]:
    """What was answered when the node asked whether a box may go on."""
    return []


@pytest.fixture
def make(
    guest_folder: Path, node: str, tmp_path: Path, redis_client: redis.Redis, told: list[Standing]
) -> Iterator[Make]:
    """Makes the boxes of one node, again and again as its process is started again."""
    made: list[Boxes] = []
    owners = Owners(redis_client, node)

    def standing(record: BoxRecord) -> Standing:
        told.append(owners(record))
        return told[-1]

    def build(pool: PoolSettings | None = None, idle_s: float = 900.0, places: int = 8, **changes: Any) -> Boxes:
        proofs_dir = Path(os.environ["SANDHOG_PROOFS_DIR"])
        settings = EngineSettings(
            node, guest_folder, tmp_path / "records", proofs_dir, standing=standing, heartbeat_s=0.1, **changes
        )
        boxes = Boxes(
            DockerEngine(settings),
            60,
            pool=pool,
            nursery=tmp_path / "warm",
            idle_s=idle_s,
            places=Places(redis_client, node, places),
        )
        boxes.adopt()
        made.append(boxes)
        return boxes

    yield build
    for boxes in made:
        boxes.close()
    warm = tmp_path / "warm"
    assert not warm.exists() or list(warm.iterdir()) == []


@pytest.fixture
def project(tmp_path: Path) -> Path:
    path = tmp_path / "project"
    path.mkdir()
    (path / "a.txt").write_text("alpha\n")
    if os.geteuid() == 0:
        shutil.chown(path, OWNER, OWNER)
        shutil.chown(path / "a.txt", OWNER, OWNER)
    return path


@pytest.fixture
def order(project: Path, tmp_path: Path) -> Callable[..., BoxOrder]:
    def make_order(session: str = "s", generation: int = 1, mode: WorkspaceMode = WorkspaceMode.COPY) -> BoxOrder:
        session_dir = tmp_path / "sessions" / session
        (session_dir / "spill").mkdir(parents=True, exist_ok=True)
        return BoxOrder(
            session=session,
            generation=generation,
            session_dir=str(session_dir),
            image=IMAGE,
            workspace=str(project),
            workspace_mode=mode,
        )

    return make_order


MakeOrder = Callable[..., BoxOrder]


def sh(box: Box, command: str) -> str:
    key = os.urandom(6).hex()
    answer = box.run(RunRequest(CallMark(key, "d", "s", 1, 0), command=command))
    return answer.stdout.text() + answer.stderr.text()


def kill(box: Box) -> None:
    client = docker.APIClient(version="auto")
    client.kill(NAME_PREFIX + box.box_id)
    client.close()


def ready(boxes: Boxes, count: int, until: Until) -> None:
    warm = boxes._warm
    assert warm is not None
    until(lambda: warm.idle() == count, f"{count} boxes stand ready")


def waiting(boxes: Boxes) -> list[Box]:
    """The boxes that stand ready."""
    assert boxes._warm is not None
    return [warm.box for kind in boxes._warm._pool._kinds.values() for warm in kind.idle]


def test_a_new_session_gets_a_warm_box_with_its_copy_in_it(
    make: Make, order: MakeOrder, until: Until, tmp_path: Path
) -> None:
    boxes = make(PoolSettings(min_idle=1, least_wants=1))
    first = boxes.box_for(order("cold"))
    ready(boxes, 1, until)
    [ready_box] = waiting(boxes)

    box = boxes.box_for(order("warm"))

    assert box is ready_box
    assert box is not first
    work = tmp_path / "sessions" / "warm" / "work"
    assert sh(box, "cat a.txt; echo beta >> a.txt; id -u") == f"alpha\n{work.stat().st_uid}\n"
    assert sh(first, "cat a.txt") == "alpha\n"
    (tmp_path / "sessions" / "warm" / "spill" / "1.txt").write_text("spilled")
    assert sh(box, "cat /spill/1.txt; touch /spill/2 2>&1").startswith("spilled")
    if os.geteuid() == 0:
        assert work.stat().st_uid != (tmp_path / "sessions" / "cold" / "work").stat().st_uid
    ended = boxes.finish(FinishOrder(box=order("warm"), node="n", incarnation="i", apply=True))
    assert (ended.error, ended.changed, ended.applied) == (None, ["a.txt"], True)
    assert Path(order().workspace, "a.txt").read_text() == "alpha\nbeta\n"


def test_a_session_that_had_a_box_never_gets_a_warm_one_and_keeps_its_user(
    make: Make, order: MakeOrder, until: Until
) -> None:
    boxes = make(PoolSettings(min_idle=1, least_wants=1))
    boxes.box_for(order("other"))
    ready(boxes, 1, until)
    warm = boxes.box_for(order())
    user = sh(warm, "id -u; echo mine > mine")
    ready(boxes, 1, until)
    [ready_box] = waiting(boxes)
    kill(warm)

    fresh = boxes.box_for(order())

    assert waiting(boxes) == [ready_box]
    assert sh(fresh, "id -u; cat mine; echo more >> mine") == user + "mine\n"
    note = boxes.take_note("s", "s")
    assert "lost" in note
    assert "Kept: all files below /workspace" in note
    assert boxes.take_note("s", "s") == ""


def test_of_a_lost_box_hears_each_conversation_that_had_it_once(make: Make, order: MakeOrder) -> None:
    boxes = make(PoolSettings())
    warm = boxes.box_for(order())
    assert [boxes.take_note("s", of) for of in ("s", "s.1-1-0")] == ["", ""]
    kill(warm)
    boxes.box_for(order())

    heard = [boxes.take_note("s", of) for of in ("s.1-1-0", "s.1-1-1", "s", "s.1-1-0", "s")]

    assert ["lost" in note for note in heard] == [True, False, True, False, False]


def test_a_bound_directory_never_gets_a_warm_box(make: Make, order: MakeOrder, until: Until) -> None:
    boxes = make(PoolSettings(min_idle=1, least_wants=1))
    boxes.box_for(order("other"))
    ready(boxes, 1, until)
    [ready_box] = waiting(boxes)

    box = boxes.box_for(order(mode=WorkspaceMode.BIND))

    assert waiting(boxes) == [ready_box]
    assert sh(box, "pwd; cat a.txt") == "/workspace\nalpha\n"


def test_a_copy_that_fails_ends_the_warm_box_and_is_told(
    make: Make, order: MakeOrder, until: Until, project: Path
) -> None:
    boxes = make(PoolSettings(min_idle=1, least_wants=1))
    boxes.box_for(order("other"))
    ready(boxes, 1, until)
    shutil.rmtree(project)

    with pytest.raises(BoxUnavailable, match="does not exist"):
        boxes.box_for(order())

    assert boxes.running_box("s") is None


def test_an_idle_session_gives_its_place_back_and_goes_on_later(
    make: Make, order: MakeOrder, redis_client: redis.Redis, node: str, until: Until
) -> None:
    boxes = make(idle_s=0.5)
    redis_client.zadd(keys.places(node), {"s": 2e9})
    box = boxes.box_for(order())
    assert sh(box, "(sleep 0.1; echo later) & echo mine > mine; cd /tmp") == ""
    assert boxes.end_idle() == []

    until(lambda: boxes.end_idle() == ["s"], "the box was ended")

    assert not box.is_alive()
    assert redis_client.zrange(keys.places(node), 0, -1) == []
    fresh = boxes.box_for(order())
    assert redis_client.zrange(keys.places(node), 0, -1) == [b"s"]
    assert sh(fresh, "pwd; cat mine") == "/workspace\nmine\n"
    note = boxes.take_note("s", "s")
    assert "without a call" in note
    assert "Kept" in note
    assert "in /spill, in files named background-*" in note
    assert sh(fresh, "cat /spill/background-*") == "later\n"

    # Whoever asks for its end gave the place back, and the node had not come to it yet.
    redis_client.zrem(keys.places(node), "s")
    boxes.keep_places()
    assert redis_client.zcard(keys.places(node)) == 1
    boxes.finish(FinishOrder(box=order(), node=node, incarnation="i"))
    assert redis_client.zcard(keys.places(node)) == 0


def test_a_box_with_a_running_command_is_not_idle(make: Make, order: MakeOrder) -> None:
    boxes = make(idle_s=0.2)
    box = boxes.box_for(order())
    ended: list[list[str]] = []

    def look(_: bytes) -> None:
        ended.append(boxes.end_idle())

    request = RunRequest(
        CallMark("k", "d", "s", 1, 0), command="head -c 40000 /dev/zero; sleep 0.5; head -c 40000 /dev/zero"
    )
    box.run(request, look)
    assert ended
    assert not any(ended)


def test_without_a_free_place_an_idle_session_does_not_start_again(
    make: Make, order: MakeOrder, redis_client: redis.Redis, node: str, until: Until
) -> None:
    boxes = make(idle_s=0.01, places=1)
    boxes.box_for(order())
    until(lambda: boxes.end_idle() == ["s"], "the box was ended")
    redis_client.zadd(keys.places(node), {"another": 2e9})

    with pytest.raises(NoPlace, match="every place") as refused:
        boxes.box_for(order(), place_wait_s=0.0)
    assert refused.value.is_passing
    assert boxes.take_note("s", "s") == ""

    redis_client.delete(keys.places(node))
    assert boxes.box_for(order()).is_alive()
    assert "without a call" in boxes.take_note("s", "s")


def test_no_more_boxes_than_places_also_where_redis_lost_who_has_them(
    make: Make, order: MakeOrder, redis_client: redis.Redis, node: str
) -> None:
    boxes = make(places=1)
    boxes.box_for(order("one"))
    redis_client.delete(keys.places(node))

    with pytest.raises(NoPlace):
        boxes.box_for(order("two"), place_wait_s=0.0)
    # Whoever has a place gets its box, whatever else still stands here.
    redis_client.zadd(keys.places(node), {"two": 2e9})
    assert boxes.box_for(order("two")).is_alive()


def test_a_restarted_node_adopts_sessions_and_boxes_that_stand_ready(
    make: Make, order: MakeOrder, until: Until, tmp_path: Path
) -> None:
    first = make(PoolSettings(min_idle=2, least_wants=1))
    used = first.box_for(order("used"))
    ready(first, 2, until)
    assert first._warm is not None
    ready_ids = {box.box_id for box in waiting(first)}
    # As if the node had died in the middle of handing this one over.
    half = next(warm for kind in first._warm._pool._kinds.values() for warm in kind.idle)
    half.newborn.workspace_dir.rename(tmp_path / "half")
    (tmp_path / "warm" / "box-orphan" / "work").mkdir(parents=True)
    first._engine.close()

    second = make(PoolSettings(min_idle=2, least_wants=1))

    assert half.box.box_id not in {box.box_id for box in waiting(second)}
    again = second.running_box("used")
    assert again is not None
    assert again.box_id == used.box_id
    assert sh(again, "cat a.txt") == "alpha\n"
    assert not (tmp_path / "warm" / "box-orphan").exists()
    box = second.box_for(order("new"))
    assert box.box_id in ready_ids
    assert box.box_id != half.box.box_id
    assert sh(box, "cat a.txt") == "alpha\n"


@pytest.mark.parametrize(
    ("fields", "goes_on"),
    [({"generation": 1}, True), ({"generation": 2}, False), ({"generation": 1, "node": "x"}, False)],
)
def test_a_node_that_was_away_asks_who_has_the_session(
    make: Make,
    order: MakeOrder,
    redis_client: redis.Redis,
    until: Until,
    told: list[Standing],
    fields: dict[str, str],
    goes_on: bool,
) -> None:
    boxes = make()
    box = boxes.box_for(order())
    sh(box, "(while sleep 0.02; do echo >> /workspace/ticks; done) > /dev/null 2>&1 & exit 0")
    boxes._engine.freeze_all()
    until(lambda: box.is_frozen, "it stands still")
    # Nothing in Redis proves nothing.
    boxes._engine.release_all()
    until(lambda: len(told) >= 2, "it was asked about twice")
    assert set(told) == {Standing.UNKNOWN}
    assert box.is_frozen

    redis_client.hset(keys.session("s"), items=[part for pair in fields.items() for part in pair])

    until(lambda: not box.is_frozen or not box.is_alive(), "it is decided")
    assert box.is_alive() == goes_on
    if goes_on:
        before = sh(box, "wc -l < /workspace/ticks")
        until(lambda: sh(box, "wc -l < /workspace/ticks") != before, "its commands go on")


def test_an_order_of_the_owner_lets_its_box_go_on(make: Make, order: MakeOrder, until: Until) -> None:
    boxes = make()
    box = boxes.box_for(order())
    boxes._engine.freeze_all()
    until(lambda: box.is_frozen, "it stands still")
    boxes._engine.release_all()

    assert sh(boxes.box_for(order(generation=2)), "echo on") == "on\n"

    assert [record.generation for record in boxes._engine.records()] == [2]


def test_a_workspace_is_copied_while_its_commands_stand_still(
    make: Make, order: MakeOrder, tmp_path: Path, until: Until
) -> None:
    boxes = make()
    box = boxes.box_for(order())
    sh(box, "mkdir many && cd many && seq 1 4000 | xargs touch && cd .. && mkdir before behind")
    sh(box, "(while :; do echo x >> before/p; echo x >> behind/p; echo x >> many/p; done) > /dev/null 2>&1 &")
    work = tmp_path / "sessions" / "s" / "work"
    until(lambda: (work / "many" / "p").exists(), "it writes")
    target_dir = tmp_path / "sessions" / "fork"
    copy = CopyOrder(box=order(), node="n", incarnation="n-1", target="fork", target_dir=str(target_dir))
    assert boxes.copy(copy).error is None
    assert not box.is_frozen
    sizes = [(target_dir / "work" / name / "p").stat().st_size for name in ("before", "behind", "many")]
    assert max(sizes) - min(sizes) <= 2, "all three are as at one moment"
    size = (work / "many" / "p").stat().st_size
    until(lambda: (work / "many" / "p").stat().st_size > size, "it goes on")
    boxes.finish(FinishOrder(box=order(), node="n", incarnation="n-1"))


def test_a_full_disk_is_told_before_anything_is_made(make: Make, order: MakeOrder) -> None:
    boxes = make(min_free_bytes=1 << 60)
    with pytest.raises(BoxUnavailable, match=r"MiB free and 1099511627776 MiB must"):
        boxes.box_for(order())
