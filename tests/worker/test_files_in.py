"""Files that a session brings into a directory: whole, never in place of another one, and again after a kill."""

import os
from pathlib import Path

import pytest

from tests.orders import box_order
from worker.contract.extras import FILES_DIR, BoxExtras, FileIn
from worker.contract.orders import BoxOrder, WorkspaceMode
from worker.errors import WorkspaceRefused
from worker.files_in import DONE, put_files
from worker.workspace import Workspace


@pytest.fixture
def place(tmp_path: Path) -> Workspace:
    directory = tmp_path / "project"
    directory.mkdir()
    return Workspace(directory, os.getuid(), os.getgid(), tmp_path / "spill", WorkspaceMode.BIND)


@pytest.fixture
def order(tmp_path: Path) -> BoxOrder:
    session_dir = tmp_path / "session"
    (session_dir / FILES_DIR).mkdir(parents=True)
    for number in range(2):
        (session_dir / FILES_DIR / str(number)).write_text(f"content {number}\n")
    files = (FileIn(path="in/first"), FileIn(path="second", is_executable=True))
    return box_order("s", session_dir, extras=BoxExtras(files=files))


def found(place: Workspace) -> dict[str, str]:
    names = [one for one in place.directory.rglob("*") if one.is_file()]
    return {str(one.relative_to(place.directory)): one.read_text() for one in names}


PUT = {"in/first": "content 0\n", "second": "content 1\n"}


def test_files_are_put_once_and_whole(order: BoxOrder, place: Workspace) -> None:
    put_files(order, place)
    assert found(place) == PUT
    assert (place.directory / "second").stat().st_mode & 0o111

    (place.directory / "second").write_text("by the session")
    put_files(order, place)
    assert found(place) == {**PUT, "second": "by the session"}


@pytest.mark.parametrize("written", [1, 2])
@pytest.mark.parametrize("copied_bytes", [0, 4])
def test_what_a_killed_node_had_begun_is_completed(
    order: BoxOrder, place: Workspace, monkeypatch: pytest.MonkeyPatch, written: int, copied_bytes: int
) -> None:
    copies = list[int]()

    def copy(source: object, target: object) -> None:
        copies.append(1)
        if len(copies) == written:
            target.write(source.read(copied_bytes))  # type: ignore[attr-defined]
            raise KeyboardInterrupt
        target.write(source.read())  # type: ignore[attr-defined]

    with monkeypatch.context() as patched:
        patched.setattr("worker.files_in.shutil.copyfileobj", copy)
        with pytest.raises(KeyboardInterrupt):
            put_files(order, place)
    assert set(found(place)) - {name for name in found(place) if ".sandhog-put-" in name} <= set(
        list(PUT)[: written - 1]
    )

    put_files(order, place)
    assert found(place) == PUT


def test_one_that_was_killed_before_it_could_say_so_has_put_them(order: BoxOrder, place: Workspace) -> None:
    put_files(order, place)
    (Path(order.session_dir) / DONE).unlink()
    put_files(order, place)
    assert found(place) == PUT


@pytest.mark.parametrize("there", ["another\n", "content 9\n"])
def test_a_file_of_somebody_elses_is_not_overwritten(order: BoxOrder, place: Workspace, there: str) -> None:
    (place.directory / "second").write_text(there)
    with pytest.raises(WorkspaceRefused, match="is in the workspace already"):
        put_files(order, place)
    assert found(place) == {**PUT, "second": there}


def test_a_link_is_no_file_that_was_put(order: BoxOrder, place: Workspace, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_text(PUT["second"])
    (place.directory / "second").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(WorkspaceRefused, match="is in the workspace already"):
        put_files(order, place)


def test_a_file_system_without_a_second_name_for_a_file_has_them_as_well(
    order: BoxOrder, place: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*names: object, **options: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr("worker.files_in.os.link", refuse)
    put_files(order, place)
    (Path(order.session_dir) / DONE).unlink()
    put_files(order, place)
    assert found(place) == PUT
