"""Each command line of the docs is run by a test, or it is said why not."""

from collections import Counter

from tests.docs.ledger import BY_OTHERS, LOOKING, NOT_RUN, SERVED, STARTING, WHOLE_PAGES, lines
from tests.docs.pages import ROOT


def test_every_command_line_is_run_or_it_is_said_why_not() -> None:
    known = Counter([*LOOKING, *STARTING, *SERVED, *BY_OTHERS, *NOT_RUN])
    there = {line for _, line in lines()}
    missing = [f"{page}: {line}" for page, line in lines() if line not in known]
    assert missing == [], "let a test run them, and put them into tests/docs/ledger.py"
    assert sorted(set(known) - there) == [], "no page has these lines any more: take them out of the ledger"
    assert [line for line, count in known.items() if count > 1] == []


def test_who_runs_them_exists() -> None:
    for place in {*WHOLE_PAGES.values(), *BY_OTHERS.values()}:
        file, name = place.split("::")
        found = [path for path in (ROOT / "tests").rglob(file) if f"def {name}(" in path.read_text()]
        assert found, place
