"""A session's box and its place, as they are asked for: request → **box order** → placement, node."""

from pathlib import Path

from coordinator.cluster.turns import PlaceWanted
from coordinator.session.request import SessionRequest
from worker.contract.orders import BoxOrder, NodeLife, WorkspaceMode


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


def place_wanted(request: SessionRequest, stood_on: NodeLife | None) -> PlaceWanted:
    """Return what a session asks of its place; `stood_on` is the node that had its box last, None for none."""
    return PlaceWanted(
        principal=request.principal,
        image=request.image,
        profile=request.profile,
        pins=dict(request.pins),
        most=request.most_places,
        weight=request.weight,
        bound_to=stood_on if request.workspace.mode is WorkspaceMode.BIND else None,
    )
