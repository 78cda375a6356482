"""Tools made from functions: what the model is told, what they take, and what cannot be one."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Optional

import pytest
from pydantic import BaseModel, Field, field_validator
from typing_extensions import TypedDict

from tools.base import AnyTool, ErrorCode, ToolFailure, ToolResult
from tools.context import BoxRun, ToolContext
from tools.own import FunctionTool, bare, tool
from tools.permission import GUARDED, decide
from tools.registry import Registry
from tools.schema import function_schema, parse_arguments
from tools.signature import ToolMisdeclared
from tools.strict import strict_function_schema
from tools.verdict import Decision


class NoBox:
    """A box that nothing is asked of."""

    def run(self, command: Any, *, timeout_s: float = 30.0) -> BoxRun:
        raise AssertionError("not asked")


CONTEXT = ToolContext("alice", "s1", "s1:1:1:0:1", NoBox())


class Point(BaseModel):
    """A place on a map."""

    x: int = Field(ge=0)
    """To the right."""
    label: Optional[str] = None  # noqa: UP045  # users write both


@dataclass
class Span:
    """From and to."""

    start: int
    end: int = 9


class Extra(TypedDict, total=False):
    """What may be there."""

    note: str


def everything(
    text: str,
    unit: Literal["C", "F"] = "C",
    maybe: Optional[int] = None,  # noqa: UP045
    names: list[str] = ["a"],  # noqa: B006  # pydantic copies it
    point: Point | None = None,
    spans: list[Span] | None = None,
    number: Annotated[float, Field(ge=0, lt=10)] = 1.5,
    counts: dict[str, int] | None = None,
    extra: Extra | None = None,
    schema: Annotated[bool, "Whether to."] = False,
    *,
    context: ToolContext,
) -> dict[str, object]:
    """Take one of everything,
    over two lines.

    More words, for people.

    Args:
        text: What to say,
            in words.
        unit: Of the temperature.
        maybe: A number or none.
        names: Who.
        point: Where.
        spans: When.
        number: How much.
        counts: How many of each.
        extra: What else.
        context: Not for the model.
    """
    return {"text": text, "point": point and point.x, "spans": spans and [span.end for span in spans], "schema": schema}


def invoke(made: FunctionTool, arguments: dict[str, Any]) -> ToolResult:
    return made.invoke(parse_arguments(made, arguments), CONTEXT)


def test_name_words_types_and_defaults_become_the_schema() -> None:
    function = function_schema(tool(everything))["function"]
    parameters = function["parameters"]
    properties = parameters["properties"]

    assert function["name"] == "everything"
    assert function["description"] == "Take one of everything, over two lines."
    assert parameters["required"] == ["text"]
    assert parameters["additionalProperties"] is False
    assert "context" not in properties
    assert properties["text"] == {"description": "What to say, in words.", "type": "string"}
    assert properties["unit"] == {
        "default": "C",
        "description": "Of the temperature.",
        "enum": ["C", "F"],
        "type": "string",
    }
    assert properties["maybe"]["anyOf"] == [{"type": "integer"}, {"type": "null"}]
    assert properties["names"]["items"] == {"type": "string"}
    assert properties["number"]["minimum"] == 0
    assert properties["number"]["exclusiveMaximum"] == 10
    assert properties["schema"] == {"default": False, "description": "Whether to.", "type": "boolean"}
    assert properties["point"]["anyOf"][0]["additionalProperties"] is False
    assert properties["spans"]["anyOf"][0]["items"]["additionalProperties"] is False
    assert properties["counts"]["anyOf"][0]["additionalProperties"] == {"type": "integer"}


def test_the_function_gets_objects_and_its_context() -> None:
    arguments = {"text": "x", "point": {"x": 3}, "spans": [{"start": 1}], "schema": True}
    assert invoke(tool(everything), arguments).text == '{"text":"x","point":3,"spans":[9],"schema":true}'


def test_arguments_travel_under_their_own_names() -> None:
    parsed = parse_arguments(tool(everything), {"text": "x", "schema": True, "extra": {"note": "n"}})
    assert parsed.model_dump(mode="json", exclude_unset=True) == {"text": "x", "schema": True, "extra": {"note": "n"}}


@pytest.mark.parametrize(
    "arguments",
    [
        {"text": 1},
        {"text": "x", "unit": "K"},
        {"text": "x", "maybe": "1"},
        {"text": "x", "maybe": True},
        {"text": "x", "names": ["a", 1]},
        {"text": "x", "point": {"x": -1}},
        {"text": "x", "point": {"x": 1, "z": 2}},
        {"text": "x", "spans": [{"start": 1, "z": 2}]},
        {"text": "x", "number": 10},
        {"text": "x", "counts": {"a": "1"}},
        {"text": "x", "extra": {"other": "n"}},
        {"text": "x", "context": {}},
        {"text": "x", "schema": 1},
    ],
)
def test_anything_else_is_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(ToolFailure) as caught:
        parse_arguments(tool(everything), arguments)
    assert caught.value.code is ErrorCode.INVALID_PARAM


def test_a_tool_stays_the_function_it_was_made_from() -> None:
    @tool(name="add-up", description="Add.", effect="reads", timeout_s=3, concurrency_safe=True)
    def add(a: Annotated[int, "One."], b: Annotated[int, "Two."] = 2) -> int:
        return a + b

    assert add(1, b=4) == 5
    assert (add.name, add.description, add.effect, add.runs_on) == ("add-up", "Add.", "reads", "worker")
    parsed = parse_arguments(add, {"a": 1})
    assert add.timeout_s(parsed) == 3
    assert add.is_concurrency_safe(parsed)
    assert add.has_own_process
    assert invoke(add, {"a": 1}).text == "3"


async def test_an_async_function_is_awaited_in_a_loop_of_its_own() -> None:
    @tool
    async def wait(a: Annotated[int, "One."]) -> int:
        """Wait."""
        return a

    assert await wait(3) == 3


def test_safety_may_depend_on_the_arguments_and_defaults_to_no() -> None:
    def safe(arguments: Any) -> bool:
        return bool(arguments.path.startswith("/tmp"))

    @tool(concurrency_safe=safe)
    def look(path: Annotated[str, "Where."]) -> str:
        """Look."""
        return path

    @tool(concurrency_safe=lambda arguments: arguments.nothing)
    def broken(path: Annotated[str, "Where."]) -> str:
        """Look."""
        return path

    assert look.is_concurrency_safe(parse_arguments(look, {"path": "/tmp/x"}))
    assert not look.is_concurrency_safe(parse_arguments(look, {"path": "/x"}))
    assert not broken.is_concurrency_safe(parse_arguments(broken, {"path": "/x"}))
    assert not tool(everything).is_concurrency_safe(parse_arguments(tool(everything), {"text": "x"}))


def test_a_bare_callable_takes_one_required_text() -> None:
    shout = bare(str.upper, name="shout", description="Answer in capitals.")

    assert function_schema(shout)["function"] == {
        "name": "shout",
        "description": "Answer in capitals.",
        "parameters": {
            "additionalProperties": False,
            "properties": {"input": {"description": "The input, as text.", "type": "string"}},
            "required": ["input"],
            "type": "object",
        },
    }
    assert invoke(shout, {"input": "x"}).text == "X"
    for bad in ({}, {"input": 1}, {"input": "x", "more": 1}):
        with pytest.raises(ToolFailure):
            parse_arguments(shout, bad)


def test_a_function_may_have_no_arguments_at_all() -> None:
    @tool
    def now() -> str:
        """Tell the time."""
        return "noon"

    assert function_schema(now)["function"]["parameters"]["properties"] == {}
    assert invoke(now, {}).text == "noon"


def _no_hint(a) -> str:  # type: ignore[no-untyped-def]
    """Do.

    Args:
        a: One.
    """
    return str(a)


def _no_words(a: int) -> str:
    """Do."""
    return str(a)


def _no_docstring(a: Annotated[int, "One."]) -> str:
    return str(a)


def _many(*rest: int) -> str:
    """Do.

    Args:
        rest: All.
    """
    return str(rest)


def _only_positional(a: Annotated[int, "One."], /) -> str:
    """Do."""
    return str(a)


def _bad_default(a: Annotated[int, "One."] = "x") -> str:  # type: ignore[assignment]
    """Do."""
    return str(a)


def _unknown_hint(a: "Nowhere") -> str:  # type: ignore[name-defined]  # noqa: F821
    """Do.

    Args:
        a: One.
    """
    return str(a)


class Chain(BaseModel):
    """A model that holds itself."""

    following: "Chain | None" = None


def _recursive(a: Annotated[Chain, "One."]) -> str:
    """Do."""
    return str(a)


def _no_schema(a: Annotated[Callable[[], int], "One."]) -> str:
    """Do."""
    return str(a)


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (_no_hint, "'a' has no type hint"),
        (_no_words, "'a' has no description"),
        (_no_docstring, "no description"),
        (_many, "name every parameter"),
        (_only_positional, "name every parameter"),
        (_bad_default, "default of 'a' does not fit"),
        (_unknown_hint, "cannot be resolved"),
        (_recursive, "Chain holds itself"),
        (_no_schema, "no JSON schema"),
    ],
)
def test_what_cannot_be_a_tool_says_what_to_change(function: Any, words: str) -> None:
    with pytest.raises(ToolMisdeclared, match=words):
        tool(function)


@pytest.mark.parametrize(
    ("declared", "words"),
    [
        ({"name": "a b"}, "letters"),
        ({"timeout_s": 0}, "timeout_s"),
        ({"timeout_s": 601}, "timeout_s"),
        ({"runs_on": "box", "secrets": ["A"]}, "no secrets"),
    ],
)
def test_what_cannot_be_declared_is_refused(declared: dict[str, Any], words: str) -> None:
    with pytest.raises(ToolMisdeclared, match=words):
        tool(**declared)(everything)


def test_faults_are_what_was_declared() -> None:
    usual, other = tool(everything), tool(faults=[ErrorCode.NOT_FOUND])(everything)

    assert usual.counts_as_fault(ErrorCode.TIMEOUT)
    assert not usual.counts_as_fault(ErrorCode.NOT_FOUND)
    assert other.counts_as_fault(ErrorCode.NOT_FOUND)
    assert not other.counts_as_fault(ErrorCode.TIMEOUT)


def test_the_guarded_policy_asks_for_a_tool_unless_it_only_reads() -> None:
    changing, reading = tool(everything), tool(effect="reads", name="look")(everything)
    known = Registry([changing, reading])

    assert decide("everything", {"text": "x"}, GUARDED, known).decision is Decision.ASK
    assert decide("look", {"text": "x"}, GUARDED, known).decision is Decision.ALLOW
    assert decide("look", {"text": "x"}, GUARDED).decision is Decision.DENY, "unknown without the registry"


class Picky(BaseModel):
    """A model whose validator breaks."""

    value: str

    @field_validator("value")
    @classmethod
    def _breaks(cls, value: str) -> str:
        raise KeyError(value)


def test_a_validator_that_breaks_is_one_typed_error() -> None:
    @tool
    def pick(picky: Annotated[Picky, "What."]) -> str:
        """Pick."""
        return picky.value

    with pytest.raises(ToolFailure) as caught:
        parse_arguments(pick, {"picky": {"value": "x"}})
    assert caught.value.code is ErrorCode.INTERNAL_ERROR


def test_the_strict_rendering_requires_everything_and_null_is_the_default() -> None:
    @tool
    def ask(
        a: Annotated[str, "One."],
        b: Annotated[Annotated[int, Field(ge=1)], "Two."] = 2,
        point: Annotated[Point | None, "Where."] = None,
    ) -> str:
        """Ask."""
        return f"{a} {b} {point}"

    function = strict_function_schema(ask)["function"]
    parameters = function["parameters"]
    assert function["strict"] is True
    assert parameters["required"] == ["a", "b", "point"]
    assert parameters["properties"]["b"] == {
        "anyOf": [{"minimum": 1, "type": "integer"}, {"type": "null"}],
        "description": "Two. Null means 2.",
    }
    assert parameters["properties"]["point"]["anyOf"][0]["required"] == ["x", "label"]
    parsed = parse_arguments(ask, {"a": "x", "b": None, "point": {"x": 1, "label": None}}, strict=True)
    assert ask.invoke(parsed, CONTEXT).text == "x 2 x=1 label=None"
    with pytest.raises(ToolFailure):
        parse_arguments(ask, {"a": None, "b": 1, "point": None}, strict=True)
    with pytest.raises(ToolFailure):
        parse_arguments(ask, {"a": "x", "b": None}, strict=False)


def test_what_has_no_strict_rendering_keeps_the_plain_one() -> None:
    made: AnyTool = tool(everything)
    assert strict_function_schema(made) == function_schema(made)
