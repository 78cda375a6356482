"""From a model's reply to calls that can run: model → **plan** → partition.

Every call of the reply gets a place here, also one that cannot run: that one carries its answer already.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, JsonValue

from coordinator.endpoint.reply import RawCall
from tools.base import ErrorCode, Tool, ToolFailure
from tools.registry import Registry
from tools.schema import parse_arguments

SUMMARY_CHARS = 120
REFUSAL_CHARS = 4_000
"""A refusal quotes names and values, which a model may make as long as it likes."""


@dataclass(frozen=True)
class PlannedCall:
    """One call of a reply, parsed and validated, or refused."""

    index: int
    """Place in the reply, from 0."""
    call_id: str
    name: str
    """The tool's name as the model wrote it."""
    summary: str
    """The arguments in one short line, for people."""
    tool: Tool[BaseModel] | None = None
    parameters: BaseModel | None = None
    """The parsed arguments; None where `refusal` is set."""
    refusal: ToolFailure | None = None
    """Why nothing runs for this call."""

    @property
    def is_concurrency_safe(self) -> bool:
        """Whether this call may run beside its neighbours; a refused call says no."""
        if self.tool is None or self.parameters is None:
            return False
        return self.tool.is_concurrency_safe(self.parameters)

    @property
    def stays_here(self) -> bool:
        """Whether this call runs in the coordinator, not on a node."""
        return self.tool is not None and self.tool.runs_on == "coordinator"

    @property
    def arguments(self) -> dict[str, JsonValue]:
        """The arguments as they travel: only what the model gave."""
        return self.parameters.model_dump(mode="json", exclude_unset=True) if self.parameters else {}

    @property
    def timeout_s(self) -> float:
        """The tool's own limit for this call."""
        return self.tool.timeout_s(self.parameters) if self.tool and self.parameters else 0.0


def plan(
    calls: Sequence[RawCall], ids: Sequence[str], registry: Registry, *, strict: bool = False
) -> tuple[PlannedCall, ...]:
    """Return one planned call for each raw one, in the model's order, under its settled id.

    Args:
        calls: The reply's calls.
        ids: Their ids.
        registry: The session's tools.
        strict: The model was given the strict rendering of their schemas.
    """
    return tuple(_planned(call, call_id, registry, strict) for call, call_id in zip(calls, ids, strict=True))


def _planned(call: RawCall, call_id: str, registry: Registry, strict: bool) -> PlannedCall:
    tool = registry.get(call.name)
    summary = summarise(call.arguments)
    if tool is None:
        known = ", ".join(registry.names())
        named = repr(call.name[:SUMMARY_CHARS]) + ("…" if len(call.name) > SUMMARY_CHARS else "")
        refusal = ToolFailure(ErrorCode.UNKNOWN_TOOL, f"There is no tool {named}. Known tools: {known}.")
        return PlannedCall(call.index, call_id, call.name, summary, refusal=refusal)
    try:
        parameters = parse_arguments(tool, call.arguments, strict=strict)
        _answers(tool, parameters)
    except ToolFailure as fault:
        return PlannedCall(call.index, call_id, call.name, summary, tool, refusal=_bounded(fault))
    return PlannedCall(call.index, call_id, call.name, summary, tool, parameters)


def _answers(tool: Tool[BaseModel], parameters: BaseModel) -> None:
    """Ask the tool what is asked again later: one of a user's may raise, and must not end the session then.

    Raises:
        ToolFailure: INTERNAL_ERROR; it raised.
    """
    try:
        tool.is_concurrency_safe(parameters)
        tool.timeout_s(parameters)
    except Exception as exc:
        words = f"{tool.name} cannot be called: it raised {type(exc).__name__} when asked about its arguments."
        raise ToolFailure(ErrorCode.INTERNAL_ERROR, words) from exc


def _bounded(fault: ToolFailure) -> ToolFailure:
    """Return the fault without most of what the model wrote, where it quotes too much of that."""
    words = fault.message
    if len(words) <= REFUSAL_CHARS:
        return fault
    head, tail = words[: REFUSAL_CHARS // 2], words[-REFUSAL_CHARS // 2 :]
    return ToolFailure(fault.code, f"{head} […] {tail}")


def summarise(arguments: str | Mapping[str, Any] | None) -> str:
    """Return arguments in one line of at most 120 characters: the first string value, else the JSON."""
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            return _one_line(str(arguments))
    if not isinstance(arguments, Mapping):
        return _one_line("" if arguments is None else str(arguments))
    strings = [str(value) for value in arguments.values() if isinstance(value, str)]
    return _one_line(strings[0] if strings else json.dumps(dict(arguments), ensure_ascii=False))


def _one_line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= SUMMARY_CHARS else line[: SUMMARY_CHARS - 1] + "…"
