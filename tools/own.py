"""Your own tools: `@tool` on a function, or `bare` around a callable; a Tool class of yours needs neither.

    @tool(effect="reads")
    def weather(city: str, unit: Literal["C", "F"] = "C") -> str:
        \"\"\"Tell the weather of a city.

        Args:
            city: Its name in English.
            unit: Unit of the temperature.
        \"\"\"

A function tool runs in a child process of the node, one for every call, and may be `async`.
"""

import asyncio
import dataclasses
import inspect
import json
import logging
import re
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, overload

from pydantic import BaseModel, PydanticUserError

from tools.base import ErrorCode, Parameters, RunContext, Tool, ToolFailure, ToolResult
from tools.context import ToolContext
from tools.schema import parameters_schema
from tools.signature import Signature, ToolMisdeclared, read_signature

log = logging.getLogger(__name__)

NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
"""What endpoints take as a function's name."""
MAX_TIMEOUT_S = 600.0
USUAL_FAULTS = frozenset(code for code in ErrorCode if code.counts_as_fault)

Safety = bool | Callable[[Any], bool]


@dataclass(frozen=True)
class Rules:
    """What is declared of a function tool beside its name and parameters."""

    runs_on: Literal["box", "worker"] = "worker"
    effect: Literal["reads", "changes"] = "changes"
    concurrency_safe: Safety = False
    timeout_s: float = 60.0
    secrets: tuple[str, ...] = ()
    mistakes: tuple[type[Exception], ...] = ()
    faults: frozenset[ErrorCode] = USUAL_FAULTS


class FunctionTool(Tool[BaseModel]):
    """A tool made from a function; still callable as that function."""

    function: ClassVar[Callable[..., Any]]
    signature: ClassVar[Signature]
    rules: ClassVar[Rules]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return what the function returns."""
        return type(self).function(*args, **kwargs)

    @property
    def has_own_process(self) -> bool:
        """A function of yours never runs inside the node."""
        return True

    def counts_as_fault(self, code: ErrorCode) -> bool:
        """Whether it was declared to."""
        return code in self.rules.faults

    def is_concurrency_safe(self, arguments: BaseModel) -> bool:
        """Return what was declared; a declared function that raises means no."""
        safe = self.rules.concurrency_safe
        if not callable(safe):
            return safe
        try:
            return safe(arguments) is True
        except Exception:
            log.exception("concurrency_safe raised", extra={"tool": self.name})
            return False

    def timeout_s(self, arguments: BaseModel) -> float:
        """Return the declared limit."""
        return self.rules.timeout_s

    def run(self, arguments: BaseModel, context: RunContext) -> ToolResult:
        """Raise: a node gives a function a process of its own and calls `invoke` there."""
        raise TypeError(f"{self.name} runs in a process of its own")

    def invoke(self, arguments: BaseModel, context: ToolContext) -> ToolResult:
        """Return the result of the function, awaited if it is async.

        Raises:
            ToolFailure: it failed as its author foresaw, or returned what is no result.
            Exception: whatever else the function raised.
        """
        given = {name: getattr(arguments, field) for field, name in self.signature.fields.items()}
        if self.signature.context is not None:
            given[self.signature.context] = context
        try:
            value = type(self).function(**given)
            if inspect.isawaitable(value):
                value = asyncio.run(_awaited(value))
        except self.rules.mistakes as exc:
            raise ToolFailure(ErrorCode.INVALID_PARAM, f"{self.name}: {exc or type(exc).__name__}") from exc
        return as_result(value, self.name)


async def _awaited(value: Any) -> Any:
    return await value


def as_result(value: object, name: str) -> ToolResult:
    """Return what a function returned as a result: text as it is, anything else as compact JSON.

    Raises:
        ToolFailure: INTERNAL_ERROR; JSON cannot hold it.
    """
    match value:
        case ToolResult():
            return value
        case None:
            return ToolResult(status="success", text="(done; there is no output)")
        case str():
            text = value
        case _:
            text = _json(value, name)
    try:
        text.encode()
    except UnicodeEncodeError as exc:
        raise ToolFailure(ErrorCode.INTERNAL_ERROR, f"{name} returned text that is not Unicode: {exc}") from exc
    return ToolResult(status="success", text=text or "(an empty text)")


def _json(value: object, name: str) -> str:
    if isinstance(value, BaseModel):
        return value.model_dump_json()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = dataclasses.asdict(value)
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError) as exc:
        words = f"{name} returned {type(value).__name__}, which JSON cannot hold: {exc}"
        raise ToolFailure(ErrorCode.INTERNAL_ERROR, words) from exc


@overload
def tool(function: Callable[..., Any], /) -> FunctionTool: ...
@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    runs_on: Literal["box", "worker"] = "worker",
    effect: Literal["reads", "changes"] = "changes",
    concurrency_safe: Safety = False,
    timeout_s: float = 60.0,
    secrets: Collection[str] = (),
    mistakes: Collection[type[Exception]] = (),
    faults: Collection[ErrorCode] = USUAL_FAULTS,
) -> Callable[[Callable[..., Any]], FunctionTool]: ...
def tool(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    runs_on: Literal["box", "worker"] = "worker",
    effect: Literal["reads", "changes"] = "changes",
    concurrency_safe: Safety = False,
    timeout_s: float = 60.0,
    secrets: Collection[str] = (),
    mistakes: Collection[type[Exception]] = (),
    faults: Collection[ErrorCode] = USUAL_FAULTS,
) -> FunctionTool | Callable[[Callable[..., Any]], FunctionTool]:
    """Make a tool of a function, from its name, docstring, type hints and defaults.

    Args:
        function: The function; sync or async. A parameter annotated `ToolContext` is filled in, not asked for.
        name: Another name than the function's.
        description: Other words than the docstring's first.
        runs_on: `worker`: on the node, with its network and the declared secrets, without the box. `box`: the same
            process, whose `ToolContext.box` runs commands in the session's box, and without secrets.
        effect: `reads` lets the guarded policy run it without asking.
        concurrency_safe: Whether calls may run beside their neighbours: yes, no, or a function of the arguments.
        timeout_s: The longest a call may take, at most 600 s; then its processes are killed.
        secrets: Names of the principal's secrets that the function needs.
        mistakes: Exceptions that tell the model what it did wrong (INVALID_PARAM). Any other one is a fault of the
            tool (INTERNAL_ERROR).
        faults: Error codes that the circuit breaker counts.

    Raises:
        ToolMisdeclared: it cannot be a tool; the message says what to change.
    """
    rules = Rules(runs_on, effect, concurrency_safe, timeout_s, tuple(secrets), tuple(mistakes), frozenset(faults))

    def make(function: Callable[..., Any]) -> FunctionTool:
        own = name or str(getattr(function, "__name__", type(function).__name__))
        return _made(own, description, function, read_signature(function, own), rules)

    return make if function is None else make(function)


class BareParameters(Parameters):
    """Arguments of a bare callable."""

    input: str
    """The input, as text."""


def bare(
    function: Callable[[str], Any],
    *,
    name: str,
    description: str,
    runs_on: Literal["box", "worker"] = "worker",
    effect: Literal["reads", "changes"] = "changes",
    timeout_s: float = 60.0,
) -> FunctionTool:
    """Make a tool of any callable that takes one text: its only argument is a required string `input`.

    Raises:
        ToolMisdeclared: name or description cannot be used.
    """
    rules = Rules(runs_on=runs_on, effect=effect, timeout_s=timeout_s)

    def call(input: str) -> Any:
        return function(input)

    return _made(name, description, call, Signature("", BareParameters, {"input": "input"}, None), rules)


def _made(
    name: str, description: str | None, function: Callable[..., Any], signature: Signature, rules: Rules
) -> FunctionTool:
    words = description or signature.description
    if not NAME.fullmatch(name):
        raise ToolMisdeclared(f"tool {name!r}: a name is 1 to 64 letters, digits, _ and -")
    if not words:
        raise ToolMisdeclared(f"tool {name}: it has no description: give the function a docstring")
    if not 0 < rules.timeout_s <= MAX_TIMEOUT_S:
        raise ToolMisdeclared(f"tool {name}: timeout_s must be above 0 and at most {MAX_TIMEOUT_S:.0f}")
    if rules.runs_on == "box" and rules.secrets:
        raise ToolMisdeclared(f"tool {name}: a tool that runs on the box gets no secrets; use runs_on='worker'")
    try:
        parameters_schema(signature.parameters)
    except (PydanticUserError, ValueError) as exc:
        raise ToolMisdeclared(f"tool {name}: its arguments have no JSON schema: {exc}") from exc
    members = {
        "__doc__": words,
        "__module__": getattr(function, "__module__", __name__),
        "name": name,
        "description": words,
        "parameters": signature.parameters,
        "runs_on": rules.runs_on,
        "effect": rules.effect,
        "secrets": rules.secrets,
        "function": staticmethod(function),
        "signature": signature,
        "rules": rules,
    }
    kind: type[FunctionTool] = type(name, (FunctionTool,), members)
    return kind()
