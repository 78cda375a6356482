"""What a node fetches for its sessions: real git against a real server, archives, directories of the node."""

import os
import shutil
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Until
from tests.worker.sources.forge import BASIC, CONVERTED, PASSWORD, ForgeServer, forge, git, make, names, order, place
from worker.changes import changes_between
from worker.contract.sources import GitSource
from worker.errors import SourceUnfit, WorkspaceRefused
from worker.patch import render
from worker.sources.held import Sources
from worker.sources.jobs import Bounds

__all__ = ["forge", "make", "place"]


def test_a_branch_a_tag_and_a_commit_are_fetched_with_a_credential_that_stays_out_of_them(
    forge: ForgeServer, make: Callable[..., Sources], tmp_path: Path, place: Path
) -> None:
    sources, url = make(), f"{forge.url}/org/whole.git"
    commit = git(forge.root / "whole", "rev-parse", "v1")
    for ref, content in ((None, "second"), ("feature/x", "second"), ("v1", "whole"), (commit[:10], "whole")):
        with sources.held(order(tmp_path, GitSource(url=url, ref=ref, credential="forge"))) as held:
            tree = Path(held.workspace)
            assert (tree / "a.txt").read_text() == f"{content}\n"
            assert (tree / "link").is_symlink()
            assert os.access(tree / "run.sh", os.X_OK)
            assert git_config(tree)["remote.origin.url"] == url
            for path in tree.rglob("*"):
                if path.is_file() and not path.is_symlink():
                    kept = path.read_bytes()
                    assert PASSWORD.encode() not in kept
                    assert BASIC.encode() not in kept
            if os.geteuid() == 0:
                assert (tree / "a.txt").stat().st_uid != 0
    assert names(place / "sources") == [], "what a branch names is not kept"
    asked = []
    for _ in range(2):
        with sources.held(order(tmp_path, GitSource(url=url, ref=commit, credential="forge"))) as held:
            assert (Path(held.workspace) / "a.txt").read_text() == "whole\n"
        asked.append(len(forge.asked))
    assert asked[0] == asked[1], "a commit is fetched once"


def git_config(tree: Path) -> dict[str, str]:
    said = subprocess.run(["git", "config", "-f", tree / ".git" / "config", "-l"], stdout=subprocess.PIPE, check=True)
    return dict(line.split("=", 1) for line in said.stdout.decode().splitlines())


def test_submodules_are_fetched_when_asked_for_by_the_same_rules(
    forge: ForgeServer, make: Callable[..., Sources], tmp_path: Path
) -> None:
    url = f"{forge.url}/org/whole.git"
    with make().held(order(tmp_path, GitSource(url=url, credential="forge"))) as held:
        assert names(Path(held.workspace) / "deps" / "part") == []
    with make().held(order(tmp_path, GitSource(url=url, credential="forge", submodules=True))) as held:
        part = Path(held.workspace) / "deps" / "part"
        assert (part / "a.txt").read_text() == "part\n"
        assert not (part / ".git").exists()


def test_submodules_that_nobody_can_read_are_in_the_way_of_those_only_who_want_them(
    forge: ForgeServer, make: Callable[..., Sources], tmp_path: Path
) -> None:
    source = GitSource(url=f"{forge.url}/org/odd.git", credential="forge")
    with make().held(order(tmp_path, source)) as held:
        assert names(Path(held.workspace)) == [".git", ".gitmodules", "deps"]
    wanted = order(tmp_path, source.model_copy(update={"submodules": True}))
    with pytest.raises(SourceUnfit, match="has no address"), make().held(wanted):
        pass


def test_files_are_as_the_commit_has_them_and_the_patch_fits_a_clone_that_converts_them(
    forge: ForgeServer, make: Callable[..., Sources], tmp_path: Path
) -> None:
    source = GitSource(url=f"{forge.url}/org/converted.git", credential="forge")
    base, work, clone = (tmp_path / name for name in ("base", "copy", "clone"))
    with make().held(order(tmp_path, source)) as held:
        shutil.copytree(held.workspace, base)
    assert {name: (base / name).read_bytes() for name in CONVERTED} == {
        name: text.encode() for name, text in CONVERTED.items()
    }
    safe = ["-c", f"safe.directory={base}"]
    for path in base.rglob("*"):
        path.touch()
    assert git(base, *safe, "status", "--porcelain") == "", "git in the box takes nothing for changed"
    shutil.copytree(base, work)
    for name, text in CONVERTED.items():
        (work / name).write_text(f"{text}added ü\n")
    patch = render(changes_between(base, work), base, work)

    git(tmp_path, "clone", "-q", str(forge.root / "org" / "converted.git"), "clone")
    assert b"\r\n" in (clone / "a.bat").read_bytes(), "a clone converts them"
    subprocess.run(["git", "apply", "--index", "-"], cwd=clone, input=patch, check=True)

    for name, text in CONVERTED.items():
        assert git(clone, "show", f":{name}") == f"{text}added ü".strip()
    assert (clone / "a.u16").read_bytes().endswith("added ü\n".encode("utf-16-le"))


@pytest.mark.parametrize(
    ("path", "more", "words"),
    [
        ("org/whole.git", {"credential": None}, "cannot be fetched"),
        ("org/none.git", {}, "cannot be fetched"),
        ("org/whole.git", {"ref": "no-such"}, "cannot be fetched"),
        ("moved/whole.git", {}, "cannot be fetched"),
        ("said/whole.git", {}, r"\[redacted\] may not, nor \[redacted\]"),
        ("org/whole.git", {"lfs": True}, "lfs"),
    ],
)
def test_what_cannot_be_fetched_is_told_without_secrets(
    forge: ForgeServer, make: Callable[..., Sources], tmp_path: Path, path: str, more: dict[str, Any], words: str
) -> None:
    fields = {"url": f"{forge.url}/{path}", "credential": "forge", **more}
    sources = make()
    with pytest.raises(WorkspaceRefused, match=words) as caught, sources.held(order(tmp_path, GitSource(**fields))):
        pass
    assert isinstance(caught.value, SourceUnfit), str(caught.value)
    assert PASSWORD not in str(caught.value)
    assert BASIC not in str(caught.value)


def test_a_server_that_is_away_is_no_fault_of_the_source(
    forge: ForgeServer, make: Callable[..., Sources], tmp_path: Path
) -> None:
    url = f"{forge.url.rpartition(':')[0]}:9/org/whole.git"
    with (
        pytest.raises(WorkspaceRefused, match="cannot be fetched") as caught,
        make().held(order(tmp_path, GitSource(url=url))),
    ):
        pass
    assert not isinstance(caught.value, SourceUnfit)


def test_a_commit_beyond_the_bounds_is_not_checked_out(
    forge: ForgeServer, make: Callable[..., Sources], tmp_path: Path, place: Path
) -> None:
    sources = make(bounds=Bounds(total_bytes=200_000, entries=3))
    source = GitSource(url=f"{forge.url}/org/whole.git", credential="forge")
    with pytest.raises(WorkspaceRefused, match="at most 3"), sources.held(order(tmp_path, source)):
        pass
    assert names(place / "sources") == []


def test_a_fetch_is_broken_off_with_its_session_and_leaves_no_process(
    forge: ForgeServer, make: Callable[..., Sources], tmp_path: Path, until: Until, place: Path
) -> None:
    sources, failures = make(), list[str]()

    def fetch() -> None:
        try:
            with sources.held(order(tmp_path, GitSource(url=f"{forge.url}/hang/r.git", credential="forge"))):
                pass
        except WorkspaceRefused as exc:
            failures.append(str(exc))

    thread = threading.Thread(target=fetch)
    thread.start()
    until(lambda: any(path.startswith("/hang") for path in forge.asked), "the fetch is under way", 60)
    assert running(place), "it is alive"
    sources.cancel("s")
    thread.join(60)
    assert failures == ["The session ended while its workspace was being fetched."]
    assert not running(place)
    assert names(place / "sources") == []


def running(place: Path) -> list[str]:
    """Processes that work below a directory."""
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            try:
                if str(process.joinpath("cwd").readlink()).startswith(str(place)):
                    found.append(process.name)
            except OSError:
                continue
    return found
