"""Routes of sessions whose loop is the caller's: `tool_calls` in, `role: tool` messages out."""

from typing import Annotated, Any, Literal, Self
from urllib.parse import quote

from fastapi import APIRouter, Header, Path, Query, Response
from pydantic import BaseModel, ConfigDict, Field, JsonValue, model_validator
from pydantic.config import JsonDict

from coordinator.api.asked import Named, Service
from coordinator.api.errors import ErrorBody
from coordinator.endpoint.reply import RawCall
from coordinator.service.posting import AskedStep
from coordinator.service.refusals import Code, Refused
from coordinator.service.wanted import Body, IdempotencyKey, Text

MAX_WAIT_S = 600.0
DEFAULT_WAIT_S = 60.0
MAX_CALLS = 128
MAX_ID_CHARS = 64 * 1024
"""Some gateways have a call's id carry what its model must be told again: kilobytes of signatures of its thoughts."""

router = APIRouter(
    prefix="/v1/sessions/{session_id}",
    tags=["your own loop"],
    responses={code: {"model": ErrorBody} for code in (401, 404, 409, 413, 415, 422, 503)},
)

Wait = Annotated[float, Query(ge=0, le=MAX_WAIT_S, description="Seconds to wait for the answers; then it is 202.")]
StepName = Annotated[str, Path(max_length=200, pattern=r"^[\x21-\x7e]+$", examples=["1"])]


CALLS_EXAMPLE: JsonDict = {
    "step": 1,
    "tool_calls": [
        {"id": "call_1", "type": "function", "function": {"name": "Read", "arguments": '{"path": "README.md"}'}},
        {"id": "call_2", "name": "Bash", "arguments": {"command": "ls"}},
    ],
}
ANSWERS_EXAMPLE: JsonDict = {
    "step": "1",
    "status": "done",
    "messages": [
        {"role": "tool", "tool_call_id": "call_1", "content": '{"status":"success","text":"1\t# A project\n"}'},
        {"role": "tool", "tool_call_id": "call_2", "content": '{"status":"success","text":"README.md\n"}'},
    ],
}


class Function(BaseModel):
    """What is called."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    name: Annotated[Text, Field(max_length=200)]
    arguments: Text | dict[str, JsonValue] | None = None


class Call(BaseModel):
    """One call as a model wrote it: with `function` in it, or flat; what else is in it is not looked at."""

    model_config = ConfigDict(frozen=True, extra="ignore", use_attribute_docstrings=True)

    id: Annotated[Text, Field(max_length=MAX_ID_CHARS)] | None = None
    """Its answer carries it."""
    function: Function | None = None
    name: Annotated[Text, Field(max_length=200)] | None = None
    """Of the flat form."""
    arguments: Text | dict[str, JsonValue] | None = None
    """Of the flat form: JSON text, or the object itself."""

    @model_validator(mode="after")
    def _is_named(self) -> Self:
        if (self.function is None) == (self.name is None):
            raise ValueError("a call has either function or name")
        return self

    def at(self, index: int) -> RawCall:
        """Return it as a reply has it."""
        if self.function is not None:
            return RawCall(index, self.id or None, self.function.name, self.function.arguments)
        return RawCall(index, self.id or None, self.name or "", self.arguments)


class Calls(Body):
    """An assistant message's calls; the message may be sent as it is, whatever else is in it."""

    model_config = ConfigDict(extra="ignore", json_schema_extra={"examples": [CALLS_EXAMPLE]})

    tool_calls: Annotated[list[Call], Field(min_length=1, max_length=MAX_CALLS)]
    step: Annotated[int, Field(ge=0, le=10**15)] | IdempotencyKey | None = None
    """Yours, counted up with each message: the same step with the same calls is run once. An Idempotency-Key header is
    the same. With neither, the calls' ids tell a repeated request from a new one. A name stands in a path: it has no
    slash, and is neither `.` nor `..`."""
    role: Literal["assistant"] = "assistant"
    content: JsonValue = None
    """Not looked at."""


class ToolMessage(BaseModel):
    """What goes behind the assistant message."""

    role: Literal["tool"]
    tool_call_id: str
    content: str


class Answers(BaseModel):
    """A step with its answers."""

    model_config = ConfigDict(use_attribute_docstrings=True, json_schema_extra={"examples": [ANSWERS_EXAMPLE]})

    step: str
    status: Literal["done", "running"]
    messages: list[ToolMessage]
    """One for each call, in the calls' order; while it runs, those that are there."""


class Tools(BaseModel):
    """What the session can do, for a model's `tools`."""

    tools: list[dict[str, Any]]


@router.get("/tools", response_model=Tools)
async def tools(entry: Named, service: Service) -> Tools:
    """List the session's tools in the form that chat completion endpoints take."""
    return Tools(tools=service.tools_of(entry))


@router.post("/tool_calls", response_model=Answers, responses={202: {"model": Answers}})
async def post_calls(
    entry: Named,
    body: Calls,
    service: Service,
    response: Response,
    wait: Wait = DEFAULT_WAIT_S,
    idempotency_key: Annotated[IdempotencyKey | None, Header()] = None,
) -> Answers:
    """Run an assistant message's calls, and answer with the messages that go behind it.

    A repeated request joins the step that runs, or gets its answers again; they are kept until the next step. The same
    step with other calls is 409. What takes longer than `wait` is answered 202, and fetched below `Location`.
    """
    name = str(body.step) if body.step is not None else idempotency_key
    if name is not None and ("/" in name or name in (".", "..")):
        words = f"A step's name stands in a path, where {name!r} cannot: it holds a slash, or is a path itself."
        raise Refused(Code.INVALID, words, "Give the step a name without.")
    asked = AskedStep(name, tuple(call.at(index) for index, call in enumerate(body.tool_calls)))
    return await _answers(entry, service, asked, wait, response)


@router.get("/tool_calls/{step}", response_model=Answers, responses={202: {"model": Answers}})
async def get_calls(entry: Named, step: StepName, service: Service, response: Response, wait: Wait = 0.0) -> Answers:
    """Fetch a step's answers: 200 with all of them, 202 while it runs."""
    return await _answers(entry, service, AskedStep(step), wait, response)


@router.post("/tool_calls/{step}/cancel", response_model=Answers, responses={202: {"model": Answers}})
async def cancel_calls(
    entry: Named, step: StepName, service: Service, response: Response, wait: Wait = DEFAULT_WAIT_S
) -> Answers:
    """End a step: calls that run are killed, the rest is not begun, and each has its answer. The session goes on."""
    return await _answers(entry, service, AskedStep(step, is_cancelled=True), wait, response)


async def _answers(entry: Named, service: Service, asked: AskedStep, wait_s: float, response: Response) -> Answers:
    step = await service.step(entry, asked, wait_s)
    if not step.is_done:
        response.status_code = 202
        response.headers["Location"] = f"/v1/sessions/{entry.session_id}/tool_calls/{quote(step.name, safe='')}"
        response.headers["Retry-After"] = "1"
    messages = [ToolMessage.model_validate(message) for message in step.messages]
    return Answers(step=step.name, status="done" if step.is_done else "running", messages=messages)
