"""Tools of MCP servers: a server's own schema → **McpTool**; the node carries its calls to the server."""

import copy
import json
from collections.abc import Mapping
from typing import Any, ClassVar, NoReturn

from pydantic import JsonValue, PydanticUserError, RootModel

from tools.base import RunContext, Tool
from tools.schema import parameters_schema

ANY_OBJECT: dict[str, JsonValue] = {"type": "object"}


class McpArguments(RootModel[dict[str, JsonValue]]):
    """Arguments of an MCP tool: any object. The server holds them against its schema."""

    schema_text: ClassVar[str] = json.dumps(ANY_OBJECT)

    @classmethod
    def model_json_schema(cls, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Return the server's schema."""
        schema: dict[str, Any] = json.loads(cls.schema_text)
        return schema


class McpTool(Tool[McpArguments]):
    """One tool of a server."""

    is_outside: ClassVar[bool] = False
    """It acts outside of the box."""
    limit_s: ClassVar[float] = 60.0

    def is_concurrency_safe(self, arguments: McpArguments) -> bool:
        """Whether a trusted server said that it only reads."""
        return self.effect == "reads"

    def timeout_s(self, arguments: McpArguments) -> float:
        """Return the server's limit."""
        return self.limit_s

    def run(self, arguments: McpArguments, context: RunContext) -> NoReturn:
        """Raise: a node asks the server."""
        raise TypeError(f"{self.name} is run by its server")


def mcp_tool(
    name: str,
    description: str,
    parameters: Mapping[str, JsonValue],
    *,
    reads: bool = False,
    is_outside: bool = False,
    timeout_s: float = 60.0,
) -> McpTool:
    """Return a tool as a session's registry takes it; a schema that cannot be shown becomes that of any object."""
    members = {
        "__doc__": description,
        "name": name,
        "description": description,
        "parameters": _arguments(parameters),
        "effect": "reads" if reads else "acts_outside" if is_outside else "changes",
        "is_outside": is_outside,
        "limit_s": timeout_s,
    }
    kind: type[McpTool] = type("McpTool", (McpTool,), members)
    return kind()


def _arguments(parameters: Mapping[str, JsonValue]) -> type[McpArguments]:
    schema: dict[str, Any] = {**copy.deepcopy(dict(parameters)), "type": "object"}
    # What is not said may be given: the server alone knows.
    schema.setdefault("additionalProperties", True)
    for candidate in (schema, ANY_OBJECT):
        made: type[McpArguments] = type("McpArguments", (McpArguments,), {"schema_text": json.dumps(candidate)})
        try:
            parameters_schema(made)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError, PydanticUserError):
            continue
        return made
    raise AssertionError("any object has a schema")
