"""What is removed, in every state, and what is never touched."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import docker
import pytest

from sandbox.creation import BOX_LABEL, INSTALLATION_LABEL, LABEL, NAME_PREFIX, NODE_LABEL
from sandbox.engine import DockerEngine
from sandbox.reaper import ABANDONED_S, Reaper
from sandbox.record import BoxRecord, RecordStore
from sandbox.spec import BoxSpec

pytestmark = pytest.mark.docker

NODE = f"reaped-{os.getpid()}"
MakeEngine = Callable[..., DockerEngine]
MakeSpec = Callable[..., BoxSpec]
Leave = Callable[..., str]


def exists(client: docker.APIClient, box_id: str) -> bool:
    return bool(client.containers(all=True, filters={"name": NAME_PREFIX + box_id}))


@pytest.fixture
def leave(docker_client: docker.APIClient, busybox_image: str) -> Iterator[Leave]:
    """Leaves containers as a run that died would; returns their box ids."""
    left = []

    def make(name: str, records: RecordStore, *, is_started: bool = False, label: str = LABEL) -> str:
        box_id = f"{name}-{os.getpid()}"
        labels = {label: "1", NODE_LABEL: NODE, BOX_LABEL: box_id, INSTALLATION_LABEL: records.installation}
        docker_client.create_container(
            busybox_image, ["/bin/sh", "-c", "exit"], name=NAME_PREFIX + box_id, labels=labels
        )
        left.append(NAME_PREFIX + box_id)
        if is_started:
            docker_client.start(NAME_PREFIX + box_id)
            docker_client.wait(NAME_PREFIX + box_id)
        return box_id

    yield make
    for name in left:
        if docker_client.containers(all=True, filters={"name": name}):
            docker_client.remove_container(name, force=True)


def record_of(box_id: str, records: RecordStore) -> BoxRecord:
    name = NAME_PREFIX + box_id
    return BoxRecord(box_id, name, NODE, "s", 1, 0.0, 1e12, "i", "/w", "/s", 1, 1, "p", records.installation)


def test_what_never_started_or_has_ended_is_removed_with_its_record(
    docker_client: docker.APIClient, tmp_path: Path, leave: Leave
) -> None:
    records = RecordStore(tmp_path / "records")
    left = [leave("created", records), leave("exited", records, is_started=True), leave("unknown", records)]
    for box_id in left[:2]:
        records.save(record_of(box_id, records))
    assert all(exists(docker_client, box_id) for box_id in left)

    assert Reaper(docker_client, records, NODE, records.installation).sweep({}, set()) == 3

    assert not any(exists(docker_client, box_id) for box_id in left)
    assert records.box_ids() == []


def test_a_box_that_is_being_started_is_left_alone(
    docker_client: docker.APIClient, tmp_path: Path, leave: Leave
) -> None:
    records = RecordStore(tmp_path / "records")
    box_id = leave("starting", records)
    records.save(record_of(box_id, records))

    assert Reaper(docker_client, records, NODE, records.installation).sweep({}, {box_id}) == 0

    assert exists(docker_client, box_id)
    assert records.box_ids() == [box_id]


def test_installations_that_name_their_nodes_alike_leave_each_others_boxes_alone(
    make_engine: MakeEngine, make_spec: MakeSpec, tmp_path: Path, docker_client: docker.APIClient
) -> None:
    mine, other = make_engine("alike", tmp_path / "mine"), make_engine("alike", tmp_path / "other")
    box = mine.start(make_spec(), "s", 1)

    assert other.sweep() == 0
    assert other.adopt() == []

    assert exists(docker_client, box.box_id)
    assert box.answers(5)
    box.close()


def test_what_runs_of_any_installation_left_behind_goes_after_a_while(
    docker_client: docker.APIClient, tmp_path: Path, leave: Leave, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A label of this test's own: the clock below would make other runs' containers look old too.
    label = f"sandhog-test-{os.getpid()}"
    monkeypatch.setattr("sandbox.reaper.LABEL", label)
    theirs, mine = RecordStore(tmp_path / "theirs"), RecordStore(tmp_path / "mine")
    left = [leave("never", theirs, label=label), leave("ended", theirs, is_started=True, label=label)]
    born = min(
        float(docker_client.containers(all=True, filters={"name": NAME_PREFIX + box_id})[0]["Created"])
        for box_id in left
    )
    now = [born + ABANDONED_S - 1]
    reaper = Reaper(docker_client, mine, NODE, mine.installation, lambda: now[0])

    assert reaper.sweep({}, set()) == 0
    assert all(exists(docker_client, box_id) for box_id in left)
    now[0] += 60
    assert reaper.sweep({}, set()) == 2

    assert not any(exists(docker_client, box_id) for box_id in left)
