"""Schemas are what the implementation accepts, to the letter: each tool's schema against what its parsing takes.

Values are drawn from the schema and then spoiled; an independent validator says what the schema takes.
"""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from pydantic import ValidationError

from tools.base import AnyTool, ToolFailure
from tools.loading import load_tools
from tools.schema import function_schema, parse_arguments
from tools.strict import strict_function_schema

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
OWN = Path(__file__).parents[1] / "worker" / "own_tools_file.py"
TOOLS = load_tools([OWN, EXAMPLES]).registry.tools()

TEXT = st.text(st.characters(codec="utf-8"), max_size=12)
SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 700_000), st.floats(allow_nan=False, allow_infinity=False), TEXT
)
JSON = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3))


def values(schema: dict[str, Any]) -> st.SearchStrategy[Any]:
    """Values that the schema takes."""
    choices = [values(choice) for key in ("anyOf", "oneOf") for choice in schema.get(key, ())]
    if choices:
        return st.one_of(*choices)
    if "enum" in schema or "const" in schema:
        return st.sampled_from(schema.get("enum", [schema.get("const")]))
    drawn = {
        "string": strings,
        "integer": lambda schema: st.integers(schema.get("minimum", -5), schema.get("maximum", 100_000)),
        "number": lambda schema: st.floats(schema.get("minimum", -5), schema.get("maximum", 1e9)),
        "boolean": lambda schema: st.booleans(),
        "null": lambda schema: st.none(),
        "array": arrays,
        "object": dictionaries,
    }
    return drawn[schema["type"]](schema) if "type" in schema else JSON


def strings(schema: dict[str, Any]) -> st.SearchStrategy[str]:
    least = schema.get("minLength", 0)
    return st.text(
        st.characters(codec="utf-8"), min_size=least, max_size=min(schema.get("maxLength", 10_000), least + 12)
    )


def arrays(schema: dict[str, Any]) -> st.SearchStrategy[list[Any]]:
    if "prefixItems" in schema:
        return st.tuples(*(values(entry) for entry in schema["prefixItems"])).map(list)
    return st.lists(values(schema["items"]), min_size=schema.get("minItems", 0), max_size=schema.get("maxItems", 4))


def dictionaries(schema: dict[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
    if "properties" not in schema:
        return st.dictionaries(TEXT, values(schema["additionalProperties"]), max_size=3)
    required = set(schema.get("required", ()))
    entries = {name: values(entry) for name, entry in schema["properties"].items()}
    return st.fixed_dictionaries(
        {name: entry for name, entry in entries.items() if name in required},
        optional={name: entry for name, entry in entries.items() if name not in required},
    )


@st.composite
def spoiled(draw: st.DrawFn, schema: dict[str, Any]) -> Any:
    """A value of the schema with one place of it changed, which the schema may take or not."""
    value = copy.deepcopy(draw(values(schema)))
    place: Any = value
    while True:
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        kind = draw(st.sampled_from(["add", "drop", "change", "deeper"]))
        if kind == "add" or not keys:
            if isinstance(place, dict):
                place[draw(st.sampled_from(["extra", "version", "path", "limit"]) | TEXT)] = draw(JSON)
            else:
                place.append(draw(JSON))
            return value
        key = draw(st.sampled_from(keys))
        if kind == "drop":
            del place[key]
            return value
        if kind == "change" or not isinstance(place[key], (dict, list)):
            place[key] = draw(JSON)
            return value
        place = place[key]


def refusal(tool: AnyTool, value: Any, *, strict: bool = False) -> str:
    """Why parsing refuses the value; "" when it takes it."""
    try:
        parse_arguments(tool, json.dumps(value), strict=strict)
    except ToolFailure as exc:
        return exc.message
    return ""


def is_between_arguments(tool: AnyTool, value: Any) -> bool:
    """Whether only a rule between arguments refuses the value: a schema has no words for such, the refusal has."""
    try:
        tool.parameters.model_validate_json(json.dumps(value), strict=True, extra="forbid")
    except ValidationError as exc:
        return all(error["type"] == "value_error" for error in exc.errors())
    return False


def without_nulls(value: Any) -> Any:
    """The value without its nulls, each of which stands for a default."""
    if isinstance(value, dict):
        return {name: without_nulls(entry) for name, entry in value.items() if entry is not None}
    return [without_nulls(entry) for entry in value] if isinstance(value, list) else value


@pytest.mark.parametrize("tool", TOOLS, ids=lambda tool: tool.name)
@settings(max_examples=50, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_what_the_schema_takes_is_accepted_and_nothing_else(tool: AnyTool, data: st.DataObject) -> None:
    schema = function_schema(tool)["function"]["parameters"]
    value = data.draw(values(schema) | spoiled(schema))
    why = refusal(tool, value)

    if Draft202012Validator(schema).is_valid(value):
        assert not why or is_between_arguments(tool, value), why
    else:
        assert why, f"accepted: {value}"


@pytest.mark.parametrize("tool", TOOLS, ids=lambda tool: tool.name)
@settings(max_examples=50, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_what_the_strict_rendering_takes_is_accepted(tool: AnyTool, data: st.DataObject) -> None:
    function = strict_function_schema(tool)["function"]
    if not function.get("strict"):
        return
    value = data.draw(values(function["parameters"]))
    why = refusal(tool, value, strict=True)

    # Lengths of texts are left out of the rendering; parsing holds them all the same.
    is_length = "should have at least" in why or "should have at most" in why
    assert not why or is_length or is_between_arguments(tool, without_nulls(value)), why


@pytest.mark.parametrize("tool", TOOLS, ids=lambda tool: tool.name)
def test_every_schema_is_one_and_says_what_each_argument_is(tool: AnyTool) -> None:
    for entry in (function_schema(tool), strict_function_schema(tool)):
        function = entry["function"]
        Draft202012Validator.check_schema(function["parameters"])
        assert function["description"]
        for schema in objects(function["parameters"]):
            assert schema["additionalProperties"] is False
        for argument in function["parameters"]["properties"].values():
            assert argument["description"]
    strict = strict_function_schema(tool)["function"]
    if strict.get("strict"):
        for schema in objects(strict["parameters"]):
            assert schema["required"] == list(schema["properties"])


def objects(schema: Any) -> list[dict[str, Any]]:
    """All objects with named properties in a schema."""
    if isinstance(schema, list):
        return [found for entry in schema for found in objects(entry)]
    if not isinstance(schema, dict):
        return []
    inner = [found for entry in schema.values() for found in objects(entry)]
    return [schema, *inner] if isinstance(schema.get("properties"), dict) and "type" in schema else inner
