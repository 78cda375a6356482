"""Settings one by one, for people: what each is for, what it is, and where that comes from. No row tells a secret."""

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, JsonValue, SecretStr, TypeAdapter
from pydantic_core import PydanticUndefined

from worker.contract.settings_file import (
    MASK,
    FileSettings,
    file_values,
    is_hidden,
    is_set,
    section_of,
    variable_of,
    without_password,
)

Origin = Literal["default", "file", "environment"]
_KINDS = {"integer": "whole number", "number": "number", "boolean": "true or false", "string": "text", "array": "list"}
_BOUNDS = {"minimum": "at least", "exclusiveMinimum": "above", "maximum": "at most", "exclusiveMaximum": "below"}


class SettingRow(BaseModel):
    """One setting."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    section: str
    key: str
    variable: str
    kind: str
    """What a value must be, in words."""
    about: str
    default: JsonValue
    """None where there is none."""
    value: JsonValue
    """What holds now, its secrets masked."""
    origin: Origin


ROWS = TypeAdapter(list[SettingRow])


def rows_of(model: type[FileSettings], found: FileSettings | None, environment: Mapping[str, str]) -> list[SettingRow]:
    """Return a row for each setting that people set, in the class's order; without `found` with its default.

    Raises:
        SettingsWrong: the settings file cannot be read.
    """
    properties = model.model_json_schema(mode="serialization")["properties"]
    in_file = file_values(model, environment) if found is not None else {}
    rows = []
    for name, field in model.model_fields.items():
        section = section_of(model, field)
        if section is None:
            continue
        # What a factory gives is of this machine and belongs into no document.
        default = None if field.default is PydanticUndefined else field.default
        origin: Origin = "default"
        if found is not None and is_set(name, environment):
            origin = "environment"
        elif name in in_file:
            origin = "file"
        rows.append(
            SettingRow(
                section=section,
                key=name,
                variable=variable_of(name),
                kind=_kind(properties[name]),
                about=" ".join((field.description or "").split()),
                default=_masked(default, is_secret=False),
                value=_masked(default if found is None else _value(found, name), is_secret=is_hidden(field)),
                origin=origin,
            )
        )
    return rows


def _value(found: FileSettings, name: str) -> Any:
    return found.__dict__[name]


def _masked(value: Any, *, is_secret: bool) -> JsonValue:
    if isinstance(value, SecretStr):
        return MASK
    shown: JsonValue = TypeAdapter(Any).dump_python(value, mode="json", exclude_none=True)
    if isinstance(shown, str):
        return without_password(shown)
    return _without_words(shown) if is_secret else shown


def _without_words(value: JsonValue) -> JsonValue:
    if isinstance(value, dict):
        return {name: _without_words(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_without_words(inner) for inner in value]
    return MASK if isinstance(value, str) else value


def _kind(schema: Mapping[str, Any]) -> str:
    for choice in schema.get("anyOf", ()):
        if choice.get("type") != "null":
            schema = {**choice, **{name: value for name, value in schema.items() if name != "anyOf"}}
            break
    if schema.get("format") == "path":
        return "path"
    word = _KINDS.get(str(schema.get("type")), "table")
    bounds = [f"{words} {schema[name]:g}" for name, words in _BOUNDS.items() if name in schema]
    return f"{word}, {' and '.join(bounds)}" if bounds else word
