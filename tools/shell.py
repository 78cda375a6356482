"""Shell: a command's text → **what it would run**, read from a tree-sitter-bash parse. Pure; runs nothing.

Two readings of one tree. `every_command` finds each simple command wherever it hides (substitutions, loops, functions,
broken text), for refusing. `plain_commands` gives the commands of a text that holds nothing but lists and pipelines of
simple commands with harmless redirections, for allowing; anything it does not know for certain makes it give None.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import tree_sitter_bash
from tree_sitter import Language, Node, Parser

from tools.plain import Obstacle, obstacle

LIMIT_BYTES = 100_000
"""Longer texts are not parsed."""

_BASH = Language(tree_sitter_bash.language())

_AS_LETTERS = bytes(byte if byte < 0x80 else ord("_") for byte in range(256))
"""The grammar's scanner looks characters up in a table of 256 and crashes at others. To bash they are letters, so that
is what the parser gets in their place, byte for byte; words are read from the text itself."""
_RESERVED = frozenset(
    {"!", "if", "then", "elif", "else", "fi", "do", "done", "while", "until"}
    | {"for", "case", "esac", "select", "function"}
)
"""Words that begin or part a construct; after `!` the grammar takes some of them for names of programs."""
_SPLIT = frozenset({"simple_expansion", "expansion", "command_substitution", "arithmetic_expansion"})
_EXPANDED = re.compile(r"[*?\[\]{}~]")
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_STRING_ESCAPE = re.compile(r'\\([$`"\\])')


@dataclass(frozen=True)
class Word:
    """One word of a command after quotes and escapes are taken away."""

    text: str
    """The word, or its beginning as far as that is certain."""
    is_exact: bool
    """Whether the shell passes on exactly `text`: False behind a variable, a pattern or a substitution."""

    @property
    def may_be_option(self) -> bool:
        """Whether the program could take it for an option."""
        return self.text.startswith("-") or (not self.is_exact and not self.text)


@dataclass(frozen=True)
class SimpleCommand:
    """One simple command: its words, the name first."""

    words: tuple[Word, ...]
    start_byte: int = field(default=0, compare=False)
    """Where it begins in the text, encoded as UTF-8; of an inner command, where the outermost one does."""
    end_byte: int = field(default=0, compare=False)
    """Where it ends."""
    has_input: bool = field(default=False, compare=False)
    """Whether it may read what another command or the text puts into it: then its words do not tell what it does."""

    @property
    def is_exact(self) -> bool:
        """Whether the shell passes on exactly these words."""
        return all(word.is_exact for word in self.words)

    @property
    def name(self) -> str | None:
        """The name as the shell looks it up, path included; None if it is not certain."""
        return self.words[0].text if self.words and self.words[0].is_exact else None

    @property
    def arguments(self) -> tuple[Word, ...]:
        """The words after the name."""
        return self.words[1:]

    def inner(self, start: int, end: int | None = None) -> "SimpleCommand":
        """Return the command that a wrapper runs: from the argument at `start`, its name, to that before `end`."""
        return replace(self, words=self.words[start + 1 : None if end is None else end + 1])

    def followed_by(self, words: tuple[Word, ...]) -> "SimpleCommand":
        """Return the command with more words at its end."""
        return replace(self, words=self.words + words)


@dataclass(frozen=True)
class Script:
    """What is known of a command's text."""

    every_command: tuple[SimpleCommand, ...]
    """All simple commands found anywhere in the text."""
    plain_commands: tuple[SimpleCommand, ...] | None
    """The commands, if the text holds nothing else that could do something; None otherwise."""
    not_plain: Obstacle | None = None
    """What keeps the text from being plain; None if it is."""


def read_script(text: str) -> Script:
    """Return what a text would run in a shell."""
    raw = text.encode(errors="replace")
    if len(raw) > LIMIT_BYTES:
        return Script((), None, Obstacle("it is too long to be read", 0, len(raw)))
    root = Parser(_BASH).parse(raw.translate(_AS_LETTERS)).root_node
    found = [_command(node, raw, has_input) for node, has_input in _walk(root) if node.type == "command"]
    every = tuple(_behind_reserved(command) for command in found)
    fault = obstacle(text, raw, root) or _misread(found)
    return Script(every, None if fault else every, fault)


def _misread(commands: list[SimpleCommand]) -> Obstacle | None:
    """Return an obstacle where the grammar took a word for a program's name that begins a construct in bash."""
    for command in commands:
        if command.name in _RESERVED:
            return Obstacle("it cannot be parsed for certain", command.start_byte, command.end_byte)
    return None


def _behind_reserved(command: SimpleCommand) -> SimpleCommand:
    """Return what bash would run of a command that the grammar began too early."""
    place = 0
    while place < len(command.words) and command.words[place].text in _RESERVED:
        place += 1
    return replace(command, words=command.words[place:]) if place else command


def _walk(root: Node) -> Iterator[tuple[Node, bool]]:
    """Return all nodes in the order of the text, and whether something may be put into what they run."""
    # With a stack: a hostile text may nest deeper than Python recurses.
    stack = [(root, False)]
    while stack:
        node, has_input = stack.pop()
        children = node.children
        has_input = has_input or any(b"<" in (child.text or b"") for child in children if _is_redirect(child))
        yield node, has_input
        pipes = 0
        below = []
        for child in children:
            below.append((child, has_input or pipes > 0))
            pipes += child.type in {"|", "|&"}
        stack.extend(reversed(below))


def _is_redirect(node: Node) -> bool:
    return node.type.endswith("_redirect")


def _command(node: Node, raw: bytes, has_input: bool) -> SimpleCommand:
    children = list(node.named_children)
    names = [place for place, child in enumerate(children) if child.type == "command_name"]
    # What stands before the name are assignments and redirections.
    words = [child for child in children[names[0] :] if not _is_redirect(child)] if names else []
    return SimpleCommand(
        tuple(_word(word, raw) for word in words + _strays(node)), node.start_byte, node.end_byte, has_input
    )


def _strays(command: Node) -> list[Node]:
    """Return the arguments behind a redirection, which the grammar takes for more targets of it."""
    statement = command.parent
    if statement is None or statement.type != "redirected_statement":
        return []
    redirects = [child for child in statement.children if child.type == "file_redirect"]
    return [word for redirect in redirects for word in redirect.children_by_field_name("destination")[1:]]


def _word(node: Node, raw: bytes) -> Word:
    """Return a word's text after quote removal, up to the first part that is not certain."""
    match node.type:
        case "concatenation" if _source(node, raw) == "{}":
            # Literal to the shell; what find and xargs put there never starts with a dash.
            return Word("{}", is_exact=True)
        case "concatenation" if any(child.type in _SPLIT for child in node.children):
            # What is not quoted is split into words again, of which any may be an option.
            return Word("", is_exact=False)
        case "command_name" | "concatenation":
            return _joined([_word(child, raw) for child in node.children])
        case "word" | "number":
            return _bare(_source(node, raw))
        case "raw_string":
            return Word(_source(node, raw)[1:-1], is_exact=True)
        case "string" if all(child.type in {'"', "string_content"} for child in node.children):
            return Word(_STRING_ESCAPE.sub(r"\1", _source(node, raw)[1:-1]), is_exact=True)
        case "string" if len(node.children) > 1 and node.children[1].type == "string_content":
            return Word(_STRING_ESCAPE.sub(r"\1", _source(node.children[1], raw)), is_exact=False)
        case _:
            return Word("", is_exact=False)


def _joined(parts: list[Word]) -> Word:
    text = ""
    for part in parts:
        text += part.text
        if not part.is_exact:
            return Word(text, is_exact=False)
    return Word(text, is_exact=True)


def _bare(source: str) -> Word:
    if source.startswith("~"):
        return Word("~", is_exact=False)
    special = _EXPANDED.search(_ESCAPE.sub("__", source))
    if special is None:
        return Word(_ESCAPE.sub(r"\1", source), is_exact=True)
    return Word(_ESCAPE.sub(r"\1", source[: special.start()]), is_exact=False)


def _source(node: Node, raw: bytes) -> str:
    return raw[node.start_byte : node.end_byte].decode(errors="replace")
