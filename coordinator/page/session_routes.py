"""Routes of the page about one session: its story, live; whole answers, files, patch; approvals, cancel."""

import time
from pathlib import Path as FilePath
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Form, Path, Query, Request
from fastapi.responses import PlainTextResponse, RedirectResponse, Response, StreamingResponse

from coordinator.page import agents, bars, diff, rendering, wording
from coordinator.page.live import Watched, live
from coordinator.page.login import Visitor
from coordinator.page.routing import (
    HEADERS,
    PLAIN_HEADERS,
    Acting,
    Page,
    PageRoute,
    Shown,
    ThePage,
    keep_action,
)
from coordinator.page.story import Story
from coordinator.service import approving, files, kept
from coordinator.service.entries import Entry
from coordinator.service.journal import BEGINNING, EventId, Journal
from coordinator.service.refusals import Code, Refused
from coordinator.service.volume import on_volume
from coordinator.session.transcript import CHILDREN_DIR
from coordinator.visible import visible

MAX_TEXT_BYTES = 1024 * 1024
"""As much of a whole answer or a spilled file is sent to a browser."""

router = APIRouter(prefix="/sessions/{session_id}", route_class=PageRoute, include_in_schema=False)

CallName = Annotated[str, Path(pattern=r"^[0-9]{1,9}\.[0-9]{1,6}$")]
StepName = Annotated[str, Path(pattern=r"^[0-9]{1,9}$")]
ChildName = Annotated[str, Path(pattern=f"^{agents.NAME}$")]
LastEvent = Annotated[str, Query(max_length=40)]


async def _agent_dir(entry: Shown, name: ChildName) -> FilePath:
    directory = entry.directory / CHILDREN_DIR / name
    if not directory.is_dir():
        raise Refused(Code.NOT_FOUND, f"Session {entry.session_id} has no sub-agent {name}.")
    return directory


AgentDir = Annotated[FilePath, Depends(_agent_dir)]


@router.get("")
async def session(
    request: Request, entry: Shown, page: ThePage, before: Annotated[int | None, Query(ge=1)] = None
) -> Response:
    """Show a session: what was said, each step, each call, each sub-agent."""
    story, last = await on_volume(_read, Story(before), entry.directory, entry.directory)
    root = f"/sessions/{entry.session_id}"
    return rendering.page(
        "session.html",
        request,
        session=page.sessions.view(entry),
        asks=await page.asking.of(entry),
        root=root,
        base=root,
        child=None,
        stream=None if before is not None else rendering.address(f"{root}/stream", after=last),
        **_told(story),
    )


@router.get("/agents/{name}")
async def agent(request: Request, entry: Shown, page: ThePage, directory: AgentDir, name: ChildName) -> Response:
    """Show a sub-agent of a session."""
    story, last = await on_volume(_read, Story(), directory, entry.directory)
    root = f"/sessions/{entry.session_id}"
    base = f"{root}/agents/{name}"
    return rendering.page(
        "session.html",
        request,
        session=page.sessions.view(entry),
        asks=[],
        root=root,
        base=base,
        child=name,
        stream=rendering.address(f"{base}/stream", after=last),
        **_told(story),
    )


@router.get("/stream")
async def stream(request: Request, entry: Shown, page: ThePage, after: LastEvent = str(BEGINNING)) -> Response:
    """Send what changes on a session's page behind an event, until the session or the login has ended."""
    return _stream(request, page, Watched(entry), after)


@router.get("/agents/{name}/stream")
async def agents_stream(
    request: Request,
    entry: Shown,
    page: ThePage,
    directory: AgentDir,
    name: ChildName,
    after: LastEvent = str(BEGINNING),
) -> Response:
    """Send what changes on a sub-agent's page, until it, its session or the login has ended."""
    return _stream(request, page, Watched(entry, name, directory), after)


@router.get("/calls/{name}")
async def whole_answer(entry: Shown, name: CallName) -> Response:
    """Send the answer to a call as plain text, whole unless it is huge."""
    return _plain(await on_volume(_answer_of, entry.directory, name))


@router.get("/agents/{name}/calls/{call}")
async def agents_answer(directory: AgentDir, call: CallName) -> Response:
    """Send the answer to a sub-agent's call in the same way."""
    return _plain(await on_volume(_answer_of, directory, call))


@router.get("/spill/{name}")
async def spilled(entry: Shown, name: Annotated[str, Path(max_length=255)], page: ThePage) -> Response:
    """Send the beginning of a call's whole output as plain text."""
    found = await on_volume(files.read, entry.directory / "spill", name, page.sessions.max_file_bytes)
    if isinstance(found, files.Listing):
        raise Refused(Code.NOT_FOUND, "There is no such output.")
    return _plain(found[:MAX_TEXT_BYTES].decode("utf-8", "replace"), is_cut=len(found) > MAX_TEXT_BYTES)


@router.get("/diff")
async def patch(request: Request, entry: Shown, page: ThePage) -> Response:
    """Show what the session changed in its copy."""
    if entry.facts.patch_path is None:
        words = "This session has no patch: it has not ended, worked on the directory itself, or had no box."
        raise Refused(Code.NOT_FOUND, words)
    found = await on_volume(_diff, entry.directory)
    return rendering.page("diff.html", request, session=page.sessions.view(entry), diff=found)


@router.post("/cancel")
async def cancel(request: Request, entry: Shown, visitor: Acting, page: ThePage) -> Response:
    """End the session."""
    await keep_action(request, visitor, "cancel", entry.session_id)
    await page.sessions.cancel(entry)
    return RedirectResponse(f"/sessions/{entry.session_id}", 303)


@router.post("/calls/{name}/cancel")
async def cancel_call(request: Request, entry: Shown, name: CallName, visitor: Acting, page: ThePage) -> Response:
    """End one call of the session, which goes on."""
    return await _cancel_calls(request, entry, name, visitor, page)


@router.post("/steps/{step}/cancel")
async def cancel_step(request: Request, entry: Shown, step: StepName, visitor: Acting, page: ThePage) -> Response:
    """End all calls of a step that have no answer yet; the session goes on."""
    return await _cancel_calls(request, entry, step, visitor, page)


@router.post("/approvals/{name}")
async def answer(
    request: Request,
    entry: Shown,
    name: Annotated[str, Path(pattern=approving.NAME)],
    visitor: Acting,
    page: ThePage,
    decision: Annotated[Literal["allow", "always", "deny"], Form()],
    note: Annotated[str, Form(max_length=2_000)] = "",
    to: Annotated[Literal["session", "approvals"], Form()] = "session",
) -> Response:
    """Answer a call of a session, or of a sub-agent of it, that waits for a yes."""
    is_lasting = decision == "always"
    action: Literal["allow", "deny"] = "deny" if decision == "deny" else "allow"
    detail = f"{name}{' for the whole session' if is_lasting else ''} {note}".rstrip()
    await keep_action(request, visitor, action, entry.session_id, detail)
    given = approving.Given(action, note, is_lasting, f"{visitor.principal.name} on the page")
    await approving.answer(page.sessions.cluster.requests, entry.session_id, name, given)
    return RedirectResponse("/approvals" if to == "approvals" else f"/sessions/{entry.session_id}", 303)


async def _cancel_calls(request: Request, entry: Entry, name: str, visitor: Visitor, page: Page) -> Response:
    await keep_action(request, visitor, "cancel", entry.session_id, name)
    await page.sessions.cancel_calls(entry, name)
    return RedirectResponse(f"/sessions/{entry.session_id}", 303)


def _stream(request: Request, page: Page, watched: Watched, after: str) -> Response:
    try:
        last = EventId.parse(after)
    except ValueError as exc:
        raise Refused(Code.INVALID, f"after: {exc}.") from exc
    headers = {**HEADERS, "X-Accel-Buffering": "no"}
    return StreamingResponse(live(request, page, watched, last), media_type="text/event-stream", headers=headers)


def _diff(session_dir: FilePath) -> diff.Diff:
    with kept.open_patch(session_dir) as file:
        return diff.of_patch(file)


def _read(story: Story, directory: FilePath, session_dir: FilePath) -> tuple[Story, EventId]:
    """Return the story with all that was kept, and the last event of it."""
    journal = Journal(directory)
    while not story.is_cut and (lines := journal.read()):
        story.take(lines)
    agents.Agents(session_dir).read(story.blocks)
    return story, journal.after


def _told(story: Story) -> dict[str, Any]:
    """Return what the template of a session needs of its story."""
    now_s = time.time()
    return {"story": story, "overview": bars.of_all(story.blocks, now_s), "axis": bars.of_block, "now_s": now_s}


def _answer_of(directory: FilePath, name: str) -> str:
    step, index = (int(part) for part in name.split("."))
    journal, found = Journal(directory), None
    while lines := journal.read():
        for line in lines:
            fields = line.fields
            is_answer = line.type in ("call_finished", "answer_shortened")
            if is_answer and (fields.get("step"), fields.get("index")) == (step, index):
                found = str(fields.get("answer", ""))
    if found is None:
        raise Refused(Code.NOT_FOUND, f"There is no answer to call {name}.")
    return wording.answer(found)


def _plain(text: str, *, is_cut: bool = False) -> Response:
    shown = visible(text[:MAX_TEXT_BYTES])
    if is_cut or len(text) > MAX_TEXT_BYTES:
        shown += f"\n\n⟨the first {MAX_TEXT_BYTES:,} are shown⟩\n"
    return PlainTextResponse(shown.encode("utf-8", "replace"), headers=PLAIN_HEADERS)
