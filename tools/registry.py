"""Registry: the tools of a session by name, and how the model sees them."""

from collections.abc import Collection, Iterable
from typing import Any

from tools.base import AnyTool
from tools.bash import Bash
from tools.bash_output import BashOutput
from tools.edit import Edit
from tools.glob import Glob
from tools.grep import Grep
from tools.kill_bash import KillBash
from tools.read import Read
from tools.schema import function_schema
from tools.strict import strict_function_schema
from tools.task import Task
from tools.todo_write import TodoWrite
from tools.write import Write


class Registry:
    """An unchanging set of tools with distinct names."""

    def __init__(self, tools: Iterable[AnyTool]) -> None:
        self._tools: dict[str, AnyTool] = {}
        for tool in tools:
            if tool.name in self._tools:
                raise ValueError(f"two tools are called {tool.name}")
            self._tools[tool.name] = tool

    def get(self, name: str) -> AnyTool | None:
        """Return the tool of that name, None if there is none."""
        return self._tools.get(name)

    def names(self) -> list[str]:
        """Return all names, sorted."""
        return sorted(self._tools)

    def tools(self) -> list[AnyTool]:
        """Return all tools, sorted by name."""
        return [self._tools[name] for name in self.names()]

    def function_schemas(self, hidden: Collection[str] = frozenset(), *, strict: bool = False) -> list[dict[str, Any]]:
        """Return the `tools` list of a model request without the hidden ones: sorted by name, the same every time.

        Args:
            hidden: Names to leave out.
            strict: Render each schema as endpoints want it that decode by it, see `tools.strict`.
        """
        rendered = strict_function_schema if strict else function_schema
        return [rendered(tool) for tool in self.tools() if tool.name not in hidden]


class LiveRegistry(Registry):
    """A registry whose MCP tools change while a session runs; all others stay."""

    def __init__(self, tools: Iterable[AnyTool]) -> None:
        super().__init__(tools)
        self._lasting = dict(self._tools)

    def bring(self, tools: Iterable[AnyTool]) -> None:
        """Put these in place of those that were brought before; one whose name is taken is left out."""
        brought = {tool.name: tool for tool in tools if tool.name not in self._lasting}
        self._tools = {**self._lasting, **brought}


def builtin_registry() -> Registry:
    """Return the tools that every session has."""
    return Registry([Bash(), BashOutput(), Edit(), Glob(), Grep(), KillBash(), Read(), Task(), TodoWrite(), Write()])
