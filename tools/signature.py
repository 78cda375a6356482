"""A plain function as a tool sees it: signature and docstring → **parameter model** and description.

Every parameter needs a type hint and words: the model chooses by both.
"""

import inspect
import typing
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

import docstring_parser
from pydantic import BaseModel, ConfigDict, Field, PydanticUserError, TypeAdapter, ValidationError, create_model
from pydantic.fields import FieldInfo

from tools.base import Parameters
from tools.context import ToolContext


class ToolMisdeclared(Exception):
    """A function cannot be a tool as it is written; the message says what to change."""


class FunctionParameters(Parameters):
    """Base of the parameter models that are made from functions."""

    model_config = ConfigDict(serialize_by_alias=True)


@dataclass(frozen=True)
class Signature:
    """What a function's text tells."""

    description: str
    """First paragraph of the docstring in one line; "" when there is none."""
    parameters: type[BaseModel]
    fields: dict[str, str]
    """Field of the model → parameter of the function."""
    context: str | None
    """The parameter that takes the ToolContext; None when there is none."""


def read_signature(function: Callable[..., object], name: str) -> Signature:
    """Return what a function's signature, hints and Google-style docstring say.

    Raises:
        ToolMisdeclared: a parameter has no hint or no words, a default does not fit, or the kind of parameter has no
            place in a JSON object.
    """
    documented = docstring_parser.parse(inspect.getdoc(function) or "", docstring_parser.DocstringStyle.GOOGLE)
    words = {entry.arg_name: " ".join((entry.description or "").split()) for entry in documented.params}
    hints = _hints(function, name)
    fields: dict[str, Any] = {}
    names: dict[str, str] = {}
    context = None
    for parameter in inspect.signature(function).parameters.values():
        hint = _hint(parameter, hints, name)
        if hint is ToolContext:
            context = parameter.name
            continue
        field = _field_name(parameter.name)
        fields[field] = (hint, _field(parameter, hint, words.get(parameter.name, ""), name))
        names[field] = parameter.name
    return Signature(
        description=_first_paragraph(documented),
        parameters=_model(name, fields),
        fields=names,
        context=context,
    )


def _first_paragraph(documented: docstring_parser.Docstring) -> str:
    first = documented.short_description or ""
    if not documented.blank_after_short_description:
        first += " " + (documented.long_description or "").split("\n\n", 1)[0]
    return " ".join(first.split())


def _hints(function: Callable[..., object], name: str) -> dict[str, Any]:
    target = function if inspect.isroutine(function) else type(function).__call__
    try:
        return typing.get_type_hints(target, include_extras=True)
    except (NameError, TypeError) as exc:
        raise ToolMisdeclared(f"tool {name}: a type hint cannot be resolved: {exc}") from exc


def _hint(parameter: inspect.Parameter, hints: dict[str, Any], name: str) -> Any:
    if parameter.kind not in {inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY}:
        raise ToolMisdeclared(f"tool {name}: {parameter} cannot be filled from a JSON object; name every parameter")
    if parameter.name not in hints:
        raise ToolMisdeclared(f"tool {name}: parameter {parameter.name!r} has no type hint")
    return hints[parameter.name]


def _field_name(parameter: str) -> str:
    """Return a name that no attribute of a pydantic model has."""
    taken = hasattr(Parameters, parameter) or parameter.startswith(("_", "model_"))
    return f"arg{parameter.strip('_')}_" if taken else parameter


def _field(parameter: inspect.Parameter, hint: Any, words: str, name: str) -> FieldInfo:
    words = words or _annotated_words(hint)
    if not words:
        raise ToolMisdeclared(
            f"tool {name}: parameter {parameter.name!r} has no description: add it under Args: in the docstring"
        )
    alias = parameter.name if _field_name(parameter.name) != parameter.name else None
    if parameter.default is inspect.Parameter.empty:
        required: FieldInfo = Field(description=words, alias=alias)
        return required
    try:
        TypeAdapter(hint).validate_python(parameter.default)
    except ValidationError as exc:
        why = exc.errors()[0]["msg"]
        raise ToolMisdeclared(f"tool {name}: the default of {parameter.name!r} does not fit: {why}") from exc
    except PydanticUserError as exc:
        raise ToolMisdeclared(f"tool {name}: parameter {parameter.name!r}: {exc.message}") from exc
    optional: FieldInfo = Field(default=parameter.default, description=words, alias=alias)
    return optional


def _annotated_words(hint: Any) -> str:
    """Return the description of `Annotated[int, "words"]` or `Annotated[int, Field(description="words")]`."""
    if typing.get_origin(hint) is not Annotated:
        return ""
    for extra in hint.__metadata__:
        if isinstance(extra, str):
            return extra
        if isinstance(extra, FieldInfo) and extra.description:
            return extra.description
    return ""


def _model(name: str, fields: dict[str, Any]) -> type[BaseModel]:
    try:
        model: type[BaseModel] = create_model(f"{name}Parameters", __base__=FunctionParameters, **fields)
    except (PydanticUserError, TypeError) as exc:
        raise ToolMisdeclared(f"tool {name}: {exc}") from exc
    return model
