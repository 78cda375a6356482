"""The repository's pages as text: their blocks, links, command lines and the names of tests."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")])
SHELL = ("sh", "bash", "console")
_FENCE = re.compile(r"```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_MARK = re.compile(r"<!-- (run|file (?P<name>\S+)) -->\n\Z")
_LINK = re.compile(r"\[[^\]\n]*\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ +(.*)$", re.MULTILINE)
_CODE = re.compile(r"`([^`\n]+)`")
_ENDS = {"|", "||", "&&", ";", "&", ">", ">>", "<", "(", ")"}


@dataclass(frozen=True)
class Block:
    """A fenced block."""

    language: str
    text: str
    mark: str
    """`run`, `file` or empty: what the comment before it says."""
    file: str
    """Name of the file that the block holds; empty where it holds none."""


def blocks(page: Path) -> list[Block]:
    text = page.read_text()
    found = []
    for fence in _FENCE.finditer(text):
        mark = _MARK.search(text[: fence.start()])
        kind = mark[1].split()[0] if mark else ""
        found.append(Block(fence[1], fence[2], kind, (mark and mark["name"]) or ""))
    return found


def prose(page: Path) -> str:
    """Return a page without its fenced blocks."""
    return _FENCE.sub("", page.read_text())


def links(page: Path) -> list[str]:
    return _LINK.findall(prose(page))


def anchors(page: Path) -> set[str]:
    """Return the names by which the headings of a page are linked to."""
    names = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in _HEADING.findall(prose(page)))
    return {name.strip().replace(" ", "-") for name in names}


def code(page: Path) -> list[str]:
    return _CODE.findall(prose(page))


def command_lines(page: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield each `sandhog …` of shell blocks and prose: the line as written, and the words behind the name."""
    for block in blocks(page):
        if block.language in SHELL:
            for line in block.text.replace("\\\n", " ").splitlines():
                yield from ((line, words) for words in _calls(line))
    for piece in code(page):
        if piece.startswith("sandhog "):
            yield from ((piece, words) for words in _calls(piece))


def _calls(line: str) -> Iterator[list[str]]:
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;<>()")
    lexer.whitespace_split = True
    try:
        tokens = list(lexer)
    except ValueError:
        # A text of several lines; its commands stand on its first line only.
        tokens = line.split()
    words: list[str] | None = None
    for token in [*tokens, ";"]:
        is_end = bool(token) and (token in _ENDS or set(token) <= set("|&;<>()"))
        if words is not None and is_end:
            yield words
            words = None
        elif words is not None:
            words.append(token)
        elif token.removeprefix("$(").rpartition("/")[2] == "sandhog":
            words = []
