"""Route for all of a session's workspace, as a tar."""

import os
from collections.abc import Iterator
from pathlib import Path

from fastapi import APIRouter
from fastapi.responses import Response, StreamingResponse

from coordinator.api.asked import Named, Service
from coordinator.api.errors import faults
from coordinator.api.results import NO_SNIFFING
from coordinator.service.refusals import Code, Refused
from coordinator.service.volume import on_volume
from worker.contract.trees import OPEN_DIRECTORY, TreeBounds, TreeRefused, check_tree, tar_pieces

router = APIRouter(
    prefix="/v1/sessions/{session_id}",
    tags=["results"],
    responses=faults(401, 404, 413, 422, 503),
)
BOUNDS = TreeBounds()


@router.get(
    "/tree",
    response_class=StreamingResponse,
    responses={200: {"content": {"application/x-tar": {}}, "description": "A tar; its names begin with the id."}},
)
async def tree(entry: Named, service: Service) -> Response:
    """Fetch all of the workspace as a tar. Links stay links; sockets, pipes and devices are left out."""
    root = service.workspace(entry)
    await on_volume(_check, root)
    headers = {**NO_SNIFFING, "Content-Disposition": f'attachment; filename="{entry.session_id}.tar"'}
    return StreamingResponse(_pieces(root, entry.session_id), media_type="application/x-tar", headers=headers)


def _check(root: Path) -> None:
    try:
        above = _above(root)
    except FileNotFoundError:
        raise _gone() from None
    try:
        if root.is_symlink() or not root.is_dir():
            raise _gone()
        check_tree(above, root.name, BOUNDS)
    except TreeRefused as exc:
        words = f"The workspace cannot be packed: {exc}."
        raise Refused(Code.TOO_LARGE, words, "Fetch what is needed of it with GET …/files/PATH.") from exc
    finally:
        os.close(above)


def _pieces(root: Path, shown: str) -> Iterator[bytes]:
    above = _above(root)
    try:
        yield from tar_pieces(above, root.name, shown, BOUNDS)
    finally:
        os.close(above)


def _above(root: Path) -> int:
    return os.open(root.parent, OPEN_DIRECTORY)


def _gone() -> Refused:
    fix = "A private copy is there from the session's first call to its end; GET …/patch has what it changed."
    return Refused(Code.NOT_FOUND, "The session's workspace is not there now.", fix)
