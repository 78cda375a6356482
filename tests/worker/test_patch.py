"""The patch is tested against the programs that read it."""

import os
import shutil
import stat
import subprocess
import tempfile
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from worker.changes import changes_between
from worker.linediff import Effort, Span, changed_spans, hunks, split_lines
from worker.patch import quoted, render

Content = tuple[str, bytes]
"""`file`, `program` or `link`, and the content or target."""
TreeOf = dict[bytes, Content]


def lay(root: Path, tree: TreeOf) -> None:
    root.mkdir(parents=True, exist_ok=True)
    for name, (kind, content) in tree.items():
        path = root / os.fsdecode(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        if kind == "link":
            os.symlink(content, path)  # noqa: PTH211
        else:
            path.write_bytes(content)
            path.chmod(0o755 if kind == "program" else 0o644)


def snapshot(root: Path) -> TreeOf:
    found: TreeOf = {}
    for path in root.rglob("*"):
        key = os.fsencode(path.relative_to(root))
        mode = path.lstat().st_mode
        if stat.S_ISLNK(mode):
            # Not `readlink` of the path: it would clean the target up.
            found[key] = ("link", os.fsencode(os.readlink(path)))  # noqa: PTH115
        elif stat.S_ISREG(mode):
            found[key] = ("program" if mode & stat.S_IXUSR else "file", path.read_bytes())
    return found


def run_in(directory: Path, *command: str, patch: bytes) -> None:
    environment = {**os.environ, "GIT_CEILING_DIRECTORIES": str(directory.parent), "GIT_CONFIG_NOSYSTEM": "1"}
    done = subprocess.run(command, cwd=directory, input=patch, capture_output=True, env=environment, check=False)
    assert done.returncode == 0, (done.stdout + done.stderr + patch[:3000]).decode(errors="replace")


def patch_and_result(place: Path, old: TreeOf, new: TreeOf, *command: str) -> tuple[bytes, TreeOf]:
    """Return the patch from old to new, and what the command makes of old with it."""
    lay(place / "base", old)
    lay(place / "work", new)
    patch = render(changes_between(place / "base", place / "work"), place / "base", place / "work")
    shutil.copytree(place / "base", place / "there", symlinks=True)
    if patch:
        run_in(place / "there", *command, patch=patch)
    return patch, snapshot(place / "there")


GIT = ("git", "apply", "--whitespace=nowarn", "-")
POSIX = ("patch", "-p1", "--binary", "--no-backup-if-mismatch", "-s")

names = st.one_of(
    st.sampled_from(
        [b"a", b"b", b"c d", b'q"uote', b"back\\slash", b"t\tab", b"l\nine", "ü".encode(), b"\xff\xfe", b"-n"]
    ),
    st.binary(min_size=1, max_size=6).filter(
        lambda name: b"/" not in name and b"\0" not in name and name.lower() not in (b".", b"..", b".git")
    ),
)
lines = st.lists(
    st.sampled_from([b"one\n", b"two\n", b"\n", b"}\n", b"cr\r\n", b"--- a/x\n", b"@@ -1 +1 @@\n", b"\xe9\n"]),
    max_size=30,
)
texts = st.builds(lambda body, end: b"".join(body) + end, lines, st.sampled_from([b"", b"no end", b"\r", b"\\"]))
contents = st.one_of(
    st.tuples(st.sampled_from(["file", "program"]), st.one_of(texts, st.binary(max_size=300))),
    st.tuples(st.just("link"), st.binary(min_size=1, max_size=20).filter(lambda target: b"\0" not in target)),
)


@st.composite
def trees(draw: st.DrawFn) -> TreeOf:
    tree: TreeOf = {}
    for path in draw(st.lists(st.lists(names, min_size=1, max_size=3), max_size=6)):
        joined = b"/".join(path)
        above = [b"/".join(path[:count]) for count in range(1, len(path))]
        if not any(name in tree for name in above) and not any(name.startswith(joined + b"/") for name in tree):
            tree[joined] = draw(contents)
    return tree


@st.composite
def pairs(draw: st.DrawFn) -> tuple[TreeOf, TreeOf]:
    """Two trees that have something in common."""
    old, new = draw(trees()), draw(trees())
    for name in draw(st.sets(st.sampled_from(sorted(old)))) if old else ():
        above = [name[:at] for at in range(len(name)) if name[at : at + 1] == b"/"]
        if not any(a in new for a in above) and not any(other.startswith(name + b"/") for other in new):
            new[name] = draw(contents) if draw(st.booleans()) else old[name]
    return old, new


def without_caches(tree: TreeOf) -> TreeOf:
    return {name: content for name, content in tree.items() if not name.endswith(b".pyc")}


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(pair=pairs())
def test_git_apply_makes_the_work_tree_of_the_base(pair: tuple[TreeOf, TreeOf]) -> None:
    old, new = map(without_caches, pair)
    with tempfile.TemporaryDirectory() as place:
        _, made = patch_and_result(Path(place), old, new, *GIT)
    assert made == new


@settings(max_examples=80, deadline=None)
@given(old=texts, new=texts)
def test_posix_patch_makes_the_new_text_of_the_old(old: bytes, new: bytes) -> None:
    with tempfile.TemporaryDirectory() as place:
        _, made = patch_and_result(Path(place), {b"d/f x": ("file", old)}, {b"d/f x": ("file", new)}, *POSIX)
    assert made == {b"d/f x": ("file", new)}


def test_posix_patch_takes_new_deleted_and_linked_files(tmp_path: Path) -> None:
    old: TreeOf = {b"gone": ("file", b"1\n2\n"), b"turned": ("file", b"x\n")}
    new: TreeOf = {b"new/deep": ("program", b"hello"), b"turned": ("program", b"x\n"), b"link": ("link", b"new/deep")}
    assert patch_and_result(tmp_path, old, new, *POSIX)[1] == new


def test_a_patch_can_be_taken_back(tmp_path: Path) -> None:
    old: TreeOf = {b"a": ("file", b"1\n2\n"), b"bin": ("file", b"\0" * 5000), b"gone": ("link", b"/etc/passwd")}
    new: TreeOf = {b"a": ("file", b"1\n3"), b"bin": ("program", bytes(range(256)) * 40), b"more": ("file", b"")}
    patch, made = patch_and_result(tmp_path, old, new, *GIT)
    assert made == new
    run_in(tmp_path / "there", *GIT[:-1], "-R", "-", patch=patch)
    assert snapshot(tmp_path / "there") == old


def test_the_patch_is_what_git_writes(tmp_path: Path) -> None:
    body = [b"line %d\n" % number for number in range(60)]
    changed = [*body[:10], b"added\n", *body[10:30], b"other\n", *body[31:]]
    old: TreeOf = {b"f": ("file", b"".join(body)), b"g h": ("program", b"x"), "ü".encode(): ("file", b"gone\n")}
    new: TreeOf = {b"f": ("file", b"".join(changed)), b"g h": ("file", b"x"), b"e": ("file", b""), b"l": ("link", b"f")}
    ours, _ = patch_and_result(tmp_path, old, new, *GIT)
    git = subprocess.run(
        ["git", "diff", "--no-index", "--no-renames", "--full-index", "--binary", "base", "work"],
        cwd=tmp_path,
        capture_output=True,
        check=False,
    )
    theirs = git.stdout.replace(b"a/base/", b"a/").replace(b"b/work/", b"b/").replace(b"a/work/", b"a/")
    theirs = theirs.replace(b"b/base/", b"b/")
    assert without_headings(ours) == without_headings(theirs)


def without_headings(patch: bytes) -> list[bytes]:
    """Return a patch's lines without the function names git puts behind a hunk's header."""
    return sorted(b"@@".join(line.split(b"@@")[:2]) if line.startswith(b"@@") else line for line in patch.split(b"\n"))


other_names = st.lists(
    st.sampled_from([".", "git", "GIT", "~1", "~2", "modules", "gi7eba", " ", ":", "\\", "/", "x", "\u200c"]),
    min_size=1,
    max_size=5,
).map("".join)


@settings(max_examples=150, deadline=None)
@given(
    name=other_names.filter(lambda name: not {"", ".", "..", ".git"} & set(name.lower().split("/"))),
    kind=st.sampled_from(["file", "link"]),
)
@example(name="git~1", kind="file")
@example(name="a/.git /x", kind="file")
@example(name=".git::$INDEX_ALLOCATION", kind="file")
@example(name="..\\.GIT", kind="link")
@example(name="a/.gitmodules", kind="link")
@example(name=".gitmodules/x", kind="link")
@example(name="GI7EBA~1", kind="link")
@example(name=".g\u200cit", kind="file")
def test_no_name_makes_git_refuse_the_whole_patch(name: str, kind: str) -> None:
    others: TreeOf = {b"other": ("file", b"1\n")}
    with tempfile.TemporaryDirectory() as place:
        new = {**others, name.encode(): (kind, b"x")}
        _, made = patch_and_result(Path(place), {}, new, "git", "-c", "core.protectHFS=true", *GIT[1:])
        left_out = changes_between(Path(place) / "base", Path(place) / "work").left_out
    assert made == (others if left_out else new)


@pytest.mark.parametrize(
    ("name", "kind"),
    [(name, "file") for name in (".gitmodules", ".gitx", "git~2", "x.git", ".git~1", "a\\b", "c:x", "git", "x:.git")]
    + [(name, "link") for name in (".gitignore", "gitmodules", "gitmod~5", "gitmodules/x", "x~1")],
)
def test_names_that_only_look_like_gits_own_are_in_the_patch(tmp_path: Path, name: str, kind: str) -> None:
    new: TreeOf = {name.encode(): (kind, b"x")}
    assert patch_and_result(tmp_path, {}, new, *GIT)[1] == new


def test_a_file_turned_into_a_directory_and_back(tmp_path: Path) -> None:
    old: TreeOf = {b"x": ("file", b"1\n"), b"y/in": ("file", b"2\n"), b"z": ("link", b"x"), b"w": ("file", b"z")}
    new: TreeOf = {b"x/in": ("file", b"1\n"), b"y": ("file", b"2\n"), b"z": ("file", b"x"), b"w": ("link", b"z")}
    assert patch_and_result(tmp_path, old, new, *GIT)[1] == new


def test_large_binaries_pass(tmp_path: Path) -> None:
    noise = os.urandom(700_001)
    _, made = patch_and_result(tmp_path, {b"b": ("file", b"\0")}, {b"b": ("file", noise)}, *GIT)
    assert made == {b"b": ("file", noise)}


def test_no_changes_are_an_empty_patch(tmp_path: Path) -> None:
    assert patch_and_result(tmp_path, {b"a": ("file", b"1")}, {b"a": ("file", b"1")}, *GIT)[0] == b""


@pytest.mark.timeout(20)
def test_two_long_unlike_files_are_replaced_without_a_search(tmp_path: Path) -> None:
    old = b"".join(b"%d\n" % (number % 7) for number in range(200_000))
    new = b"".join(b"%d\n" % (number % 5 + 100) for number in range(200_000))
    effort = Effort()
    assert len(hunks(split_lines(old), split_lines(new), effort)) == 1
    assert effort.steps > 0


def test_effort_that_is_spent_leaves_a_whole_replacement() -> None:
    old, new = [b"a\n", b"b\n", b"c\n", b"d\n"], [b"x\n", b"b\n", b"c\n", b"y\n"]
    assert changed_spans(old, new, Effort()) == [Span(0, 1, 0, 1), Span(3, 4, 3, 4)]
    assert changed_spans(old, new, Effort(steps=0)) == [Span(0, 4, 0, 4)]


@given(
    old=st.lists(st.sampled_from([b"a\n", b"b\n", b"c\n"]), max_size=40),
    new=st.lists(st.sampled_from([b"a\n", b"b\n", b"c\n"]), max_size=40),
)
def test_spans_turn_old_into_new_and_never_touch(old: list[bytes], new: list[bytes]) -> None:
    spans = changed_spans(old, new, Effort())
    made: list[bytes] = []
    position = 0
    for span in spans:
        made += old[position : span.old_start] + new[span.new_start : span.new_end]
        position = span.old_end
    assert made + old[position:] == new
    assert all(first.old_end < second.old_start for first, second in pairwise(spans))


@pytest.mark.parametrize(
    ("name", "written"),
    [
        ("a/plain name", "a/plain name"),
        ("a/ü", '"a/\\303\\274"'),
        ('a/"\\', '"a/\\"\\\\"'),
        ("a/\n\t\x01\x7f", '"a/\\n\\t\\001\\177"'),
        (os.fsdecode(b"a/\xff"), '"a/\\377"'),
    ],
)
def test_paths_are_quoted_as_git_does(name: str, written: str) -> None:
    assert quoted(name) == written
