"""Trees as tars: packed from what nobody vouches for, unpacked below one name, and of a kept copy both."""

import io
import os
import subprocess
import sys
import tarfile
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import pytest

from worker.contract import trees as contract
from worker.contract.trees import MAX_DEPTH, TreeBounds, TreeRefused, check_tree
from worker.errors import ResultFailed
from worker.trees import below_workspace, pack, pack_kept, unpack, unpack_kept

Tar = Callable[..., io.BytesIO]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A directory with all that a tree may hold, and a pipe."""
    root = tmp_path / "source"
    (root / "sub" / "empty").mkdir(parents=True)
    (root / "a.txt").write_text("alpha\n")
    (root / "sub" / "run.sh").write_text("#!/bin/sh\n")
    (root / "sub" / "run.sh").chmod(0o755)
    (root / "sub" / ("long-" + "n" * 200)).write_bytes(b"x" * 3_000)
    (root / "na\udcffme ü").write_text("odd")
    (root / "link").symlink_to("sub/run.sh")
    os.mkfifo(root / "pipe")
    return root


@pytest.fixture
def tar() -> Tar:
    """Makes a tar of entries that are given as they are."""

    def make(*entries: tarfile.TarInfo | tuple[str, bytes]) -> io.BytesIO:
        data = io.BytesIO()
        with tarfile.open(fileobj=data, mode="w", format=tarfile.PAX_FORMAT) as archive:
            for entry in entries:
                info, content = (
                    (entry, b"") if isinstance(entry, tarfile.TarInfo) else (tarfile.TarInfo(entry[0]), entry[1])
                )
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
        data.seek(0)
        return data

    return make


def entry(name: str, kind: bytes, target: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


def packed(path: Path) -> io.BytesIO:
    data = io.BytesIO()
    pack(path, data)
    data.seek(0)
    return data


def content(root: Path) -> dict[str, str]:
    """What lies below a directory: paths with what they are."""
    found = {}
    for path in root.rglob("*"):
        name = os.fsencode(path.relative_to(root)).decode("utf-8", "replace")
        if path.is_symlink():
            found[name] = f"-> {path.readlink()}"
        elif path.is_dir():
            found[name] = "directory"
        else:
            found[name] = f"{path.stat().st_mode & 0o777:o} {path.stat().st_size if path.is_file() else '?'}"
    return found


def test_a_tree_comes_out_as_it_went_in_but_for_what_is_no_file(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.mkdir()
    unpack(packed(source), target, "source")
    expected = content(source)
    del expected["pipe"]
    assert content(target / "source") == expected
    assert (target / "source" / "a.txt").stat().st_mtime == int((source / "a.txt").stat().st_mtime)


def test_the_program_in_the_box_packs_and_unpacks_the_same(source: Path, tmp_path: Path) -> None:
    program = [sys.executable, "-m", "sandbox.guest.tree"]
    os.link(source / "a.txt", source / "same")
    done = subprocess.run([*program, "pack", str(source)], capture_output=True, check=True)
    assert done.stderr == b"left out: 1 sockets, pipes or devices\n"
    unpack(io.BytesIO(done.stdout), tmp_path / "out", "source")
    expected = content(source)
    del expected["pipe"]
    assert content(tmp_path / "out") == expected

    subprocess.run([*program, "unpack", str(tmp_path / "in")], input=packed(source).read(), check=True)
    assert content(tmp_path / "in") == expected
    refused = subprocess.run([*program, "pack", str(tmp_path / "missing")], capture_output=True, check=False)
    assert (refused.returncode, b"No such file" in refused.stderr) == (1, True)
    refused = subprocess.run([*program, "unpack", "/no/such/place"], input=b"", capture_output=True, check=False)
    assert (refused.returncode, b"is no directory of the box" in refused.stderr) == (1, True)


def test_one_file_goes_into_a_directory_or_gets_a_new_name(source: Path, tmp_path: Path) -> None:
    unpack(packed(source / "a.txt"), tmp_path, "a.txt")
    unpack(packed(source / "link"), tmp_path / "new", "ignored")
    assert (tmp_path / "a.txt").read_text() == "alpha\n"
    assert (tmp_path / "new").read_text() == "#!/bin/sh\n"
    # What is there is replaced, never written through.
    (tmp_path / "new").unlink()
    (tmp_path / "new").symlink_to(source / "a.txt")
    unpack(packed(source / "sub" / "run.sh"), tmp_path / "new", "ignored")
    assert (source / "a.txt").read_text() == "alpha\n"
    assert not (tmp_path / "new").is_symlink()


@pytest.mark.parametrize(
    "entries",
    [
        [entry("d", tarfile.DIRTYPE), ("d/../../evil", b"x")],
        [entry("d", tarfile.DIRTYPE), ("/evil", b"x")],
        [entry("d", tarfile.DIRTYPE), entry("d/l", tarfile.SYMTYPE, "../../outside")],
        [entry("d", tarfile.DIRTYPE), entry("d/l", tarfile.SYMTYPE, "../sibling")],
        [entry("d", tarfile.DIRTYPE), entry("d/l", tarfile.SYMTYPE, "/etc/passwd")],
        [
            entry("d", tarfile.DIRTYPE),
            entry("d/l", tarfile.SYMTYPE, "."),
            ("d/l/evil", b"x"),
            entry("d/l", b"1", "d/../x"),
        ],
        [entry("d", tarfile.DIRTYPE), entry("d/dev", tarfile.CHRTYPE)],
        [entry("d", tarfile.DIRTYPE), entry("d/fifo", tarfile.FIFOTYPE)],
        [entry("l", tarfile.SYMTYPE, "elsewhere"), ("l/evil", b"x")],
        [("f", b"x"), ("f/evil", b"x")],
        [("f", b"x"), ("evil", b"x")],
        [("f", b"x"), entry("evil", tarfile.LNKTYPE, "f")],
    ],
)
def test_what_would_leave_its_place_is_refused(tar: Tar, tmp_path: Path, entries: list[tarfile.TarInfo]) -> None:
    target = tmp_path / "target"
    target.mkdir()
    with pytest.raises(ResultFailed, match="refused"):
        unpack(tar(*entries), target, "name")
    assert [path.name for path in tmp_path.rglob("*") if path.name in ("evil", "outside", "sibling")] == []
    assert {path.name for path in target.iterdir()} <= {"name"}


def test_a_name_that_the_sender_chose_counts_for_nothing(tar: Tar, tmp_path: Path) -> None:
    unpack(tar((".bashrc", b"evil")), tmp_path, "mine")
    unpack(tar(entry(".ssh", tarfile.DIRTYPE), (".other/authorized_keys", b"x")), tmp_path, "dir")
    assert content(tmp_path) == {"mine": "644 4", "dir": "directory", "dir/authorized_keys": "644 1"}


def test_a_directory_that_is_a_link_here_is_not_written_through(tar: Tar, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "target" / "d").mkdir(parents=True)
    (tmp_path / "target" / "d" / "in").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ResultFailed, match="something else is in the place"):
        unpack(tar(entry("d", tarfile.DIRTYPE), ("d/in/evil", b"x")), tmp_path / "target", "d")
    assert list((tmp_path / "elsewhere").iterdir()) == []


@pytest.mark.parametrize("data", [b"", b"no tar at all", b"\0" * 1024])
def test_what_is_no_tar_is_refused(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(ResultFailed, match="refused"):
        unpack(io.BytesIO(data), tmp_path, "name")


def test_a_tree_beyond_the_bounds_is_not_packed(source: Path) -> None:
    above = os.open(source.parent, contract.OPEN_DIRECTORY)
    try:
        for bounds, words in (
            (TreeBounds(total_bytes=3_000), "more than"),
            (TreeBounds(entries=3), "more than 3 entries"),
        ):
            with pytest.raises(TreeRefused, match=words):
                check_tree(above, source.name, bounds)
        with pytest.raises(TreeRefused, match="no such file"):
            check_tree(above, "missing", TreeBounds())
        deep = source
        for _ in range(MAX_DEPTH + 1):
            deep /= "d"
        deep.mkdir(parents=True)
        with pytest.raises(TreeRefused, match="nested deeper"):
            check_tree(above, source.name, TreeBounds())
    finally:
        os.close(above)


@pytest.mark.parametrize("is_large", [True, False], ids=["a file that grows", "files that come"])
def test_a_tree_that_grows_while_it_is_packed_is_packed_within_its_bounds(source: Path, is_large: bool) -> None:
    bounds, above = TreeBounds(total_bytes=100_000, entries=20), os.open(source.parent, contract.OPEN_DIRECTORY)
    try:
        check_tree(above, source.name, bounds)
        pieces = contract.tar_pieces(above, source.name, "shown", bounds)
        next(pieces)
        if is_large:
            with (source / "zz").open("wb") as file:
                file.truncate(2**40)
        else:
            (source / "zz").mkdir()
            for number in range(30):
                (source / "zz" / str(number)).touch()
        with pytest.raises(TreeRefused, match="grown too large"):
            list(islice(pieces, 60))
    finally:
        os.close(above)


@pytest.fixture
def session_dir(source: Path, tmp_path: Path) -> Path:
    """An ended session's directory with its private copy, in which a model has left links."""
    session_dir = tmp_path / "sessions" / "s"
    session_dir.mkdir(parents=True)
    source.rename(session_dir / "work")
    (session_dir / "work" / "out").symlink_to(tmp_path)
    return session_dir


def test_a_kept_copy_is_read_and_never_through_a_link(session_dir: Path, tmp_path: Path) -> None:
    data = io.BytesIO()
    pack_kept(session_dir, "sub", data)
    data.seek(0)
    unpack(data, tmp_path / "sub", "sub")
    assert content(tmp_path / "sub") == content(session_dir / "work" / "sub")
    with pytest.raises(ResultFailed, match="links are not followed"):
        pack_kept(session_dir, "out/sessions/x", io.BytesIO())
    for path in ("/etc/passwd", "../..", "/workspace/../etc"):
        with pytest.raises(ResultFailed, match="not below /workspace"):
            pack_kept(session_dir, path, io.BytesIO())
    with pytest.raises(ResultFailed, match="no such file"):
        pack_kept(session_dir, "missing", io.BytesIO())
    assert below_workspace("/workspace/a/../b") == "b"


def test_a_kept_copy_is_written_with_its_owners_rights_and_never_through_a_link(
    session_dir: Path, tmp_path: Path, tar: Tar
) -> None:
    work = session_dir / "work"
    if os.geteuid() == 0:
        os.chown(work, 54_321, 54_321)
        tmp_path.chmod(0o755)
        session_dir.parent.chmod(0o755)
    owner = work.stat().st_uid
    unpack_kept(tar(("f", b"new")), session_dir, ".", "put.txt")
    unpack_kept(tar(("f", b"new")), session_dir, "/workspace/renamed.txt", "put.txt")
    assert (work / "put.txt").read_bytes() == (work / "renamed.txt").read_bytes() == b"new"
    assert (work / "put.txt").stat().st_uid == owner
    with pytest.raises(ResultFailed):
        unpack_kept(tar(("f", b"x")), session_dir, "out/evil", "evil")
    assert not (tmp_path / "evil").exists()
    assert os.geteuid() in (0, owner)


def test_the_commands_say_what_went_wrong_in_one_line(tmp_path: Path) -> None:
    for words in (["pack", "--", str(tmp_path / "missing")], ["unpack", "--", str(tmp_path / "no" / "x"), "x"]):
        done = subprocess.run([sys.executable, "-m", "worker", *words], input=b"", capture_output=True, check=False)
        assert (done.returncode, done.stderr.count(b"\n"), b"Traceback" in done.stderr) == (1, 1, False), done.stderr
