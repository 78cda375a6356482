import os
import tracemalloc
from pathlib import Path

import pytest

from coordinator.service.files import Listing, read
from coordinator.service.kept import PATCH, copy_dir
from coordinator.service.refusals import Code, Refused
from tests.coordinator.api.conftest import Served


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """What a hostile model may have left, beside what must stay closed."""
    (tmp_path / "secret").write_text("secret")
    root = tmp_path / "work"
    (root / "a" / "b").mkdir(parents=True)
    (root / "a" / "b" / "c.txt").write_text("content")
    (root / "link").symlink_to(tmp_path / "secret")
    (root / "out").symlink_to(tmp_path)
    (root / "a" / "in").symlink_to("b")
    os.mkfifo(root / "fifo")
    (root / "big").write_bytes(b"x" * 101)
    return root


def test_files_and_directories_are_read(root: Path) -> None:
    assert read(root, "a/b/c.txt", 100) == b"content"
    assert read(root, "./a//b/c.txt", 100) == b"content"
    assert read(root, "", 100) == Listing(("a/", "big", "fifo", "link", "out"), is_cut=False)


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("link", Code.NOT_FOUND),
        ("out/secret", Code.NOT_FOUND),
        ("a/in/c.txt", Code.NOT_FOUND),
        ("fifo", Code.NOT_FOUND),
        ("none", Code.NOT_FOUND),
        ("a/b/c.txt/d", Code.NOT_FOUND),
        ("../secret", Code.INVALID),
        ("a/../../secret", Code.INVALID),
        ("/etc/passwd", Code.INVALID),
        ("a\0b", Code.INVALID),
        ("a/" * 200, Code.INVALID),
        ("big", Code.TOO_LARGE),
        ("x" * 5000, Code.NOT_FOUND),
    ],
)
def test_nothing_leads_out_and_nothing_is_waited_for(root: Path, path: str, code: Code) -> None:
    with pytest.raises(Refused) as refused:
        read(root, path, 100)
    assert refused.value.code is code


def test_a_workspace_that_is_a_link_is_none(root: Path, tmp_path: Path) -> None:
    (tmp_path / "other").symlink_to(root)
    with pytest.raises(Refused):
        read(tmp_path / "other", "a", 100)


def leave_names(work: Path) -> None:
    """What a model left in a session's private copy."""
    work.mkdir()
    (work / "new\nline").write_text("content")
    (work / "end\n").write_text("end")
    (work / os.fsdecode(b"bad\xff")).write_text("x")


async def test_names_that_a_model_chose_badly_are_listed_and_read(served: Served) -> None:
    client = served.client()
    session_id = (await client.post("/v1/sessions", json={"loop": "none"})).json()["session_id"]
    leave_names(copy_dir(served.state_dir / "sessions" / session_id))
    path = f"/v1/sessions/{session_id}/files"
    listed = await client.get(path)
    assert (listed.status_code, listed.json()["names"]) == (200, ["bad\ufffd", "end\n", "new\nline"]), listed.text
    assert (await client.get(f"{path}/new%0Aline")).content == b"content"
    assert (await client.get(f"{path}/end%0A")).content == b"end"


async def test_a_large_patch_takes_no_memory_of_its_size(served: Served) -> None:
    client = served.client()
    session_id = (await client.post("/v1/sessions", json={"prompt": "x"})).json()["session_id"]
    await served.ended(client, session_id)
    entry = served.sessions.index.get(session_id)
    assert entry is not None
    # No worker is here that would have made one.
    entry.facts.patch_path = str(entry.directory / PATCH)
    size = 64 * 1024 * 1024
    with (entry.directory / PATCH).open("wb") as file:
        file.truncate(size)
    tracemalloc.start()
    try:
        async with client.stream("GET", f"/v1/sessions/{session_id}/patch") as response:
            assert response.status_code == 200
            assert sum([len(piece) async for piece in response.aiter_raw()]) == size
        assert tracemalloc.get_traced_memory()[1] < size // 2
    finally:
        tracemalloc.stop()
