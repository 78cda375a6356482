"""Own tools are found in files and packages, and whatever is wrong with them is said with its place."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tools.loading import ToolsUnusable, load_tools
from tools.registry import builtin_registry

GREET = '''
from tools.own import tool

@tool
def greet(name: str) -> str:
    """Greet.

    Args:
        name: Who.
    """
    return name
'''
CLASS = '''
from tools.base import Parameters, RunContext, Tool, ToolResult

class NoParameters(Parameters):
    """None."""

class Look(Tool[NoParameters]):
    """Looks."""

    name = "Look"
    description = "Look."
    parameters = NoParameters

    def run(self, arguments, context):
        return ToolResult(status="success", text="x")
'''
Put = Callable[[str, str], Path]


@pytest.fixture
def put(tmp_path: Path) -> Put:
    def put(name: str, content: str) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
        return path

    return put


def test_without_own_tools_there_are_the_built_in_ones() -> None:
    loaded = load_tools()
    assert loaded.registry.names() == builtin_registry().names()
    assert (loaded.own, loaded.digest, loaded.files) == ((), "", ())


def test_functions_and_classes_of_files_and_directories_are_taken(put: Put, tmp_path: Path) -> None:
    put("more/a.py", CLASS)
    put("more/_helper.py", "raise RuntimeError")
    put("more/b.txt", "no tools")
    loaded = load_tools([put("greet.py", GREET), tmp_path / "more"])

    assert loaded.own == ("Look", "greet")
    assert set(builtin_registry().names()) < set(loaded.registry.names())
    assert loaded.files == (str(tmp_path / "greet.py"), str(tmp_path / "more" / "a.py"))
    assert not list(tmp_path.glob("**/__pycache__"))


def test_a_list_says_which_tools_of_a_file_are_meant(put: Put) -> None:
    text = GREET + "\nother = tool(name='other')(lambda: 'x') if False else None\nTOOLS = [greet]\n"
    assert load_tools([put("mine.py", text)]).own == ("greet",)


def test_the_same_file_twice_is_loaded_once(put: Put) -> None:
    path = put("mine.py", GREET)
    assert load_tools([path, path]).own == ("greet",)


def test_the_digest_tells_content_and_nothing_else(put: Put) -> None:
    one, other = put("one/mine.py", GREET), put("other/renamed.py", GREET)
    changed = put("changed/mine.py", GREET.replace("return name", "return name + '!'"))

    assert load_tools([one]).digest == load_tools([other]).digest
    assert load_tools([one]).digest != load_tools([changed]).digest


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("x = (", "SyntaxError"),
        ("import nowhere_to_be_found", "No module named 'nowhere_to_be_found' (line 1)"),
        ("\n\n1 / 0", "ZeroDivisionError: division by zero (line 3)"),
        ("x = 1", "holds no tool"),
        ("TOOLS = [7]", "7 is no tool"),
        ("TOOLS = []", "holds no tool"),
        ("TOOLS = 7", "7 is no tool"),
        (GREET.replace("def greet", "def Read"), "the name 'Read' is taken by the built-in tools"),
        (GREET.replace("name: str", "name"), "'name' has no type hint (line 4)"),
        (CLASS.replace('description = "Look."', ""), "description"),
        (CLASS.replace('"Look"', '"Look at"'), "a name is 1 to 64 letters"),
        (CLASS.replace("    parameters = NoParameters\n", ""), "parameters"),
        (CLASS + '\n    runs_on = "coordinator"\n', "runs_on is box or worker"),
        ("import sys; sys.exit(3)", "SystemExit: 3"),
    ],
)
def test_what_cannot_be_loaded_is_said_with_its_place(put: Put, content: str, words: str) -> None:
    path = put("mine.py", content)
    with pytest.raises(ToolsUnusable) as caught:
        load_tools([path])
    assert str(path) in str(caught.value)
    assert words in str(caught.value)


def test_a_missing_file_and_one_with_a_colon_are_refused(put: Put, tmp_path: Path) -> None:
    with pytest.raises(ToolsUnusable, match=r"nowhere\.py: there is no such file"):
        load_tools([tmp_path / "nowhere.py"])
    with pytest.raises(ToolsUnusable, match="colon"):
        load_tools([put("a:b.py", GREET)])


def test_two_files_may_not_bring_the_same_name(put: Put) -> None:
    one, other = put("one.py", GREET), put("other.py", GREET)
    with pytest.raises(ToolsUnusable, match=r"other\.py: the name 'greet' is taken by .*one\.py"):
        load_tools([one, other])


@pytest.mark.parametrize("value", ["brought", "brought:greet", "brought:BOTH", "brought:Look"])
def test_installed_packages_bring_tools_by_entry_point(put: Put, tmp_path: Path, value: str) -> None:
    put("site/brought.py", GREET + CLASS + "\nBOTH = [greet, Look]\n")
    put("site/brought-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: brought\nVersion: 1.0\n")
    put("site/brought-1.0.dist-info/entry_points.txt", f"[sandhog.tools]\nmine = {value}\n")
    code = "from tools.loading import load_tools; t = load_tools(); print(*t.own, bool(t.digest))"
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path / 'site'}:{Path.cwd()}"}
    ran = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)

    expected = {"brought:greet": "greet True", "brought:Look": "Look True"}
    assert ran.stdout.strip() == expected.get(value, "Look greet True")


def test_a_broken_entry_point_is_named(put: Put, tmp_path: Path) -> None:
    put("site/brought-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: brought\nVersion: 1.0\n")
    put("site/brought-1.0.dist-info/entry_points.txt", "[sandhog.tools]\nmine = nowhere:tool\n")
    code = "from tools.loading import load_tools; load_tools()"
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path / 'site'}:{Path.cwd()}"}
    ran = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)

    assert "entry point mine (nowhere:tool): ModuleNotFoundError" in ran.stderr
