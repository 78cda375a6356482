"""The strict rendering of a tool's schema, for endpoints that decode by the schema; the plain one is in `schema`.

Every property is required and an optional one may also be null, which means its default. Keywords that such
endpoints refuse (`default`, lengths of texts) are left out: what runs is validated against the whole model all the
same.

Source: platform.openai.com, Structured Outputs, supported schemas.
"""

import json
from typing import Any

from tools.base import AnyTool
from tools.schema import Schema, function_schema, parameters_schema

LEFT_OUT = frozenset({"default", "minLength", "maxLength", "uniqueItems", "format", "discriminator"})


class _NotStrict(Exception):
    """The schema cannot be rendered strictly."""


def strict_function_schema(tool: AnyTool) -> Schema:
    """Return the tool as a strict entry of a model request's `tools`; as a plain one where strictness has no words
    for it (an object of free keys)."""
    entry = function_schema(tool)
    try:
        parameters = _strict(parameters_schema(tool.parameters))
    except _NotStrict:
        return entry
    return {"type": "function", "function": {**entry["function"], "parameters": parameters, "strict": True}}


def _strict(schema: Schema) -> Schema:
    if schema.get("type") == "object":
        return _strict_object(schema)
    strict: Schema = {}
    for key, value in schema.items():
        match key:
            case _ if key in LEFT_OUT:
                continue
            case "anyOf" | "oneOf":
                strict["anyOf"] = [_strict(choice) for choice in value]
            case "items":
                strict[key] = _strict(value)
            case "allOf" | "prefixItems" | "not":
                raise _NotStrict
            case _:
                strict[key] = value
    if not strict.keys() & {"type", "anyOf", "enum", "const"}:
        # Anything at all: no decoder can be held to that.
        raise _NotStrict
    return strict


def _strict_object(schema: Schema) -> Schema:
    if schema.get("additionalProperties") is not False:
        raise _NotStrict
    required = schema.get("required", [])
    properties = {
        name: _strict(entry) if name in required else _nullable(entry)
        for name, entry in schema.get("properties", {}).items()
    }
    strict: Schema = {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }
    return {**strict, "description": schema["description"]} if "description" in schema else strict


def _nullable(entry: Schema) -> Schema:
    """Return the schema of an optional property: null stands for its default, which the description names."""
    strict = _strict(entry)
    words = strict.pop("description", "")
    default: Any = entry.get("default")
    if default is not None:
        words = f"{words} Null means {json.dumps(default, ensure_ascii=False)}.".strip()
    choices = strict["anyOf"] if strict.keys() == {"anyOf"} else [strict]
    if {"type": "null"} not in choices:
        choices = [*choices, {"type": "null"}]
    return {"anyOf": choices, **({"description": words} if words else {})}
