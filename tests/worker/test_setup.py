"""Images that are made for a session, what it brings along, on real boxes."""

import json
import os
import threading
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import docker
import pytest

from sandbox.controls import GVISOR_KERNEL
from sandbox.images import MADE_OF_LABEL
from sandbox.making import MADE_BY_LABEL, MADE_LABEL
from tests.conftest import Until
from tests.sandbox.gvisor import RUNTIME, missing_gvisor
from tests.worker.set_up import FRESH, IMAGE, NODE, Session, boxes, client, made, mirror, session
from worker.boxes import Boxes
from worker.contract.extras import ENV_FILE, FILES_DIR, FileIn
from worker.contract.orders import WorkspaceMode
from worker.errors import BoxUnavailable

pytestmark = pytest.mark.docker

__all__ = ["boxes", "client", "mirror", "session"]


def test_set_up_runs_as_root_with_a_network_of_its_own_and_the_box_has_neither(
    session: Callable[..., Session], mirror: int
) -> None:
    fetch = f"import urllib.request as r; print(r.urlopen('http://mirror.test:{mirror}/', timeout=10).read().decode())"
    commands = (
        FRESH,
        f'python3 -c "{fetch}" > /usr/local/share/package',
        "id -u > /usr/local/share/who; chown 5:5 /mnt",
    )
    ready = session(setup=commands, setup_hosts=(f"mirror.test:{mirror}",))
    assert ready.run("cat /usr/local/share/package").strip() == "a package"
    assert ready.run("cat /usr/local/share/who").strip() == "0"
    assert ready.run("id -u").strip() != "0"
    assert "Error" in ready.run(f'python3 -c "{fetch}"'), "the session itself has no network"
    assert ready.run("env | grep -i proxy").strip() == ""
    assert ready.run("cd && pwd && touch mine && echo works").split() == ["/home/agent", "works"]
    assert "denied" in ready.run("echo x > /usr/local/share/package")


def test_set_up_works_on_gvisor_too(session: Callable[..., Session], mirror: int) -> None:
    if (reason := missing_gvisor()) is not None:
        pytest.skip(reason)
    fetch = f"import urllib.request as r; print(r.urlopen('http://mirror.test:{mirror}/', timeout=10).read().decode())"
    commands = (FRESH, f'python3 -c "{fetch}" > /usr/local/share/package', "uname -r > /usr/local/share/kernel")
    ready = session(setup=commands, setup_hosts=(f"mirror.test:{mirror}",))
    ready.order = ready.order.model_copy(update={"runtime": RUNTIME})
    assert ready.run("cat /usr/local/share/package /usr/local/share/kernel").split() == ["a", "package", GVISOR_KERNEL]
    assert "Error" in ready.run(f'python3 -c "{fetch}"'), "the session itself has no network"


def test_what_was_set_up_once_is_found_again(session: Callable[..., Session], client: docker.APIClient) -> None:
    # Each run of the command would leave another word.
    commands = (FRESH, "cat /proc/sys/kernel/random/uuid > /usr/local/share/word")
    first = session(setup=commands).run("cat /usr/local/share/word")
    count = len(made(client))
    assert session(setup=commands).run("cat /usr/local/share/word") == first
    assert len(made(client)) == count
    assert session(setup=(*commands, "true")).run("cat /usr/local/share/word") != first


def test_lock_files_are_seen_by_set_up_and_are_part_of_the_name(session: Callable[..., Session]) -> None:
    commands = (FRESH, "cp /workspace/sub/lock.txt /usr/local/share/lock; ls /workspace > /usr/local/share/listing")

    def with_lock(text: str) -> Callable[[Path], None]:
        def prepare(project: Path) -> None:
            (project / "sub").mkdir()
            (project / "sub" / "lock.txt").write_text(text)
            (project / "other").write_text("not for set-up")

        return prepare

    one = session(with_lock("one"), setup=commands, setup_files=("sub/lock.txt",))
    assert one.run("cat /usr/local/share/lock /usr/local/share/listing") == "onesub\n"
    two = session(with_lock("two"), setup=commands, setup_files=("sub/lock.txt",))
    assert two.run("cat /usr/local/share/lock") == "two"


def test_a_lock_file_that_is_a_link_out_of_the_workspace_is_not_followed(session: Callable[..., Session]) -> None:
    def prepare(project: Path) -> None:
        (project / "lock").symlink_to("/etc/shadow")

    linked = session(prepare, setup=(FRESH, "cat /workspace/lock"), setup_files=("lock",))
    with pytest.raises(BoxUnavailable) as refused:
        linked.run("true")
    assert "root:" not in str(refused.value)


def test_a_set_up_that_fails_says_why_and_leaves_nothing(
    session: Callable[..., Session], client: docker.APIClient
) -> None:
    count = len(made(client))
    failing = session(setup=(FRESH, "echo this went wrong >&2; exit 7"))
    with pytest.raises(BoxUnavailable, match=r"(?s)exit code 7.*this went wrong"):
        failing.run("true")
    late = session(setup=(FRESH, "sleep 1000"), setup_timeout_s=2)
    with pytest.raises(BoxUnavailable, match="longer than 2 s"):
        late.run("true")
    assert len(made(client)) == count
    assert not client.containers(all=True, filters={"label": f"sandhog.node={NODE}", "status": "running"})[1:]
    assert not list(failing.dir.glob("setup-*"))


def test_a_session_that_ends_while_it_is_set_up_is_not_waited_for(
    session: Callable[..., Session], client: docker.APIClient, until: Until
) -> None:
    there = session(setup=(FRESH, "sleep 1000"))
    outcome: list[Any] = []

    def start() -> None:
        try:
            outcome.append(there.run("true"))
        except BoxUnavailable as refused:
            outcome.append(str(refused))

    def running() -> list[Any]:
        filters = {"label": [f"sandhog.node={NODE}", "sandhog.profile=setup"], "status": "running"}
        return list(client.containers(filters=filters))

    thread = threading.Thread(target=start)
    thread.start()
    until(lambda: bool(running()), "set-up runs", 90)
    there.finish()
    thread.join(60)
    assert "ended while its image was being made" in outcome[0]
    assert not running()


def test_a_kept_image_is_like_its_base_and_names_no_box(
    session: Callable[..., Session], client: docker.APIClient
) -> None:
    before = set(made(client))
    session(setup=(FRESH,)).run("true")
    (tag,) = set(made(client)) - before
    base, kept = (client.inspect_image(ref)["Config"] for ref in (IMAGE, tag))  # type: ignore[no-untyped-call]
    assert kept["Env"] == base["Env"]
    assert kept["Cmd"] == base["Cmd"]
    assert (kept["Entrypoint"] or None) == (base["Entrypoint"] or None)
    assert kept.get("StopSignal", "SIGTERM") == base.get("StopSignal", "SIGTERM")
    assert kept["Labels"][MADE_LABEL] == "setup"
    assert {name for name, value in kept["Labels"].items() if value} - set(base["Labels"] or {}) == {
        MADE_LABEL,
        MADE_BY_LABEL,
        MADE_OF_LABEL,
    }
    # What limits can do was proven with the base: the made one needs no proof of its own.
    assert kept["Labels"][MADE_OF_LABEL] == client.inspect_image(IMAGE)["Id"]  # type: ignore[no-untyped-call]
    proven = [json.loads(path.read_text()) for path in Path(os.environ["SANDHOG_PROOFS_DIR"]).glob("*.json")]
    made_id = client.inspect_image(tag)["Id"]  # type: ignore[no-untyped-call]
    assert made_id not in {proof["key"]["image"] for proof in proven}


def test_sessions_that_want_the_same_make_it_once(session: Callable[..., Session], client: docker.APIClient) -> None:
    commands = (FRESH, "cat /proc/sys/kernel/random/uuid > /usr/local/share/word")
    words: list[str] = []
    sessions = [session(setup=commands) for _ in range(3)]
    threads = [
        threading.Thread(target=lambda each=each: words.append(each.run("cat /usr/local/share/word")))
        for each in sessions
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(words) == 3
    assert len(set(words)) == 1


def test_made_images_go_when_nobody_used_them_for_long(
    boxes: Boxes, session: Callable[..., Session], client: docker.APIClient
) -> None:
    before = set(made(client))
    used = session(setup=(FRESH, "true"))
    used.run("true")
    gone = session(setup=(FRESH, ":"))
    gone.run("true")
    tags = set(made(client)) - before
    assert len(tags) == 2
    gone.finish()
    assert boxes._starter._setup is not None
    maker = boxes._starter._setup._engine.maker
    assert not tags & set(maker.unused(3600.0)), "they were used just now"
    # Only this test's own: others' images are on the engine too.
    mine = sorted(tags & set(maker.unused(-60.0)))
    assert len(mine) == 2
    assert len(maker.remove(mine)) == 1, "the one that a box uses stays"
    assert len(set(made(client)) & tags) == 1


def test_a_dockerfile_is_built_once_for_the_same_content(session: Callable[..., Session], tmp_path: Path) -> None:
    context = tmp_path / "context"
    context.mkdir()
    (context / "Dockerfile").write_text(
        f"FROM {IMAGE}\nCOPY data /usr/local/share/data\nRUN {FRESH}\nENV FROM_FILE=yes\n"
    )
    (context / "data").write_text("one")
    (context / "ignored").write_text("1")
    (context / ".dockerignore").write_text("ignored\n")
    wishes = {"dockerfile": str(context / "Dockerfile"), "context": str(context)}
    first = session(**wishes)
    assert first.run("cat /usr/local/share/data; echo $FROM_FILE") == "oneyes\n"
    image = first.image()
    (context / "ignored").write_text("2")
    os.utime(context / "data")
    assert first.image() == image
    (context / "data").write_text("two")
    assert (
        session(**wishes, setup=("echo more > /usr/local/share/more",)).run(
            "cat /usr/local/share/data /usr/local/share/more"
        )
        == "twomore\n"
    )


def test_a_dockerfile_that_fails_says_why(session: Callable[..., Session], tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text(f"FROM {IMAGE}\nRUN echo the reason; exit 3\n")
    broken = session(dockerfile=str(tmp_path / "Dockerfile"), context=str(tmp_path))
    with pytest.raises(BoxUnavailable, match="the reason"):
        broken.run("true")


def test_a_build_that_nobody_wants_any_more_or_takes_too_long_ends_at_once(
    session: Callable[..., Session], client: docker.APIClient, until: Until, tmp_path: Path
) -> None:
    name = f"building-{uuid.uuid4().hex}"
    (tmp_path / "Dockerfile").write_text(f"FROM {IMAGE}\nRUN : {name}; sleep 1000\n")

    def steps() -> list[Any]:
        return [each for each in client.containers() if name in each["Command"]]

    late = session(dockerfile=str(tmp_path / "Dockerfile"), context=str(tmp_path), setup_timeout_s=2)
    with pytest.raises(BoxUnavailable, match="not built within"):
        late.run("true")
    building = session(dockerfile=str(tmp_path / "Dockerfile"), context=str(tmp_path))
    outcome: list[str] = []

    def start() -> None:
        with pytest.raises(BoxUnavailable) as refused:
            building.run("true")
        outcome.append(str(refused.value))

    thread = threading.Thread(target=start)
    thread.start()
    until(lambda: bool(steps()), "the step runs", 60.0)
    building.finish()
    thread.join(60)
    assert "ended while its image was being made" in outcome[0]
    until(lambda: not steps(), "the engine ended the step", 60.0)


def test_variables_reach_commands_and_no_image(session: Callable[..., Session], client: docker.APIClient) -> None:
    secretive = session(env_names=("TOKEN",), setup=(FRESH, "env > /usr/local/share/env"))
    with pytest.raises(BoxUnavailable, match="cannot be read"):
        secretive.run("true")
    (secretive.dir / ENV_FILE).write_text(json.dumps({"TOKEN": "s3cret-value", "OTHER": "x"}))
    assert secretive.run("echo $TOKEN; echo [$OTHER]") == "s3cret-value\n[]\n"
    assert "s3cret" not in secretive.run("cat /usr/local/share/env")
    box = secretive.boxes.box_for(secretive.order)
    assert "s3cret" not in json.dumps(client.inspect_container(f"sandhog-{box.box_id}"))
    assert "s3cret" not in secretive.order.model_dump_json()


def test_files_are_there_before_the_first_call_and_are_no_part_of_the_patch(
    session: Callable[..., Session], tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()

    def prepare(project: Path) -> None:
        (project / "kept").write_text("old")
        (project / "link").symlink_to(outside)

    files = (FileIn(path="in/deep/tool", is_executable=True), FileIn(path="kept"))
    bringing = session(prepare, files=files)
    (bringing.dir / FILES_DIR).mkdir()
    for number, text in enumerate(("#!/bin/sh\necho tool runs\n", "new")):
        (bringing.dir / FILES_DIR / str(number)).write_text(text)
    assert bringing.run("in/deep/tool; cat kept; echo mine > in/deep/work") == "tool runs\nnew"
    outcome = bringing.finish()
    assert outcome.changed == ["in/deep/work"]
    linked = session(prepare, files=(FileIn(path="link/stolen"),))
    (linked.dir / FILES_DIR).mkdir()
    (linked.dir / FILES_DIR / "0").write_text("x")
    with pytest.raises(BoxUnavailable, match="cannot be put"):
        linked.run("true")
    assert not list(outside.iterdir())


def test_a_file_never_overwrites_one_in_a_bound_directory(session: Callable[..., Session]) -> None:
    def prepare(project: Path) -> None:
        (project / "mine").write_text("precious")
        os.chown(project, 10_001, 10_001)

    bound = session(prepare, files=(FileIn(path="mine"),))
    bound.order = bound.order.model_copy(update={"workspace_mode": WorkspaceMode.BIND})
    (bound.dir / FILES_DIR).mkdir()
    (bound.dir / FILES_DIR / "0").write_text("x")
    with pytest.raises(BoxUnavailable, match="not overwritten"):
        bound.run("true")
    assert (bound.project / "mine").read_text() == "precious"
