"""Tools of MCP servers: their schema, their arguments, and what the policies say of them."""

from typing import Any

import pytest

from tools.base import ToolFailure
from tools.mcp import mcp_tool
from tools.permission import BOXED, GUARDED, Policy, Terms, decide
from tools.policy_file import PolicyFileError, read_policy
from tools.registry import LiveRegistry, Registry, builtin_registry
from tools.schema import function_schema, parse_arguments
from tools.strict import strict_function_schema
from tools.verdict import Decision

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"shelf": {"$ref": "#/$defs/Shelf"}, "least": {"type": "integer", "default": 0}},
    "required": ["shelf"],
    "$defs": {"Shelf": {"type": "object", "properties": {"name": {"type": "string"}}}},
    "additionalProperties": True,
}


def schema_of(parameters: dict[str, Any]) -> dict[str, Any]:
    shown: dict[str, Any] = function_schema(mcp_tool("s__t", "Does.", parameters))["function"]["parameters"]
    return shown


def test_the_servers_schema_is_shown_without_references() -> None:
    shown = schema_of(SCHEMA)
    assert shown["properties"]["shelf"]["properties"] == {"name": {"type": "string"}}
    assert shown["required"] == ["shelf"]
    assert "$ref" not in str(shown)


@pytest.mark.parametrize(
    "odd",
    [
        {"properties": {"a": {"$ref": "#/$defs/Gone"}}},
        {"properties": {"a": {"$ref": "#/$defs/A"}}, "$defs": {"A": {"properties": {"a": {"$ref": "#/$defs/A"}}}}},
        {"properties": ["a"]},
        {"properties": {"a": True}},
    ],
)
def test_a_schema_that_cannot_be_shown_becomes_that_of_any_object(odd: dict[str, Any]) -> None:
    assert schema_of(odd) == {"type": "object"}


def test_arguments_are_any_object_and_travel_as_they_are() -> None:
    tool = mcp_tool("s__t", "Does.", SCHEMA)
    arguments = {"shelf": {"name": "a"}, "unknown": [1, None], "least": 1}
    parsed = parse_arguments(tool, arguments)
    assert parsed.model_dump(mode="json", exclude_unset=True) == arguments
    for wrong in ("[1]", "no", '{"a": NaN}'):
        with pytest.raises(ToolFailure):
            parse_arguments(tool, wrong)
    assert strict_function_schema(tool)["function"]["parameters"]


def verdict(terms: Terms, **kind: bool) -> Decision:
    return decide("s__t", {}, terms, Registry([mcp_tool("s__t", "Does.", {}, **kind)])).decision


def test_what_acts_outside_is_asked_about_under_both_policies() -> None:
    read_only = Terms(Policy.BOXED, is_read_only=True)
    assert (verdict(GUARDED), verdict(BOXED), verdict(read_only)) == (Decision.ASK, Decision.ALLOW, Decision.DENY)
    outside = [verdict(terms, is_outside=True) for terms in (GUARDED, BOXED, read_only)]
    assert outside == [Decision.ASK, Decision.ASK, Decision.DENY]
    reads = [verdict(terms, is_outside=True, reads=True) for terms in (GUARDED, BOXED, read_only)]
    assert reads == [Decision.ALLOW] * 3


def test_a_rule_stands_for_all_tools_of_a_server() -> None:
    rules = [
        f"[[rule]]\ntool = '{tool}'\ndecision = '{how}'" for tool, how in (("s__danger", "deny"), ("s__*", "allow"))
    ]
    terms = Terms(Policy.BOXED, read_policy("\n".join(["otherwise = 'policy'", *rules]), builtin_registry()))
    known = Registry([mcp_tool(name, "Does.", {}, is_outside=True) for name in ("s__t", "s__danger", "ss__t")])
    found = [decide(name, {}, terms, known).decision for name in ("s__t", "s__danger", "ss__t")]
    assert found == [Decision.ALLOW, Decision.DENY, Decision.ASK]
    with pytest.raises(PolicyFileError, match="no such tool"):
        read_policy("[[rule]]\ntool = 'Raed'\ndecision = 'allow'", builtin_registry())


def test_a_registry_takes_other_tools_and_keeps_its_own() -> None:
    registry = LiveRegistry(builtin_registry().tools())
    before = registry.names()
    registry.bring([mcp_tool("s__a", "A.", {}), mcp_tool("Read", "Not that one.", {})])
    assert registry.names() == sorted([*before, "s__a"])
    assert registry.get("Read") is not None
    assert registry.get("Read").description != "Not that one."  # type: ignore[union-attr]
    registry.bring([mcp_tool("s__b", "B.", {})])
    assert registry.names() == sorted([*before, "s__b"])
