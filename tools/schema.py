"""Schemas: a model's arguments → **parse_arguments** → a tool's parameter object; and the way back, for the model."""

import functools
import json
import math
from collections.abc import Mapping
from typing import Any, NoReturn

from pydantic import BaseModel, ValidationError

from tools.base import AnyTool, ErrorCode, ToolFailure
from tools.cutting import shorten_value

SHOWN_FAULTS = 5
Schema = dict[str, Any]
BOUNDS = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}


def parse_arguments(tool: AnyTool, raw: str | Mapping[str, Any] | None, *, strict: bool = False) -> BaseModel:
    """Return the tool's arguments from what the model sent: a JSON text or an object; "" and None mean no arguments.

    Args:
        tool: The tool that is called.
        raw: The arguments.
        strict: The model was given the strict rendering: null stands for the default of an optional argument.

    Raises:
        ToolFailure: INVALID_PARAM; names the fault and what is allowed. INTERNAL_ERROR: a validator of the tool broke.
    """
    text = _fitting_text(tool, raw if isinstance(raw, str) else json.dumps(dict(raw or {})), strict)
    try:
        # By JSON, not by Python values: a strict model takes a nested object only this way. Nested models of a
        # user's need not say that they are closed.
        return tool.parameters.model_validate_json(text, strict=True, extra="forbid")
    except ValidationError as exc:
        faults = [_fault(error) for error in exc.errors(include_url=False, include_context=False)]
        more = f"; and {len(faults) - SHOWN_FAULTS} more" if len(faults) > SHOWN_FAULTS else ""
        _refuse(tool, "; ".join(faults[:SHOWN_FAULTS]) + more)
    except Exception as exc:
        # A user's validator may raise anything; it must not end the session.
        words = f"{tool.name}: checking its arguments broke: {type(exc).__name__}: {exc}"
        raise ToolFailure(ErrorCode.INTERNAL_ERROR, words) from exc


def _fitting_text(tool: AnyTool, text: str, strict: bool) -> str:
    """Return the JSON of one object, as the parameter model takes it."""
    try:
        value = json.loads(text if text.strip() else "{}", parse_constant=_refuse_constant, parse_float=_finite)
        if isinstance(value, dict):
            return json.dumps(_fitted(value, parameters_schema(tool.parameters), strict))
    except RecursionError:
        _refuse(tool, "arguments are nested too deeply")
    except ValueError as exc:
        _refuse(tool, f"arguments are not JSON: {exc}")
    _refuse(tool, f"arguments must be a JSON object, not {_kind(value)}")


def function_schema(tool: AnyTool) -> Schema:
    """Return the tool as one entry of a model request's `tools`."""
    return {
        "type": "function",
        "function": {
            "name": tool.name,
            "description": tool.description,
            "parameters": parameters_schema(tool.parameters),
        },
    }


@functools.cache
def parameters_schema(parameters: type[BaseModel]) -> Schema:
    """Return a parameter model's JSON schema: nested models in place, no titles, nothing but what validation takes.

    Raises:
        ValueError: a model holds itself.
        PydanticUserError: a type has no JSON schema.
    """
    schema = parameters.model_json_schema()
    definitions = schema.pop("$defs", {})
    # The class docstring is for readers of the code; the tool's description is for the model.
    schema.pop("description", None)
    return _inlined(schema, definitions, ())


def _inlined(schema: Schema, definitions: Mapping[str, Schema], above: tuple[str, ...]) -> Schema:
    if "$ref" in schema:
        name = schema["$ref"].removeprefix("#/$defs/")
        if name in above:
            raise ValueError(f"{name} holds itself, which a schema without references has no words for")
        above = (*above, name)
        target = dict(definitions[name])
        target.pop("description", None)
        schema = {**target, **{key: value for key, value in schema.items() if key != "$ref"}}
    plain: Schema = {}
    for key, value in schema.items():
        if key == "discriminator" or (key == "title" and isinstance(value, str)):
            continue
        if key == "properties":
            plain[key] = {name: _inlined(entry, definitions, above) for name, entry in value.items()}
        elif isinstance(value, dict) and key not in {"default", "const"}:
            plain[key] = _inlined(value, definitions, above)
        elif key in {"anyOf", "oneOf", "allOf", "prefixItems"}:
            plain[key] = [_inlined(entry, definitions, above) for entry in value]
        else:
            plain[key] = value
    if "properties" in plain:
        # Held by `extra="forbid"` at validation, for every nested object.
        plain.setdefault("additionalProperties", False)
    return plain


def _fitted(value: Any, schema: Schema, strict: bool) -> Any:
    """Return a value with 1.0 as 1 where the schema wants an integer: JSON knows no difference, a strict model does.

    With `strict` the nulls are gone that stand for defaults.
    """
    choices = [*schema.get("anyOf", ()), *schema.get("oneOf", ())]
    if isinstance(value, float):
        kinds = {entry.get("type") for entry in (schema, *choices)}
        return int(value) if "integer" in kinds and "number" not in kinds and value.is_integer() else value
    for choice in choices:
        value = _fitted(value, choice, strict)
    if isinstance(value, list) and isinstance(schema.get("items"), dict):
        return [_fitted(item, schema["items"], strict) for item in value]
    if not isinstance(value, dict) or schema.get("type") != "object":
        return value
    properties, required = schema.get("properties", {}), schema.get("required", [])
    others = schema.get("additionalProperties")
    return {
        name: _fitted(entry, properties.get(name, others if isinstance(others, dict) else {}), strict)
        for name, entry in value.items()
        if not strict or entry is not None or name in required or name not in properties
    }


def _refuse(tool: AnyTool, fault: str) -> NoReturn:
    allowed = ", ".join(_argument(name, entry, tool) for name, entry in _properties(tool).items())
    raise ToolFailure(ErrorCode.INVALID_PARAM, f"{tool.name}: {fault}. Allowed arguments: {allowed or 'none'}.")


def _properties(tool: AnyTool) -> dict[str, Schema]:
    properties: dict[str, Schema] = parameters_schema(tool.parameters).get("properties", {})
    return properties


def _argument(name: str, entry: Schema, tool: AnyTool) -> str:
    required = name in parameters_schema(tool.parameters).get("required", [])
    return f"{name} ({type_words(entry)}{', required' if required else ''})"


def type_words(entry: Schema) -> str:
    """Return an argument's type in a few words: `integer ≥ 1`, `"a" | "b"`, `array of string or null`."""
    if "enum" in entry:
        return " | ".join(json.dumps(value) for value in entry["enum"])
    if "const" in entry:
        return json.dumps(entry["const"])
    choices = [*entry.get("anyOf", ()), *entry.get("oneOf", ())]
    if choices:
        return " or ".join(type_words(choice) for choice in choices)
    if entry.get("type") == "array":
        return f"array of {type_words(entry.get('items', {}))}"
    bounds = [f"{sign} {entry[key]}" for key, sign in BOUNDS.items() if key in entry]
    return " ".join([str(entry.get("type", "any")), *bounds])


def _fault(error: Any) -> str:
    where = ".".join(str(part) for part in error["loc"]) or "arguments"
    match error["type"]:
        case "extra_forbidden":
            return f"unknown argument {where!r}"
        case "missing":
            return f"required argument {where!r} is missing"
        case "value_error":
            return str(error["msg"]).removeprefix("Value error, ")
        case _:
            got = json.dumps(shorten_value(error["input"], limit_chars=60), ensure_ascii=False)
            return f"{where}: {error['msg']} (got {got})"


def _kind(value: object) -> str:
    match value:
        case None:
            return "null"
        case list():
            return "an array"
        case str():
            return "a text"
        case _:
            return f"the value {value!r:.40}"


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON value")


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"{text:.20} is too large a number")
    return value
