"""Archives that nobody vouches for."""

import gzip
import io
import os
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from worker.sources.jobs import Bounds
from worker.sources.unpack import ArchiveRefused, unpack

BOUNDS = Bounds(total_bytes=1_000_000, entries=100)


def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "", mode: int = 0o644) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.mode, info.mtime = kind, link, mode, 1_000_000_000
    return info


def tar(*members: tarfile.TarInfo | tuple[tarfile.TarInfo, bytes], mode: str = "w") -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode=mode) as archive:  # type: ignore[call-overload]
        for one in members:
            info, content = one if isinstance(one, tuple) else (one, b"")
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return out.getvalue()


def zipped(*entries: tuple[zipfile.ZipInfo | str, bytes], how: int = zipfile.ZIP_DEFLATED) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", how) as archive:
        for name, content in entries:
            archive.writestr(name, content)
    return out.getvalue()


def zip_entry(name: str, mode: int) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name)
    info.external_attr = mode << 16
    return info


def damaged(content: bytes, at: int, bits: int = 0xFF) -> bytes:
    changed = bytearray(content)
    changed[at] ^= bits
    return bytes(changed)


@pytest.fixture
def into(tmp_path: Path) -> Callable[..., Path]:
    def unpacked(content: bytes, bounds: Bounds = BOUNDS, **how: bool) -> Path:
        root = tmp_path / "inner" / "tree"
        root.mkdir(parents=True, exist_ok=True)
        (tmp_path / "archive").write_bytes(content)
        descriptor = os.open(tmp_path / "archive", os.O_RDONLY)
        try:
            unpack(descriptor, root, bounds, **how)
        finally:
            os.close(descriptor)
        return root

    return unpacked


@pytest.mark.parametrize("mode", ["w", "w:gz", "w:bz2", "w:xz"])
def test_a_tar_is_unpacked_whatever_it_is_packed_with(into: Callable[[bytes], Path], mode: str) -> None:
    root = into(
        tar(
            member("./", tarfile.DIRTYPE),
            (member("./a/b.txt"), b"beta"),
            (member("run.sh", mode=0o4755), b"#!"),
            member("link", tarfile.SYMTYPE, "a/b.txt"),
            member("a/up", tarfile.SYMTYPE, "../run.sh"),
            member("same", tarfile.LNKTYPE, "./a/b.txt"),
            (member("a/b.txt"), b"later"),
            mode=mode,
        )
    )
    assert (root / "a" / "b.txt").read_text() == "later"
    assert (root / "same").read_text() == "beta"
    assert (root / "link").is_symlink()
    assert (root / "a" / "up").resolve() == root / "run.sh"
    assert (root / "run.sh").stat().st_mode & 0o7777 == 0o755, "no set-id bit"
    assert (root / "run.sh").stat().st_mtime == 1_000_000_000


def test_a_zip_is_unpacked_with_its_modes_and_links(into: Callable[[bytes], Path]) -> None:
    root = into(
        zipped(
            ("d/", b""),
            ("d/a.txt", b"alpha"),
            (zip_entry("run.sh", 0o100755), b"#!"),
            (zip_entry("link", 0o120777), b"d/a.txt"),
        )
    )
    assert (root / "link").read_text() == "alpha"
    assert (root / "run.sh").stat().st_mode & 0o777 == 0o755


def of_windows(name: str) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name)
    info.create_system = 0
    return info


def test_a_zip_with_the_separators_of_windows_has_its_directories(into: Callable[[bytes], Path]) -> None:
    names = ("d\\", "d\\e\\a.txt", "b.txt")
    root = into(zipped(*((of_windows(name), b"") for name in names), (zip_entry("x\\y", 0o100644), b"")))
    found = sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())
    assert found == ["b.txt", "d/e/a.txt", "x\\y"], "elsewhere a backslash is a letter of a name"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (tar((member("../out"), b"x")), "leads out"),
        (tar((member("a/../../out"), b"x")), "leads out"),
        (tar((member("/etc/out"), b"x")), "absolute"),
        (tar(member("l", tarfile.SYMTYPE, "/etc/passwd")), "out of the archive"),
        (tar(member("d/l", tarfile.SYMTYPE, "../../out")), "out of the archive"),
        (tar(member("l", tarfile.LNKTYPE, "/etc/passwd")), "absolute"),
        (tar(member("l", tarfile.LNKTYPE, "missing")), "no file before it"),
        (tar(member("s", tarfile.SYMTYPE, "d"), member("h", tarfile.LNKTYPE, "s")), "no file before it"),
        (tar(member("null", tarfile.CHRTYPE)), "device"),
        (tar(member("disk", tarfile.BLKTYPE)), "device"),
        (tar(member("pipe", tarfile.FIFOTYPE)), "device"),
        (tar((member("f"), b"x"), (member("f/g"), b"x")), "stand at one place"),
        (tar(member("s", tarfile.SYMTYPE, "d"), member("d", tarfile.DIRTYPE), (member("s/x"), b"x")), "at one place"),
        (tar((member("/".join("d" * 101) + "/f"), b"x")), "nested deeper"),
        (zipped(("../out", b"x")), "leads out"),
        (zipped(("/out", b"x")), "absolute"),
        (zipped(("C:/out", b"x")), "absolute"),
        (zipped((of_windows("..\\out"), b"x")), "leads out"),
        (zipped((of_windows("\\out"), b"x")), "absolute"),
        (zipped((of_windows("C:\\out"), b"x")), "absolute"),
        (zipped((zip_entry("l", 0o120777), b"../out")), "out of the archive"),
        (zipped((zip_entry("p", 0o010644), b"")), "device"),
        (b"PK\x03\x04 and nothing more", "cannot be read"),
        (b"\x1f\x8b and nothing more", "cannot be read|broken"),
        (b"no archive at all" * 100, "cannot be read"),
        (b"", "cannot be read"),
        (tar((member("f"), b"x" * 5_000), mode="w:gz")[:-40], "cannot be read|broken"),
        (damaged(tar((member("f"), b"x"), (member("g"), b"y")), 1_100), "cannot be read: bad checksum"),
        (tar((member("f"), b"x"), (member("g"), b"y"))[:1_100], "cannot be read: truncated header"),
        (damaged(tar((member("f"), b"x" * 5_000), mode="w:bz2"), 20), "broken: Invalid data stream"),
        (damaged(zipped(("f", b"x"), how=zipfile.ZIP_BZIP2), 40), "broken: Invalid data stream"),
        (damaged(zipped(("f", b"")), -5), "broken: Invalid argument"),
        (tar((member("n" * 300), b"x")), "broken: File name too long: 'nnn"),
        (zipped(("n" * 300 + "/f", b"x")), "broken: File name too long: 'nnn"),
    ],
    # An archive's own bytes hold the time of day.
    ids=lambda value: value if isinstance(value, str) else "archive",
)
def test_what_would_leave_the_directory_or_is_no_archive_is_refused(
    into: Callable[[bytes], Path], tmp_path: Path, content: bytes, words: str
) -> None:
    with pytest.raises(ArchiveRefused, match=words):
        into(content)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["archive", "inner"]
    assert [path.name for path in (tmp_path / "inner").iterdir()] == ["tree"]


def test_links_of_an_image_are_words_and_nothing_is_reached_through_them(
    into: Callable[..., Path], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    links = {"python": "/usr/bin/python3", "d/up": "../../../out", "here": str(out), "gone": "no/such"}
    entries = [member(name, tarfile.SYMTYPE, target) for name, target in links.items()]
    root = into(tar(member("d", tarfile.DIRTYPE), *entries), keeps_links=True)
    assert {name: os.fspath((root / name).readlink()) for name in links} == links
    for through in (member("here/x"), member("here", tarfile.DIRTYPE), member("d/up/x", tarfile.LNKTYPE, "here/y")):
        with pytest.raises(ArchiveRefused):
            into(tar(*entries, (through, b"x") if through.isreg() else through), keeps_links=True)
    assert list(out.iterdir()) == []


def test_bombs_are_refused_before_they_fill_anything(into: Callable[[bytes], Path]) -> None:
    big = b"\0" * 3_000_000
    for content in (tar((member("f"), big), mode="w:gz"), zipped(("f", big))):
        with pytest.raises(ArchiveRefused, match="holds more than"):
            into(content)
    many = [member(f"d{number}", tarfile.DIRTYPE) for number in range(200)]
    with pytest.raises(ArchiveRefused, match="more than 100 entries"):
        into(tar(*many))
    with pytest.raises(ArchiveRefused, match="more than 100 entries"):
        into(zipped(*((f"f{number}", b"") for number in range(200))))


def test_a_header_that_unpacks_to_much_is_refused(into: Callable[[bytes], Path]) -> None:
    header = tarfile.TarInfo("pax")
    header.type, header.size = tarfile.XHDTYPE, 10 * 1024**3
    content = gzip.compress(header.tobuf(tarfile.PAX_FORMAT) + b"\0" * 80_000_000)
    with pytest.raises(ArchiveRefused):
        into(content)


PACKED = {
    mode: tar((member("a/f"), b"one line\n" * 300), (member("g"), os.urandom(3_000)), mode=mode)
    for mode in ("w:gz", "w:bz2", "w:xz")
}


@settings(deadline=None, max_examples=150)
@given(st.sampled_from(sorted(PACKED)), st.floats(0, 1, exclude_max=True), st.integers(1, 255))
def test_an_archive_that_was_damaged_is_refused_or_whole(
    tmp_path_factory: pytest.TempPathFactory, mode: str, place: float, bits: int
) -> None:
    base = tmp_path_factory.mktemp("any")
    found: dict[str, dict[str, bytes]] = {}
    for name, content in (
        ("whole", PACKED[mode]),
        ("damaged", damaged(PACKED[mode], int(place * len(PACKED[mode])), bits)),
    ):
        (base / name).write_bytes(content)
        (base / f"{name}.tree").mkdir()
        with (base / name).open("rb") as archive:
            try:
                unpack(archive.fileno(), base / f"{name}.tree", BOUNDS)
            except ArchiveRefused:
                assert name == "damaged"
                return
        files = (path for path in (base / f"{name}.tree").rglob("*") if path.is_file())
        found[name] = {str(path.relative_to(base / f"{name}.tree")): path.read_bytes() for path in files}
    assert found["damaged"] == found["whole"]


@settings(deadline=None, max_examples=60)
@given(
    st.lists(
        st.tuples(
            st.lists(st.sampled_from(["a", "b", "..", ".", "", "c"]), min_size=1, max_size=5).map("/".join),
            st.sampled_from([tarfile.REGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE]),
            st.lists(st.sampled_from(["a", "b", "..", "", "c"]), min_size=1, max_size=5).map("/".join),
        ),
        max_size=8,
    ),
    st.booleans(),
)
@example([("a", tarfile.SYMTYPE, "")], True)
def test_nothing_is_ever_written_outside(
    tmp_path_factory: pytest.TempPathFactory, entries: list[tuple[str, bytes, str]], keeps_links: bool
) -> None:
    base = tmp_path_factory.mktemp("any")
    root = base / "inner" / "tree"
    root.mkdir(parents=True)
    (base / "archive").write_bytes(tar(*((member(name, kind, link), b"") for name, kind, link in entries)))
    descriptor = os.open(base / "archive", os.O_RDONLY)
    try:
        unpack(descriptor, root, BOUNDS, keeps_links=keeps_links)
    except ArchiveRefused:
        pass
    finally:
        os.close(descriptor)
    assert sorted(path.name for path in base.iterdir()) == ["archive", "inner"]
    assert [path.name for path in (base / "inner").iterdir()] == ["tree"]
    for path in root.rglob("*"):
        if path.is_symlink() and not keeps_links:
            target = os.path.normpath(path.parent / path.readlink())
            assert Path(target).is_relative_to(root)
