"""The shapes of the room: arguments → **Tool.run** → ToolResult, or a ToolFailure that the caller turns into one.

A ToolResult is made once, never changed, and turned into the model's one JSON object by `to_answer` alone.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, ClassVar, Generic, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, JsonValue, model_validator

from sandbox.box import Box
from sandbox.requests import CallMark
from tools.cursors import Cursors
from tools.cutting import shorten_value
from tools.seen import SeenFiles
from tools.spilling import Spill

NOTES_BYTES = 2_000
"""Room that a tool leaves for its notes below a result's bound."""


class ErrorCode(StrEnum):
    """Why a call has no result. Closed: the model, the breaker and the transcript know no other."""

    NOT_FOUND = "NOT_FOUND"
    IS_DIRECTORY = "IS_DIRECTORY"
    NOT_REGULAR_FILE = "NOT_REGULAR_FILE"
    BINARY_FILE = "BINARY_FILE"
    ACCESS_DENIED = "ACCESS_DENIED"
    """The box's file system refused."""
    PERMISSION_DENIED = "PERMISSION_DENIED"
    """The session's policy or a human refused."""
    INVALID_PARAM = "INVALID_PARAM"
    UNKNOWN_TOOL = "UNKNOWN_TOOL"
    TIMEOUT = "TIMEOUT"
    CONFLICT = "CONFLICT"
    """The file is not the one that was read."""
    CIRCUIT_OPEN = "CIRCUIT_OPEN"
    EXECUTION_ERROR = "EXECUTION_ERROR"
    """The box could not carry the call out: disk full, no such shell, …"""
    BOX_LOST = "BOX_LOST"
    CANCELLED = "CANCELLED"
    OUTCOME_UNKNOWN = "OUTCOME_UNKNOWN"
    """The call may have run, whole or in part."""
    LIMIT_REACHED = "LIMIT_REACHED"
    """The session, its box or its principal is at a limit."""
    INTERNAL_ERROR = "INTERNAL_ERROR"

    @property
    def counts_as_fault(self) -> bool:
        """Whether the breaker counts it: what went wrong with us or the box, never the model's mistakes."""
        return self in {ErrorCode.TIMEOUT, ErrorCode.BOX_LOST, ErrorCode.INTERNAL_ERROR}


class ToolFailure(Exception):
    """The one exception a tool raises: a code, and words that tell the model what to do next."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message


_JSON = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, allow_nan=False)


class Stats(BaseModel):
    """What a call cost."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    time_ms: float = 0.0
    """From the tool's start to its end, in milliseconds."""
    bytes: int | None = None
    """Size of the whole output, shown or not; None where there is no such thing."""


class ToolResult(BaseModel):
    """What a call came to. Frozen; holds nothing that JSON cannot."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    status: Literal["success", "partial", "error"]
    """`partial`: done, but not all is shown or not all went well; `text` says which."""
    text: str
    """For the model; never empty on success: an empty result says so in words."""
    data: dict[str, JsonValue] = {}
    """The same facts for programs."""
    error_code: ErrorCode | None = None
    """Only on error."""
    error_message: str | None = None
    """Only on error: what was tried, what happened, what to do next."""
    stats: Stats = Stats()
    context: dict[str, JsonValue] = {}
    """Where it ran (`cwd`) and the arguments, shortened."""

    @model_validator(mode="after")
    def _is_sound(self) -> Self:
        is_error = self.status == "error"
        if is_error != (self.error_code is not None) or is_error != (self.error_message is not None):
            raise ValueError("error_code and error_message belong to status 'error', both of them")
        # Raises for NaN and lone surrogates, which the model's JSON must not hold.
        self.text.encode()
        if self.data or self.context:
            _JSON.encode([self.data, self.context]).encode()
        return self

    @classmethod
    def failure(
        cls, code: ErrorCode, message: str, *, text: str = "", data: Mapping[str, JsonValue] | None = None
    ) -> Self:
        """Return an error result; `text` and `data` hold what there was before it failed."""
        return cls(status="error", text=text, data=dict(data or {}), error_code=code, error_message=message)

    def timed(self, time_ms: float) -> Self:
        """Return this result with its duration."""
        stats = self.stats.model_copy(update={"time_ms": round(time_ms, 1)})
        return self.model_copy(update={"stats": stats})

    def with_text(self, text: str) -> Self:
        """Return this result with another text: cut, or with a note."""
        return self.model_copy(update={"text": text})

    def with_arguments(self, arguments: Mapping[str, JsonValue]) -> Self:
        """Return this result with its call's arguments, shortened, in `context`."""
        shortened: dict[str, JsonValue] = {name: shorten_value(value) for name, value in arguments.items()}
        return self.model_copy(update={"context": {**self.context, "arguments": shortened}})

    def to_answer(self) -> str:
        """Return the one compact JSON object that the model sees."""
        answer: dict[str, JsonValue] = {
            "status": self.status,
            "text": self.text,
            "data": self.data,
            "stats": {name: value for name, value in self.stats.model_dump().items() if value is not None},
            "context": self.context,
        }
        if self.error_code is not None:
            answer["error"] = {"code": self.error_code.value, "message": self.error_message}
        return _JSON.encode(answer)


@dataclass(frozen=True)
class RunContext:
    """All a tool may use beside its arguments."""

    box: Box
    """The session's box."""
    mark: CallMark
    """What makes this call itself to the guest: with `join` set nothing may be started, only fetched."""
    principal: str
    """Who the session acts for."""
    spill: Spill | None = None
    """Takes output while it streams; None keeps head and tail only."""
    attributes: Mapping[str, str] = field(default_factory=dict)
    """What else is known of the principal: tenant, groups, …"""
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    """The principal's secrets that the tool asked for by name; never in the box, empty for a tool that runs there."""
    seen: SeenFiles | None = None
    """What the session has seen of its files; None checks and keeps nothing."""
    cursors: Cursors | None = None
    """How far the session has read its background commands; None reads each from its beginning."""
    result_bytes: int = 50_000
    """How much text of the result the model is shown; what is longer is cut to head and tail afterwards."""

    @property
    def page_bytes(self) -> int:
        """How much text a tool shows that can end an answer where it says: notes still fit behind it."""
        return self.result_bytes - NOTES_BYTES


class Parameters(BaseModel):
    """Base of a tool's arguments: nothing unknown, nothing converted (`true` is no number), frozen."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, use_attribute_docstrings=True)


P = TypeVar("P", bound=BaseModel)


class Tool(ABC, Generic[P]):
    """One tool. Stateless: one object serves all sessions and threads at once."""

    name: ClassVar[str]
    description: ClassVar[str]
    """What the model chooses by."""
    parameters: ClassVar[type[BaseModel]]
    """Model of the arguments: `extra="forbid"`, strict, a docstring under each field."""
    runs_on: ClassVar[Literal["box", "worker", "coordinator"]] = "box"
    effect: ClassVar[Literal["reads", "changes", "runs_commands", "acts_outside"]] = "changes"
    """What a call can do at most; the policies decide by it. What acts outside of the box, no box bounds."""
    secrets: ClassVar[tuple[str, ...]] = ()
    """Names of the principal's secrets that it needs; only for a tool that runs in a process of its own."""

    is_bounded: ClassVar[bool] = False
    """A run ends by itself, whatever happens, since it waits for its box alone: each request to a box has its limit."""

    @property
    def has_own_process(self) -> bool:
        """Whether a call runs in a child process of the node, not in the node itself."""
        return self.runs_on == "worker"

    def counts_as_fault(self, code: ErrorCode) -> bool:
        """Whether the breaker counts this end of a call: not the model's mistakes."""
        return code.counts_as_fault

    def is_concurrency_safe(self, arguments: P) -> bool:
        """Whether a call with these arguments may run beside its neighbours."""
        return False

    def timeout_s(self, arguments: P) -> float:
        """Return how long the call may take in the box, in seconds."""
        return 60.0

    @abstractmethod
    def run(self, arguments: P, context: RunContext) -> ToolResult:
        """Return the call's result.

        Raises:
            ToolFailure: the call has no result; says why.
            BoxLost: the box ended.
        """


AnyTool = Tool[Any]
