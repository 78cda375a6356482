"""Messages made of their schema: of each form one with every field, and one with those alone that must be there."""

from collections.abc import Iterator
from typing import Any

Schema = dict[str, Any]
DEPTH = 8
"""Of messages within messages: an event may hold another one."""
LEFT_OUT = ("repo", "ref", "credential", "archive", "image_dir", "error_code", "error_message")
NAMED = {"url": "https://example.org/hook", **dict.fromkeys(LEFT_OUT)}
"""By a field's name, what no schema says: not every text is a URL, and not every field goes together with others."""
ALWAYS = ("type", "kind", "version", "wish_id")
"""Fields by which messages are told from each other: they have a default, and are always written."""
TEXTS = {
    r"^[0-9a-f]{32}$": "0123456789abcdef0123456789abcdef",
    r"^[A-Za-z0-9][A-Za-z0-9_.+-]{0,63}$": "xterm-256color",
    "date-time": "2030-01-31T12:00:00Z",
    "path": "/projects/one",
}


def examples(schema: Schema) -> Iterator[tuple[str, Any]]:
    """Yield name and value of the messages."""
    for number, form in enumerate(forms(schema, schema)):
        kind = constant(form)
        for whole in (True, False):
            yield f"{kind or number} {'whole' if whole else 'least'}", value_of(schema, form, whole=whole)


def with_unknown_fields(root: Schema, schema: Schema, value: Any) -> Any:
    """Return a message as a later release may write it: with a field more in each object that has named ones."""
    if isinstance(value, list):
        items = schema.get("prefixItems") or [schema.get("items", {})] * len(value)
        return [with_unknown_fields(root, form_of(root, one, of), of) for one, of in zip(items, value, strict=True)]
    fields, more = schema.get("properties", {}), schema.get("additionalProperties", {})
    if not isinstance(value, dict) or not (fields or isinstance(more, dict)):
        return value
    found = {
        name: with_unknown_fields(root, form_of(root, fields.get(name, more), one), one) for name, one in value.items()
    }
    return {**found, "from_a_later_release": {"x": [1]}} if fields else found


def form_of(root: Schema, schema: Schema, value: Any) -> Schema:
    """Return the form that a value has which was made of a schema."""
    kind = "object" if isinstance(value, dict) else "array" if isinstance(value, list) else None
    fitting = [one for one in forms(root, schema) if one.get("type") == kind]
    told = value.get("type", value.get("kind")) if isinstance(value, dict) else None
    return next((one for one in fitting if constant(one) in ("", told)), {})


def forms(root: Schema, schema: Schema) -> list[Schema]:
    """Return what a schema lets stand in one place, each form by itself."""
    schema = resolved(root, schema)
    several = schema.get("oneOf") or schema.get("anyOf")
    return [schema] if several is None else [form for one in several for form in forms(root, one)]


def resolved(root: Schema, schema: Schema) -> Schema:
    """Return what a reference leads to."""
    while "$ref" in schema:
        schema = root["$defs"][schema["$ref"].removeprefix("#/$defs/")]
    return schema


def constant(schema: Schema) -> str:
    """Return the word by which one form is told from the others; "" for none."""
    fields = schema.get("properties", {})
    return str(next((fields[name]["const"] for name in ("type", "kind") if "const" in fields.get(name, {})), ""))


def value_of(root: Schema, schema: Schema, *, whole: bool, depth: int = 0) -> Any:
    """Return a value that fits."""
    possible = forms(root, schema)
    if not whole or depth > DEPTH:
        possible.sort(key=lambda one: one.get("type") != "null")
    chosen = possible[0]
    if "const" in chosen or "enum" in chosen:
        return chosen.get("const", chosen.get("enum", [None])[0])
    match chosen.get("type"):
        case "object":
            return _object(root, chosen, whole=whole, depth=depth)
        case "array":
            return _array(root, chosen, whole=whole, depth=depth)
        case "string":
            return TEXTS.get(str(chosen.get("pattern", chosen.get("format"))), "a-text-of-some-length")
        case "boolean":
            return True
        case "integer" | "number":
            return max(1, chosen.get("minimum", 1))
        case "null":
            return None
        case _:
            return {"any": ["thing", None, 1.5]} if whole else None


def _object(root: Schema, schema: Schema, *, whole: bool, depth: int) -> dict[str, Any]:
    fields, required = schema.get("properties", {}), schema.get("required", [])
    more = schema.get("additionalProperties")
    made = {
        name: NAMED[name] if name in NAMED else value_of(root, field, whole=whole, depth=depth + 1)
        for name, field in fields.items()
        if whole or name in required or name in ALWAYS
    }
    if whole and isinstance(more, dict) and not fields:
        made["name"] = value_of(root, more, whole=whole, depth=depth + 1)
    return made


def _array(root: Schema, schema: Schema, *, whole: bool, depth: int) -> list[Any]:
    if "prefixItems" in schema:
        return [value_of(root, one, whole=whole, depth=depth + 1) for one in schema["prefixItems"]]
    return [value_of(root, schema.get("items", {}), whole=whole, depth=depth + 1)] if whole else []
