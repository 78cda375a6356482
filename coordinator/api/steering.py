"""Routes that say something to a session: messages, answers to its questions, limits, its end."""

from typing import Annotated, Literal

from fastapi import APIRouter, Path
from pydantic import BaseModel, ConfigDict, Field

from coordinator.api.asked import Named, Service, shown
from coordinator.api.auth import Asker
from coordinator.api.errors import faults
from coordinator.service import approving
from coordinator.service.approving import ApprovalView
from coordinator.service.views import SessionView
from coordinator.service.wanted import MAX_PROMPT_CHARS, Body, Text
from coordinator.session.limits import Limits

router = APIRouter(
    prefix="/v1/sessions/{session_id}",
    tags=["steering"],
    responses=faults(401, 404, 422, 503),
)


class Message(Body):
    """What a person says."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"text": "Go on, and add a test."}]})

    text: Annotated[Text, Field(min_length=1, max_length=MAX_PROMPT_CHARS)]


class Farewell(Body):
    """How a session is ended in good order."""

    text: Annotated[Text, Field(max_length=MAX_PROMPT_CHARS)] = ""
    """Kept as the final text of a session without a model."""


class GivenLimits(Limits):
    """Those fields that are there count."""

    # Built at once: a body's schema that is built at its first use is not what the framework expects.
    model_config = ConfigDict(defer_build=False)


WITHOUT_WORDS = Farewell()
STEERED = faults(409, 413, 415)
"""Of what changes a session by a body."""


class Answer(Body):
    """A human's answer about one call."""

    decision: Literal["allow", "deny"]
    always: bool = False
    """With allow: for the rest of the session, exactly what was shown."""
    note: Annotated[Text, Field(max_length=2_000)] = ""
    """With deny: said to the model."""


class NamedAnswer(Answer):
    """A human's answer, with the call that it is about."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"name": "3.0", "decision": "deny", "note": "not in this repository"},
                {"name": "1-2-0.3.0", "decision": "allow"},
            ]
        }
    )

    name: Annotated[str, Field(pattern=approving.NAME)]
    """As `GET …/approvals` calls it: `3.0` is the first call of step 3, `1-2-0.3.0` that of sub-agent 1-2-0."""


class Approvals(BaseModel):
    """What waits for a human, the next deadline first."""

    approvals: list[ApprovalView]


class Answered(BaseModel):
    """The answer that counts now."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    name: str
    decision: Literal["allow", "deny"]
    by: str
    """Who or what decided."""


class CancelledCall(BaseModel):
    """A call that a person has cancelled."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    name: str
    has_begun: bool
    """It may run, and is being ended; false: it had not begun, and never will."""


class CancelledCalls(BaseModel):
    """What is cancelled."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    calls: list[CancelledCall]
    """Empty where the coordinator that runs the session has not said yet which."""


CallName = Annotated[str, Path(pattern=r"^[0-9]{1,9}\.[0-9]{1,6}$", examples=["3.0"])]
StepNumber = Annotated[int, Path(ge=0, lt=10**9, examples=[3])]
Name = Annotated[str, Path(pattern=approving.NAME, examples=["3.0", "1-2-0.3.0"])]


@router.post("/message", status_code=202, response_model=SessionView, responses={**STEERED, **faults(429)})
async def message(entry: Named, body: Message, service: Service) -> SessionView:
    """Say something to a session: one that runs hears it after its present answer, one that has ended goes on."""
    await service.say(entry, body.text)
    return await shown(service, entry)


@router.post("/finish", status_code=202, response_model=SessionView, responses=STEERED)
async def finish(entry: Named, service: Service, body: Farewell = WITHOUT_WORDS) -> SessionView:
    """Let a session complete that waits for a message or for calls, so that its patch is made."""
    await service.finish(entry, body.text)
    return await shown(service, entry)


@router.patch("/limits", response_model=Limits, responses=STEERED)
async def limits(entry: Named, body: GivenLimits, service: Service) -> Limits:
    """Change limits of a session that waits or runs; those that are not named stay. Answers those it has now."""
    return await service.limit(entry, body)


@router.get("/approvals", response_model=Approvals)
async def approvals(entry: Named, service: Service) -> Approvals:
    """List the calls about which a human is asked, of the session and of its sub-agents, whatever their depth."""
    return Approvals(approvals=await approving.waiting(service.cluster.requests, entry.session_id))


@router.post("/approvals", response_model=Answered, responses=STEERED)
async def answer(entry: Named, body: NamedAnswer, service: Service, asker: Asker) -> Answered:
    """Answer one of them. The first answer counts; a later one is 409."""
    return await _answer(entry, body.name, body, service, asker)


@router.post("/approvals/{name}", response_model=Answered, responses=STEERED)
async def answer_named(entry: Named, name: Name, body: Answer, service: Service, asker: Asker) -> Answered:
    """Answer the one of this name."""
    return await _answer(entry, name, body, service, asker)


@router.post("/calls/{name}/cancel", status_code=202, response_model=CancelledCalls, responses=faults(409, 413))
async def cancel_call(entry: Named, name: CallName, service: Service) -> CancelledCalls:
    """End one call of a session that runs: `3.0` is the first call of step 3. Its neighbours and the session go on.

    Its answer, CANCELLED, has what it had printed. One that has not begun never begins. One that had ended is 409.
    """
    return _cancelled(await service.cancel_calls(entry, name))


@router.post("/steps/{step}/cancel", status_code=202, response_model=CancelledCalls, responses=faults(409, 413))
async def cancel_step(entry: Named, step: StepNumber, service: Service) -> CancelledCalls:
    """End all calls of a step that have no answer yet; the session goes on with the next request to the model."""
    return _cancelled(await service.cancel_calls(entry, str(step)))


def _cancelled(found: dict[str, bool]) -> CancelledCalls:
    return CancelledCalls(calls=[CancelledCall(name=name, has_begun=begun) for name, begun in found.items()])


async def _answer(entry: Named, name: str, body: Answer, service: Service, asker: Asker) -> Answered:
    given = approving.Given(body.decision, body.note, body.always, f"{asker.name} over the API")
    counting = await approving.answer(service.cluster.requests, entry.session_id, name, given)
    return Answered(name=name, decision=counting.decision, by=counting.by)
