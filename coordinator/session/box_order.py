"""The order for a session's box, as each order of the session carries it: request → **box order** → node."""

from pathlib import Path

from coordinator.session.request import SessionRequest
from worker.contract.orders import BoxOrder


def box_order(request: SessionRequest, session: str, session_dir: Path, generation: int) -> BoxOrder:
    """Return the order for a session's box."""
    return BoxOrder(
        session=session,
        generation=generation,
        session_dir=str(session_dir),
        image=request.image,
        workspace=str(request.workspace.directory),
        workspace_mode=request.workspace.mode,
        as_root=request.workspace.as_root,
        profile=request.profile,
        principal=request.principal,
        extras=request.box.extras,
        source=request.source,
    )
