"""Calls that a model wrote into its text instead of making them: reply → **written_calls** → loop.

Models and endpoints whose formats do not fit each other let a call through as text: in the tags of a chat template, in
a fence, as bare JSON, as a line of Python. Such a text is no answer, and it is no call either: what was quoted from a
file must never run. This module only tells that it is there.

An answer may show JSON and may speak of tools. So tags count only at the beginning of a line, outside of fences, and
with a call in them; a fence, bare JSON or Python counts only for a tool that there is, and only where the text ends
with it.
"""

import ast
import json
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

MAX_CHARS = 1_000_000
"""Texts above this are not looked into."""
_MAX_PYTHON_CHARS = 100_000
_NEAR_CHARS = 500

_FENCE = re.compile(
    r"^[ \t]*(?P<mark>`{3,}|~{3,})(?P<word>[^\n`]*)\n(?P<inner>.*?)(?:^[ \t]*(?P=mark)[`~]*[ \t]*$|\Z)", re.M | re.S
)
_FENCE_WORDS = frozenset({"", "json", "tool_call", "tool_calls", "tool_code", "tool", "xml", "python", "function"})
_TAG = re.compile(
    r"^[ \t]*(?:"
    r"<(?P<tag>tool_calls?|function_calls?|functioncall|function_call|toolcall)>"
    r"|<(?:antml:)?(?P<xml>function|invoke|tool)[ =]\s*(?:name\s*=\s*)?[\"']?(?P<xml_name>[A-Za-z0-9_.-]+)[\"']?\s*/?>"
    r"|\[(?P<bracket>TOOL_CALLS?|TOOL_REQUEST)\]"
    r"|<\|(?P<token>python_tag|tool_calls?_(?:section_)?begin|tool_call|tool_call_begin|plugin)\|>"
    r"|<｜(?P<wide>tool▁calls?▁begin)｜>"
    r"|(?:<\|start\|>assistant)?<\|channel\|>commentary to=(?P<harmony>[A-Za-z0-9_.-]+)"
    r")",
    re.M | re.I,
)
_NAMES = ("name", "tool", "tool_name", "function", "action", "recipient_name")
_ARGUMENTS = ("arguments", "parameters", "args", "input", "action_input", "tool_input", "kwargs")
_BESIDE = frozenset({*_NAMES, *_ARGUMENTS, "id", "type", "call_id", "thought", "reasoning", "index"})
_PREFIX = re.compile(r"^(?:functions?|tools?|default_api|api)[.:/]")
_QUOTED_NAME = re.compile(r"[\"']?(?:name|tool|function)[\"']?\s*[:=]\s*[\"']([A-Za-z0-9_.-]+)[\"']")
_LEADING_NAME = re.compile(r"\s*(?:functions?\.)?([A-Za-z0-9_-]+)[ \t]*(?::\d+)?[ \t]*(?:\[ARGS\]|\{|\(|<|\n|$)")


@dataclass(frozen=True)
class WrittenCall:
    """A call in a text."""

    name: str
    """The tool it names; "" where the tags are there but no name can be read."""
    form: str
    """How it was written: tags, fence, json or python."""


def written_calls(text: str, names: Collection[str]) -> tuple[WrittenCall, ...]:
    """The calls that a text holds instead of an answer, in order; empty for an answer.

    Args:
        text: The visible text of a reply that has no calls.
        names: The tools that the model was shown.
    """
    if not text.strip() or len(text) > MAX_CHARS:
        return ()
    fences = list(_FENCE.finditer(text))
    tagged = tuple(_tagged(text, [match.span() for match in fences], names))
    if tagged:
        return tagged
    if fences and not text[fences[-1].end() :].strip():
        return tuple(_fenced(fences[-1], names))
    return tuple(_at_end(text.strip(), names))


def _tagged(text: str, fences: list[tuple[int, int]], names: Collection[str]) -> Iterator[WrittenCall]:
    """Calls in the tags of a chat template, also in tags that were never closed."""
    named_until = 0
    for match in _TAG.finditer(text):
        if match.end() <= named_until or any(start <= match.start() < end for start, end in fences):
            continue
        body = text[match.end() : match.end() + _MAX_PYTHON_CHARS]
        if match["token"] or match["wide"]:
            name = _name_near(body, names)
        elif match["tag"] or match["bracket"]:
            name, named_until = _name_in(body, names), match.end() + _inner_tag_end(body)
        else:
            name = _name_of(match, names)
        if name is not None:
            yield WrittenCall(name, "tags")


def _name_of(match: re.Match[str], names: Collection[str]) -> str | None:
    """The tool that a tag itself names."""
    name = _bare(match["harmony"] or match["xml_name"])
    is_template = match["harmony"] is not None or match["xml"].lower() == "invoke" or "function=" in match[0]
    return name if is_template or name in names else None


def _name_near(body: str, names: Collection[str]) -> str | None:
    """The first known tool behind a special token, whatever other tokens stand between."""
    words = re.findall(r"[A-Za-z0-9_-]+", body[:_NEAR_CHARS])
    return next((word for word in words if word in names), None)


def _inner_tag_end(body: str) -> int:
    """Where a tag that a body begins with ends; 0 where it begins with none."""
    inner = _TAG.match(body.lstrip())
    return len(body) - len(body.lstrip()) + inner.end() if inner else 0


def _name_in(body: str, names: Collection[str]) -> str | None:
    """The tool that what follows a tag calls; None where it is no call."""
    body = body.lstrip()
    if body.startswith(("{", "[")):
        value = _json_at(body)
        if value is not None:
            return next(iter(_called(value, None)), None)
        # Cut or not quite JSON: its beginning still tells.
        quoted = _QUOTED_NAME.search(body[:_NEAR_CHARS])
        return _bare(quoted[1]) if quoted else None
    inner = _TAG.match(body)
    if inner and inner["xml_name"]:
        return _name_of(inner, names)
    leading = _LEADING_NAME.match(body)
    return _bare(leading[1]) if leading and _bare(leading[1]) in names else None


def _fenced(fence: re.Match[str], names: Collection[str]) -> Iterator[WrittenCall]:
    if fence["word"].strip().lower() not in _FENCE_WORDS:
        return
    inner = fence["inner"].strip()
    for tagged in _tagged(inner, [], names):
        yield WrittenCall(tagged.name, "fence")
        return
    value = _json_whole(inner)
    found = _called(value, names) if value is not None else _python(inner, names)
    yield from (WrittenCall(name, "fence") for name in found)


def _at_end(text: str, names: Collection[str]) -> Iterator[WrittenCall]:
    """Bare JSON or a line of Python that the text is or ends with."""
    for start in _line_starts(text):
        rest = text[start:]
        if rest[:1] in "{[":
            value = _json_whole(rest)
            if value is not None:
                found = _called(value, names)
                if found:
                    yield from (WrittenCall(name, "json") for name in found)
                    return
    last = text.rpartition("\n\n")[2] if "\n\n" in text else text
    for rest in (text, last, text.rpartition("\n")[2]):
        found = _python(rest.strip(), names)
        if found:
            yield from (WrittenCall(name, "python") for name in found)
            return


def _line_starts(text: str) -> Iterator[int]:
    """Where lines begin that could begin JSON: the first, and the last few."""
    starts = [match.start() for match in re.finditer(r"^[{\[]", text, re.M)]
    yield from starts[:1]
    yield from starts[1:][-8:]


def _called(value: Any, names: Collection[str] | None) -> list[str]:
    """The tools that decoded JSON calls; empty where it is anything else.

    Args:
        value: An object that is a call, or a list of such, or an object that holds such a list.
        names: The tools that there are; None takes any name.
    """
    if isinstance(value, Mapping) and set(value) in ({"tool_calls"}, {"tool_uses"}):
        value = next(iter(value.values()))
    if isinstance(value, list):
        each = [_called(item, names) for item in value]
        return [name for found in each for name in found] if each and all(each) else []
    if not isinstance(value, Mapping):
        return []
    inner = value.get("function")
    if isinstance(inner, Mapping):
        return _called(inner, names) if set(value) <= _BESIDE else []
    name = next((value[key] for key in _NAMES if isinstance(value.get(key), str)), None)
    arguments = next((value[key] for key in _ARGUMENTS if key in value), None)
    if name is None or not set(value) <= _BESIDE or not _are_arguments(arguments):
        return []
    name = _bare(name)
    return [name] if names is None or name in names else []


def _are_arguments(value: Any) -> bool:
    if isinstance(value, str):
        return isinstance(_json_whole(value.strip()), Mapping)
    return isinstance(value, Mapping)


def _python(text: str, names: Collection[str]) -> list[str]:
    """The tools that lines of Python call by keyword with plain values; empty where they do anything else."""
    if not text or len(text) > _MAX_PYTHON_CHARS or not any(name in text for name in names):
        return []
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    found: list[str] = []
    for statement in tree.body:
        value = statement.value if isinstance(statement, ast.Expr) else None
        for call in value.elts if isinstance(value, ast.List) else [value]:
            name = _python_call(call, names)
            if name is None:
                return []
            found.append(name)
    return found


def _python_call(call: ast.expr | None, names: Collection[str]) -> str | None:
    if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "print" and call.args:
        call = call.args[0]
    if not isinstance(call, ast.Call) or call.args or not all(keyword.arg for keyword in call.keywords):
        return None
    try:
        for keyword in call.keywords:
            ast.literal_eval(keyword.value)
    except (ValueError, RecursionError, MemoryError):
        return None
    name = _bare(ast.unparse(call.func))
    return name if name in names else None


def _json_whole(text: str) -> Any:
    """The value of a text that is JSON, None where it is not."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _json_at(text: str) -> Any:
    """The value that a text begins with, None where that is no JSON."""
    try:
        return json.JSONDecoder().raw_decode(text)[0]
    except (ValueError, RecursionError):
        return None


def _bare(name: str) -> str:
    return _PREFIX.sub("", name)
