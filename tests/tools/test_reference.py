"""The documentation says what the tools say."""

import re
from pathlib import Path

from tools.loading import load_tools
from tools.own import FunctionTool, tool
from tools.reference import PAGE, reference
from tools.registry import builtin_registry

DOCS = Path(__file__).parents[2] / "docs"


def test_the_page_of_tools_is_up_to_date() -> None:
    assert PAGE.read_text() == reference(builtin_registry()), "write it again: .venv/bin/python -m tools.reference"


def test_every_example_is_named_and_loads() -> None:
    guide = (DOCS / "own-tools.md").read_text()
    files = sorted((DOCS / "examples").glob("*.py"))

    named = re.findall(r"\(examples/(\w+\.py)\)", guide)
    assert sorted(named) == [file.name for file in files]
    loaded = load_tools(files)
    assert loaded.own == ("current_time", "find_tickets", "query_file", "query_orders", "search_documents")


def test_the_guides_first_tools_are_some() -> None:
    guide = (DOCS / "own-tools.md").read_text()
    names: dict[str, object] = {}
    for block in re.findall(r"```python\n(.*?)```", guide, re.DOTALL):
        exec(block, names)

    assert isinstance(names["weather"], FunctionTool)
    assert isinstance(names["shout"], FunctionTool)
    rows = set(re.findall(r"`(\w+)`", guide.partition("## What is declared")[2].partition("## Where")[0]))
    declared = set(tool.__kwdefaults__ or {})
    assert declared <= rows, declared - rows
