"""The list of known ways out names tests that are there."""

import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
PAGE = TESTS.parent / "docs" / "isolation.md"


def test_every_test_that_the_list_names_exists() -> None:
    rows = [line for line in PAGE.read_text().partition("## Known ways out")[2].splitlines() if line.startswith("|")]
    assert len(rows) > 20
    sources = {path.relative_to(TESTS).as_posix(): path.read_text() for path in TESTS.rglob("test_*.py")}
    for row in rows[2:]:
        shown_by = row.split("|")[-2]
        files = re.findall(r"`(?:tests/)?([\w/]+\.py)`", shown_by)
        names = re.findall(r"`(test_\w+)`", shown_by)
        assert files or names, row
        for file in files:
            assert any(path.endswith(f"/{file}") or path == file for path in sources), file
        for name in names:
            assert any(f"def {name}(" in source for source in sources.values()), name
