"""Routes for what a session has left: its transcript and its patch."""

from typing import Annotated

from fastapi import APIRouter, Path
from fastapi.responses import JSONResponse, Response, StreamingResponse
from pydantic import BaseModel, ConfigDict
from starlette.convertors import PathConvertor, register_url_convertor

from coordinator.api.asked import Named, Service
from coordinator.api.errors import faults
from coordinator.service import files, kept
from coordinator.service.refusals import Code, Refused
from coordinator.service.volume import on_volume

router = APIRouter(
    prefix="/v1/sessions/{session_id}",
    tags=["results"],
    responses=faults(401, 404, 422, 503),
)


class _AnyPath(PathConvertor):
    """A path whose names may hold newlines."""

    regex = r"[\s\S]*"


register_url_convertor("any_path", _AnyPath())

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


class Names(BaseModel):
    """What a directory of the workspace holds."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    names: list[str]
    """Sorted; those of directories end in `/`, and U+FFFD stands for what is not UTF-8: `…/tree` has such files."""
    is_cut: bool
    """There are more."""


@router.get("/files", response_model=Names, responses=faults(413))
async def directory(entry: Named, service: Service) -> Response:
    """List the names in the workspace itself."""
    return await _found(entry, service, "")


@router.get(
    "/files/{path:any_path}",
    response_model=Names,
    responses={
        200: {"content": {"application/octet-stream": {}}, "description": "A file's content."},
        **faults(413),
    },
)
async def file(entry: Named, service: Service, path: Annotated[str, Path(max_length=4_000)]) -> Response:
    """Fetch a file of the workspace, or list the names in a directory. Links are not followed."""
    return await _found(entry, service, path)


async def _found(entry: Named, service: Service, path: str) -> Response:
    found = await on_volume(files.read, service.workspace(entry), path, service.max_file_bytes)
    if isinstance(found, files.Listing):
        return JSONResponse({"names": list(found.names), "is_cut": found.is_cut}, headers=NO_SNIFFING)
    headers = {**NO_SNIFFING, "Content-Disposition": "attachment"}
    return Response(found, media_type="application/octet-stream", headers=headers)


@router.get(
    "/patch",
    response_class=StreamingResponse,
    responses={
        200: {"content": {"text/x-diff": {}}, "description": "For `git apply`; empty where nothing changed."},
        **faults(409),
    },
)
async def patch(entry: Named) -> Response:
    """Fetch the changes that the session made to its copy, once it has ended."""
    if not entry.facts.has_ended:
        words = f"Session {entry.session_id} has not ended; its patch is made then."
        raise Refused(Code.CONFLICT, words, "Ask with GET /v1/sessions/ID?wait=300 until it has.")
    if entry.facts.patch_path is None:
        words = f"Session {entry.session_id} has no patch: it worked on the directory itself, or had no box."
        raise Refused(Code.NOT_FOUND, words)
    file = await on_volume(kept.open_patch, entry.directory)
    return StreamingResponse(kept.pieces_of(file), media_type="text/x-diff", headers=NO_SNIFFING)
