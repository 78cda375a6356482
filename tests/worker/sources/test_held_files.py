"""Workspaces that need no network: archives, directories of the node, nothing, files of the image."""

import io
import os
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.worker.sources.forge import forge, make, names, order, place
from worker.contract.orders import WorkspaceMode
from worker.contract.sources import ARCHIVE_FILE, ArchiveSource, EmptySource, GitSource, ImageSource, LocalSource
from worker.errors import WorkspaceRefused
from worker.sources.held import Sources

__all__ = ["forge", "make", "place"]


def test_an_archive_is_unpacked_by_a_child_without_rights(make: Callable[..., Sources], tmp_path: Path) -> None:
    one = order(tmp_path, ArchiveSource(name="work.tar.gz"))
    archive = Path(one.session_dir) / ARCHIVE_FILE
    with tarfile.open(archive, "w:gz") as tar:
        info = tarfile.TarInfo("d/a.txt")
        info.size = 5
        tar.addfile(info, io.BytesIO(b"alpha"))
    archive.chmod(0o600)
    sources = make()
    with sources.held(one) as held:
        assert (Path(held.workspace) / "d" / "a.txt").read_text() == "alpha"
        if os.geteuid() == 0:
            assert (Path(held.workspace) / "d" / "a.txt").stat().st_uid != 0
    packed = archive.read_bytes()
    archive.write_bytes(b"broken")
    with pytest.raises(WorkspaceRefused, match=r"work\.tar\.gz is not unpacked"), sources.held(one):
        pass
    archive.write_bytes(packed)
    with sources.held(one):
        for name in ("base", "work"):
            (archive.parent / name).mkdir()
    assert not archive.exists(), "it takes no room once the copy is made"
    with sources.held(one) as held:
        assert held.workspace == str(archive.parent / "base")
    (archive.parent / "base").rmdir()
    with pytest.raises(WorkspaceRefused, match="is not there"), sources.held(one):
        pass


def test_directories_of_the_node_are_taken_below_its_roots_only(make: Callable[..., Sources], tmp_path: Path) -> None:
    inside, outside = tmp_path / "roots" / "project", tmp_path / "outside"
    inside.mkdir(parents=True)
    outside.mkdir()
    (inside.parent / "link").symlink_to(outside)
    sources = make(roots=(tmp_path / "roots",))
    with sources.held(order(tmp_path, LocalSource(path=str(inside)))) as held:
        assert held.workspace == str(inside)
    for path in (outside, inside.parent / "link", inside.parent / ".." / "outside", tmp_path / "none", Path("/")):
        with pytest.raises(WorkspaceRefused), sources.held(order(tmp_path, LocalSource(path=str(path)))):
            pass


def test_an_empty_workspace_is_empty_and_an_old_session_fetches_nothing_again(
    make: Callable[..., Sources], tmp_path: Path, place: Path
) -> None:
    sources = make()
    one = order(tmp_path, EmptySource())
    with sources.held(one) as held:
        assert names(Path(held.workspace)) == []
    assert names(place / "sources") == []
    for name in ("base", "work"):
        (Path(one.session_dir) / name).mkdir()
    gone = one.model_copy(update={"source": GitSource(url="https://git.test/none")})
    with sources.held(gone) as held:
        assert held.workspace == f"{one.session_dir}/base"


def test_what_an_earlier_life_was_fetching_is_removed_and_its_commits_stay(
    make: Callable[..., Sources], place: Path
) -> None:
    make().sweep()
    for name in ("new-0123", "old-0123", "a" * 32):
        (place / "sources" / name / "tree").mkdir(parents=True)
    make().sweep()
    assert names(place / "sources") == ["a" * 32]


def test_what_is_fetched_is_never_bound(make: Callable[..., Sources], tmp_path: Path) -> None:
    bound = order(tmp_path, EmptySource()).model_copy(update={"workspace_mode": WorkspaceMode.BIND})
    with pytest.raises(WorkspaceRefused, match="cannot be bound"), make().held(bound):
        pass


@pytest.mark.parametrize("path", ["testbed", "/", "/a/../b", ""])
def test_a_path_in_an_image_is_absolute_and_plain(make: Callable[..., Sources], tmp_path: Path, path: str) -> None:
    class Nothing:
        def copy_out(self, image: str, path: str, target: Path, most_bytes: int, principal: str = "") -> None:
            raise AssertionError("the engine must not be asked")

    sources = Sources(make()._settings, Nothing())
    with (
        pytest.raises(WorkspaceRefused, match="no absolute path"),
        sources.held(order(tmp_path, ImageSource(path=path))),
    ):
        pass
