"""A patch, line by line."""

from coordinator.page.diff import of_patch
from tests.coordinator.page.example import PATCH


def test_a_patch_is_told_apart_line_by_line() -> None:
    diff = of_patch(PATCH.splitlines(keepends=True))

    assert (diff.files, diff.added, diff.removed, diff.is_cut) == (2, 2, 1, False)
    kinds = [line.kind for line in diff.lines]
    assert kinds[:5] == ["file", "meta", "meta", "meta", "hunk"]
    assert kinds[5:10] == ["same", "del", "add", "add", "meta"]
    assert kinds[10:] == ["file", "meta", "meta"]


def test_a_huge_patch_is_cut_and_counted_whole() -> None:
    diff = of_patch([b"diff --git a/a b/a\n", b"@@ -0,0 +1 @@\n", *[b"+x\n"] * 20_000, b"+" + b"y" * 10_000])

    assert (len(diff.lines), diff.added, diff.is_cut) == (5_000, 20_001, True)
