"""Plain: is a text, byte for byte, nothing but simple commands in lists and pipelines with harmless redirections?

The grammar reads some texts differently from bash: it takes an escaped blank for nothing, a word behind a redirection
for a second target, a name on the following line for part of `$`. So a node's type is not believed: every byte of the
text must be accounted for by a word of the shape that type has in bash, a known sign, or a blank where one may be.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from tree_sitter import Node

_ODD_TEXT = re.compile(r"[\x00-\x08\x7f]|[^\S \t\n]|\\\n|/dev/(?:tcp|udp)\b")
"""What people, bash and the grammar may read in three ways: odd blanks, control characters, joined lines."""
_STATEMENTS = frozenset({"program", "list", "pipeline", "negated_command", "subshell"})
_COMMANDS = frozenset({"command", "redirected_statement", "file_redirect", "herestring_redirect"})
_SIGNS = frozenset({";", "&&", "||", "|", "|&", "&", "!", "(", ")"})
_WORD = re.compile(rb"(?!#)(?:\\[^\n]|[^\s\\'\"`$;&|<>()])+")
_WORDS = {
    "word": _WORD,
    "number": _WORD,
    "raw_string": re.compile(rb"'[^']*'"),
    "string": re.compile(rb'"(?:\\.|[^"\\`$]|\$\w|\$\{\w+\})*"', re.DOTALL),
    "simple_expansion": re.compile(rb"\$[\w?#@*!-]+"),
    "expansion": re.compile(rb"\$\{\w+\}"),
    "file_descriptor": re.compile(rb"[0-9]"),
}
_UNREAD = "a part of it cannot be read"
_BLANKS = re.compile(rb"[ \t]*")
_LINE_BLANKS = re.compile(rb"[ \t\n]*")


@dataclass(frozen=True)
class Obstacle:
    """What keeps a text from being plain."""

    why: str
    """In words that go on after a semicolon."""
    start_byte: int
    """Where it begins in the text, encoded as UTF-8."""
    end_byte: int


def walk(root: Node) -> Iterator[Node]:
    """Return all nodes of a tree in the order of the text."""
    # With a stack: a hostile text may nest deeper than Python recurses.
    stack = [root]
    while stack:
        node = stack.pop()
        yield node
        stack.extend(reversed(node.children))


def obstacle(text: str, raw: bytes, root: Node) -> Obstacle | None:
    """Return what keeps a text from being plain; None if it is plain."""
    if root.has_error:
        return Obstacle("it cannot be parsed for certain", 0, len(raw))
    odd = _ODD_TEXT.search(text)
    if odd:
        start = len(text[: odd.start()].encode(errors="replace"))
        words = "it holds odd blanks, control characters, joined lines or network files"
        return Obstacle(words, start, start + len(odd[0].encode(errors="replace")))
    if not _LINE_BLANKS.fullmatch(raw[: root.start_byte]) or not _LINE_BLANKS.fullmatch(raw[root.end_byte :]):
        return Obstacle(_UNREAD, 0, len(raw))
    stack = [root]
    while stack:
        node = stack.pop()
        fault = _statement_fault(node, raw) if node.type in _STATEMENTS else _command_fault(node, raw)
        if fault:
            return fault
        stack.extend(child for child in node.children if child.type in _STATEMENTS or child.type in _COMMANDS)
    return None


def _statement_fault(node: Node, raw: bytes) -> Obstacle | None:
    """Return what is wrong between the statements of a list: all must be known, and divided as bash divides them."""
    needs = b""
    for gap, child in _with_gaps(node, raw):
        if not _LINE_BLANKS.fullmatch(gap):
            return _at(_UNREAD, child or node)
        if b"\n" in gap:
            needs = b""
        match child:
            case None:
                return None
            case Node(type="comment") if needs != b"\n" and (
                not child.start_byte or raw[child.start_byte - 1] in b" \t\n"
            ):
                needs = b"\n"
            case Node(is_named=False, type=sign) if sign in _SIGNS and needs != b"\n":
                needs = b""
            case Node(type=kind) if kind in _STATEMENTS | _COMMANDS and not needs:
                needs = b";"
            case _:
                return _at(f"it holds a {child.type.replace('_', ' ')}", child)
    return None


def _command_fault(node: Node, raw: bytes) -> Obstacle | None:
    """Return what is wrong in a command or redirection: its words must be plain and stand on one line."""
    for gap, child in _with_gaps(node, raw):
        if not _BLANKS.fullmatch(gap):
            return _at(_UNREAD, child or node)
        if child is None or child.type in _COMMANDS or child.type in _STATEMENTS:
            continue
        if child.is_named:
            fault = _word_fault(child, raw)
            if fault:
                return _at(fault, child)
        elif node.type in {"command", "redirected_statement"}:
            return _at(f"it holds a {child.type}", child)
    fault = _redirect_fault(node, raw) if node.type == "file_redirect" else ""
    return _at(fault, node) if fault else None


def _at(why: str, node: Node) -> Obstacle:
    return Obstacle(why, node.start_byte, node.end_byte)


def _with_gaps(node: Node, raw: bytes) -> Iterator[tuple[bytes, Node | None]]:
    """Return each child with the text before it, and None with the text after the last."""
    end = node.start_byte
    for child in node.children:
        yield raw[end : child.start_byte], child
        end = child.end_byte
    yield raw[end : node.end_byte], None


def _word_fault(word: Node, raw: bytes) -> str:
    stack = [word]
    while stack:
        node = stack.pop()
        if node.type in {"concatenation", "command_name"}:
            if any(gap for gap, _child in _with_gaps(node, raw)):
                return _UNREAD
            stack.extend(node.children)
        elif node.type not in _WORDS or not _WORDS[node.type].fullmatch(raw[node.start_byte : node.end_byte]):
            hidden = (part.type for part in walk(node) if part.type.endswith(("substitution", "expansion")))
            return f"it holds a {next(hidden, node.type).replace('_', ' ')}"
    return ""


def _redirect_fault(node: Node, raw: bytes) -> str:
    """Return why a redirection could write or connect, "" if it only reads, joins descriptors or throws away."""
    signs = [child.type for child in node.children if not child.is_named]
    descriptor = node.child_by_field_name("descriptor")
    if descriptor is not None and descriptor.start_byte and raw[descriptor.start_byte - 1] not in b" \t\n;|&(":
        return "it holds an odd redirection"
    targets = node.children_by_field_name("destination")
    body = node.parent.child_by_field_name("body") if node.parent is not None else None
    if len(signs) != 1 or not targets:
        return "it holds an odd redirection"
    if len(targets) > 1 and (body is None or body.type != "command"):
        return "it holds words behind a redirection"
    target = raw[targets[0].start_byte : targets[0].end_byte]
    match signs[0]:
        case "<" if targets[0].type in {"word", "raw_string"} and b"\\" not in target:
            # Escapes could hide one of bash's network files.
            return ""
        case ">" | ">>" | "&>" | "&>>" if target == b"/dev/null":
            return ""
        case ">&" | "<&" if target.isdigit():
            return ""
        case _:
            return "it redirects output to a file"
