"""What the pages say exists: files they link to, tests they name, commands and options they show."""

import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer

from coordinator.cli import COMMANDS, cli
from tests.docs.pages import PAGES, ROOT, anchors, code, command_lines, links, prose

_TEST_FILE = re.compile(r"\b(?:[\w/]+/)?test_\w+\.py\b")
_TEST_NAME = re.compile(r"\btest_\w+\b(?!\.py)")
_PATH = re.compile(r"(?:coordinator|worker|tools|sandbox|tests|deploy|docs)/[\w./-]+\.(?:py|md|sh|yaml|txt)")
every_page = pytest.mark.parametrize("page", PAGES, ids=[page.name for page in PAGES])


@cache
def named_there() -> tuple[frozenset[str], frozenset[str]]:
    """Return the names of all tests, and the paths of their files."""
    files = sorted((ROOT / "tests").rglob("test_*.py"))
    names = {name for file in files for name in re.findall(r"def (test_\w+)", file.read_text())}
    return frozenset(names), frozenset(str(file.relative_to(ROOT)) for file in files)


def mistake_in(words: list[str]) -> str | None:
    """Return what is wrong with a command line's options; None if all exist."""
    group: Any = typer.main.get_command(cli)
    command, rest = group, list(words)
    while hasattr(command, "get_command") and rest and not rest[0].startswith("-"):
        name = rest.pop(0)
        if name in ("COMMAND", "…"):
            return None
        found = command.get_command(None, name)
        if found is None:
            return f"there is no command {name}"
        command = found
    known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
    for word in rest:
        if word == "--":
            break
        option = word.partition("=")[0]
        if re.fullmatch(r"--?[a-z][\w-]*", option) and option not in known | {"--help"}:
            return f"{command.name} has no option {option}"
    return None


@every_page
def test_every_link_leads_somewhere(page: Path) -> None:
    for link in links(page):
        if re.match(r"https?:|mailto:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{page.name} links to {link}, which is not there"
        assert target.is_relative_to(ROOT), f"{page.name} links to {link}, which is outside of the repository"
        if anchor:
            assert anchor in anchors(target), f"{page.name} links to {link}; {target.name} has no such heading"


@every_page
def test_every_test_that_is_named_exists(page: Path) -> None:
    names, files = named_there()
    for piece in code(page):
        for file in _TEST_FILE.findall(piece):
            assert any(f"/{there}".endswith(f"/{file}") for there in files), f"{page.name} names {file}"
        for name in _TEST_NAME.findall(_TEST_FILE.sub("", piece)):
            is_directory = any(f"/{name}/" in there for there in files)
            assert name in names or is_directory, f"{page.name} names the test {name}, which is not there"


@every_page
def test_every_file_that_is_named_exists(page: Path) -> None:
    for path in _PATH.findall(prose(page)):
        # What a program writes when it is asked to is named before it is there.
        if path not in ("docs/performance-boxes.md",) and not path.startswith("deploy/secrets"):
            assert (ROOT / path).exists() or "…" in path, f"{page.name} names {path}, which is not there"


@every_page
def test_every_command_line_has_a_command_and_options_that_exist(page: Path) -> None:
    for line, words in command_lines(page):
        assert (mistake := mistake_in(words)) is None, f"{page.name}: `{line.strip()}`: {mistake}"


def test_every_claim_about_security_names_a_test() -> None:
    table = (ROOT / "docs/security.md").read_text().partition("| claim | shown by |\n")[2].partition("\n\n")[0]
    claims = [row.strip("| ").split(" | ") for row in table.splitlines()[1:]]
    shown = [(claim[0], claim[-1]) for claim in claims if not claim[0].startswith("**")]
    assert len(shown) > 30
    assert [claim for claim, by in shown if not re.search(r"`(?:tests/[\w/]+/)?test_\w+", by)] == []


def test_a_wrong_line_is_found() -> None:
    assert mistake_in(["run", "x", "--no-such-option"]) == "run has no option --no-such-option"
    assert mistake_in(["token", "create", "x", "--operator"]) is None
    assert mistake_in(["nothing"]) == "there is no command nothing"


def test_every_command_has_its_place_in_the_docs_and_every_page_in_the_index() -> None:
    shown = {words[0] for page in PAGES for _, words in command_lines(page) if words}
    assert set(COMMANDS) <= shown, f"no page shows {sorted(set(COMMANDS) - shown)}"
    listed = {link.partition("#")[0] for link in links(ROOT / "docs/index.md")}
    pages = {page.name for page in PAGES if page.parent.name == "docs"} - {"index.md"}
    assert pages <= listed, f"docs/index.md does not list {sorted(pages - listed)}"
