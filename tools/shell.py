"""Shell: a command's text → **what it would run**, read from a tree-sitter-bash parse. Pure; runs nothing.

Two readings of one tree. `every_command` finds each simple command wherever it hides (substitutions, loops, functions,
broken text), for refusing. `plain_commands` gives the commands of a text that holds nothing but lists and pipelines of
simple commands with harmless redirections, for allowing; anything it does not know for certain makes it give None.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

import tree_sitter_bash
from tree_sitter import Language, Node, Parser

LIMIT_BYTES = 100_000
"""Longer texts are not parsed."""

_BASH = Language(tree_sitter_bash.language())

_PLAIN_NODES = frozenset(
    {"program", "list", "pipeline", "command", "redirected_statement", "negated_command", "subshell"}
)
_PLAIN_TOKENS = frozenset({";", "\n", "&&", "||", "|", "|&", "&", "!", "(", ")"})
_WORD_NODES = frozenset({"word", "number", "string", "raw_string", "concatenation", "simple_expansion", "expansion"})
_WORD_PARTS = _WORD_NODES | {"string_content", "variable_name", "special_variable_name", '"', "$", "${", "}"}
_EXPANDED = re.compile(r"[*?\[\]{}~]")
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_STRING_ESCAPE = re.compile(r'\\([$`"\\])')
# Bash's own network files and whatever the shell reads differently from a person or from the parser.
_STRANGE_TEXT = re.compile(r"[\x00-\x08\x7f]|[^\S \t\n]|\\\n|/dev/(?:tcp|udp)\b")


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

    @property
    def name(self) -> str | None:
        """The name as the shell looks it up, path included; None if it is not certain."""
        return self.words[0].text if self.words and self.words[0].is_exact else None

    @property
    def arguments(self) -> tuple[Word, ...]:
        """The words after the name."""
        return self.words[1:]

    def inner(self, start: int) -> "SimpleCommand":
        """Return the command that a wrapper runs, whose name is the argument at `start`."""
        return SimpleCommand(self.arguments[start:])

    def until(self, end: int) -> "SimpleCommand":
        """Return the command with its first `end` words."""
        return SimpleCommand(self.words[:end])


@dataclass(frozen=True)
class Script:
    """What is known of a command's text."""

    every_command: tuple[SimpleCommand, ...]
    """All simple commands found anywhere in the text."""
    plain_commands: tuple[SimpleCommand, ...] | None
    """The commands, if the text holds nothing else that could do something; None otherwise."""
    not_plain: str = ""
    """What keeps the text from being plain, in words; "" if it is."""


def read_script(text: str) -> Script:
    """Return what a text would run in a shell."""
    raw = text.encode(errors="replace")
    if len(raw) > LIMIT_BYTES:
        return Script((), None, "it is too long to be read")
    root = Parser(_BASH).parse(raw).root_node
    every = tuple(_command(node) for node in _walk(root) if node.type == "command")
    obstacle = _obstacle(text, raw, root)
    return Script(every, None if obstacle else every, obstacle)


def _walk(root: Node) -> Iterator[Node]:
    # With a stack: a hostile text may nest deeper than Python recurses.
    stack = [root]
    while stack:
        node = stack.pop()
        yield node
        stack.extend(reversed(node.children))


def _obstacle(text: str, raw: bytes, root: Node) -> str:
    """Return why a text is not plain, "" if it is."""
    if root.has_error:
        return "it cannot be parsed for certain"
    if _STRANGE_TEXT.search(text):
        return "it holds odd blanks, control characters, joined lines or network files"
    stack = [root]
    while stack:
        node = stack.pop()
        fault = _node_fault(node, raw)
        if fault:
            return fault
        if node.type in _PLAIN_NODES:
            stack.extend(node.children)
    return ""


def _node_fault(node: Node, raw: bytes) -> str:
    if node.type in _PLAIN_NODES or node.type in _PLAIN_TOKENS:
        return ""
    if node.type == "command_name" or node.type in _WORD_NODES:
        return _word_fault(node)
    match node.type:
        case "file_redirect":
            return _redirect_fault(node)
        case "herestring_redirect":
            return next((fault for word in node.named_children if (fault := _word_fault(word))), "")
        case "comment" if node.start_byte == 0 or raw[node.start_byte - 1 : node.start_byte] in {b"\n", b" "}:
            # A blank that is itself escaped does not start a comment.
            return "" if raw[node.start_byte - 2 : node.start_byte - 1] != b"\\" else "it holds an odd comment"
        case other:
            return f"it holds a {other.replace('_', ' ')}"


def _word_fault(node: Node) -> str:
    for part in _walk(node):
        if part.type == "expansion" and [child.type for child in part.children] != ["${", "variable_name", "}"]:
            return "it holds a parameter expansion with an operator"
        if part.type != "command_name" and part.type not in _WORD_PARTS:
            return f"it holds a {part.type.replace('_', ' ')}"
    return ""


def _redirect_fault(node: Node) -> str:
    """Return why a redirection could write or connect, "" if it only reads, joins descriptors or throws away."""
    operators = [child.type for child in node.children if not child.is_named]
    targets = node.children_by_field_name("destination")
    if len(operators) != 1 or not targets or any(_word_fault(target) for target in targets):
        return "it holds a redirection"
    body = node.parent.child_by_field_name("body") if node.parent is not None else None
    if len(targets) > 1 and (body is None or body.type != "command"):
        return "it holds words behind a redirection"
    word = _word(targets[0])
    match operators[0]:
        case "<" if word.is_exact:
            return ""
        case ">" | ">>" | "&>" | "&>>" if word.is_exact and word.text == "/dev/null":
            return ""
        case ">&" | "<&" if word.is_exact and word.text.isascii() and word.text.isdigit():
            return ""
        case _:
            return "it redirects output to a file"


def _command(node: Node) -> SimpleCommand:
    children = list(node.named_children)
    names = [place for place, child in enumerate(children) if child.type == "command_name"]
    # What stands before the name are assignments and redirections.
    words = [child for child in children[names[0] :] if not child.type.endswith("_redirect")] if names else []
    return SimpleCommand(tuple(_word(word) for word in words + _strays(node)))


def _strays(command: Node) -> list[Node]:
    """Return the arguments behind a redirection, which the grammar takes for more targets of it."""
    statement = command.parent
    if statement is None or statement.type != "redirected_statement":
        return []
    redirects = [child for child in statement.children if child.type == "file_redirect"]
    return [word for redirect in redirects for word in redirect.children_by_field_name("destination")[1:]]


def _word(node: Node) -> Word:
    """Return a word's text after quote removal, up to the first part that is not certain."""
    match node.type:
        case "concatenation" if _source(node) == "{}":
            # Literal to the shell; what find and xargs put there never starts with a dash.
            return Word("{}", is_exact=True)
        case "command_name" | "concatenation":
            return _joined([_word(child) for child in node.children])
        case "word" | "number":
            return _bare(_source(node))
        case "raw_string":
            return Word(_source(node)[1:-1], is_exact=True)
        case "string" if all(child.type in {'"', "string_content"} for child in node.children):
            return Word(_STRING_ESCAPE.sub(r"\1", _source(node)[1:-1]), is_exact=True)
        case "string" if len(node.children) > 1 and node.children[1].type == "string_content":
            return Word(_STRING_ESCAPE.sub(r"\1", _source(node.children[1])), is_exact=False)
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


def _source(node: Node) -> str:
    return (node.text or b"").decode(errors="replace")
