"""Routes for what a session has left: its transcript and its patch."""

from fastapi import APIRouter
from fastapi.responses import Response, StreamingResponse

from coordinator.api.asked import Named
from coordinator.api.errors import ErrorBody
from coordinator.service import kept
from coordinator.service.refusals import Code, Refused
from coordinator.service.sessions import on_volume

router = APIRouter(
    prefix="/v1/sessions/{session_id}",
    tags=["results"],
    responses={code: {"model": ErrorBody} for code in (401, 404, 409, 422, 503)},
)

NO_SNIFFING = {"X-Content-Type-Options": "nosniff", "Cache-Control": "no-store"}


@router.get(
    "/transcript",
    response_class=StreamingResponse,
    responses={200: {"content": {"application/jsonl": {}}, "description": "One event a line, whole lines only."}},
)
async def transcript(entry: Named) -> Response:
    """Fetch the session's transcript as it is now."""
    pieces = await on_volume(kept.transcript, entry.directory)
    headers = {**NO_SNIFFING, "Content-Disposition": f'attachment; filename="{entry.session_id}.jsonl"'}
    return StreamingResponse(pieces, media_type="application/jsonl", headers=headers)


@router.get(
    "/patch",
    response_class=Response,
    responses={200: {"content": {"text/x-diff": {}}, "description": "For `git apply`; empty where nothing changed."}},
)
async def patch(entry: Named) -> Response:
    """Fetch the changes that the session made to its copy, once it has ended."""
    if not entry.facts.has_ended:
        words = f"Session {entry.session_id} has not ended; its patch is made then."
        raise Refused(Code.CONFLICT, words, "Ask with GET /v1/sessions/ID?wait=300 until it has.")
    if entry.facts.patch_path is None:
        words = f"Session {entry.session_id} has no patch: it worked on the directory itself, or had no box."
        raise Refused(Code.NOT_FOUND, words)
    content = await on_volume(kept.patch, entry.directory)
    return Response(content, media_type="text/x-diff", headers=NO_SNIFFING)
