"""`python -m tools.reference`: writes docs/tools.md from the registry, so that it says what the model is told."""

import json
from pathlib import Path

from tools.base import AnyTool
from tools.registry import Registry, builtin_registry
from tools.schema import Schema, parameters_schema, type_words

PAGE = Path(__file__).parents[1] / "docs" / "tools.md"

HEAD = """# Tools

What a session's model may call. Written by `python -m tools.reference` from the tools themselves: change them, not
this page. How to bring tools of your own: [own-tools.md](own-tools.md).

*effect* is what a call can do at most: the guarded policy runs what `reads`, asks before what `changes`, and judges
the command of what `runs commands`. Calls that are *safe together* run beside their neighbours in one reply.
"""


def reference(registry: Registry) -> str:
    """Return the page: one table of all tools, then each with its arguments."""
    rows = [
        "| tool | runs on | effect | safe together | answer |",
        "|---|---|---|---|---|",
        *(_row(tool) for tool in registry.tools()),
    ]
    return "\n".join([HEAD, *rows, "", *(_section(tool) for tool in registry.tools())])


def _row(tool: AnyTool) -> str:
    first = tool.description.split(". ")[0].rstrip(".")
    effect = tool.effect.replace("_", " ")
    return f"| [{tool.name}](#{tool.name.lower()}) | {tool.runs_on} | {effect} | {_safety(tool)} | {first}. |"


def _safety(tool: AnyTool) -> str:
    try:
        return "yes" if tool.is_concurrency_safe(tool.parameters.model_construct()) else "no"
    except AttributeError:
        return "by its arguments"


def _section(tool: AnyTool) -> str:
    schema = parameters_schema(tool.parameters)
    lines = [f"## {tool.name}", "", tool.description, ""]
    if schema.get("properties"):
        lines += ["| argument | type | default | meaning |", "|---|---|---|---|", *_arguments(schema), ""]
    return "\n".join(lines)


def _arguments(schema: Schema, prefix: str = "") -> list[str]:
    """Return a row for each argument, those of nested objects below it."""
    rows = []
    for name, entry in schema["properties"].items():
        path = f"{prefix}{name}"
        default = "required" if name in schema.get("required", ()) else json.dumps(entry.get("default"))
        words = entry.get("description", "").replace("|", "\\|").replace("\n", " ")
        kind = type_words(entry).replace("|", "\\|")
        rows.append(f"| `{path}` | {kind} | {default} | {words} |")
        for choice in entry.get("anyOf", [entry]):
            inner, mark = (choice.get("items", {}), "[]") if choice.get("type") == "array" else (choice, "")
            if "properties" in inner:
                rows += _arguments(inner, f"{path}{mark}.")
    return rows


if __name__ == "__main__":
    PAGE.write_text(reference(builtin_registry()))
