"""Routes about the server: who one is, its nodes, whether it lives and is ready."""

import asyncio
import tempfile
from pathlib import Path

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict
from redis.exceptions import RedisError

from coordinator.api.asked import Service
from coordinator.api.auth import Asker
from coordinator.api.errors import faults
from coordinator.service.box_canary import BoxCanary
from coordinator.service.principals import Allowance
from coordinator.service.refusals import Code, Refused

router = APIRouter(tags=["server"], responses=faults(422))


class NodeView(BaseModel):
    """One worker process."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    node: str
    is_alive: bool
    state: str
    """ready; drained by an operator: it gets no new sessions; or draining: it ends."""
    places: int
    """Room for boxes."""
    taken: int
    """Boxes that have their place."""
    lanes: int
    """Calls at once."""
    labels: dict[str, str]
    """What sessions may be pinned to."""
    images: tuple[str, ...]
    """Images that are there already, of those that you may use."""
    profiles: tuple[str, ...]
    """Those that boxes can have there."""
    runtimes: tuple[str, ...]
    """The engine's."""
    cpus: int
    memory_bytes: int
    disk_free_bytes: int
    """On the volume."""


class Nodes(BaseModel):
    """All nodes that the cluster knows."""

    nodes: list[NodeView]


class Me(BaseModel):
    """Who a token is, and what it may."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    principal: str
    allowance: Allowance
    running: int
    """Sessions that run in this process."""
    waiting: int
    """Sessions that wait in this process."""


class Health(BaseModel):
    """That the process answers."""

    status: str = "ok"


@router.get("/v1/nodes", response_model=Nodes, responses=faults(401, 503))
async def nodes(service: Service, asker: Asker) -> Nodes:
    """List the nodes of the cluster."""
    try:
        views = await service.cluster.store.nodes()
    except (RedisError, OSError, TimeoutError) as exc:
        raise Refused(Code.UNAVAILABLE, "Redis does not answer.", retry_after_s=5) from exc
    return Nodes(
        nodes=[
            NodeView(
                node=view.life.node,
                is_alive=view.is_leased,
                state=view.state,
                taken=view.taken,
                images=tuple(image for image in view.life.images if asker.allowance.ceiling.may_use(image)),
                **view.life.model_dump(include=NodeView.model_fields.keys() - {"node", "state", "images"}),
            )
            for view in views
        ]
    )


@router.get("/v1/principals/me", response_model=Me, responses=faults(401, 503))
async def me(service: Service, asker: Asker) -> Me:
    """Show who your token is and what it may."""
    running, waiting = service.load_of(asker.name)
    return Me(principal=asker.name, allowance=asker.allowance, running=running, waiting=waiting)


@router.get("/healthz", response_model=Health)
async def healthz() -> Health:
    """Answer: the process lives."""
    return Health()


@router.get("/readyz", response_model=Health, responses=faults(503))
async def readyz(request: Request, service: Service, deep: bool = False) -> Health:
    """Answer 200 if sessions can be run now: Redis answers, a node is alive, the volume takes files.

    With `deep`, also if the last canary call came back through queue, worker and a box.
    """
    why = await service.ready() or await asyncio.to_thread(_volume_fault, service.cluster.state_dir)
    if why is None and deep:
        canary: BoxCanary | None = request.app.state.canary
        why = canary.problem if canary is not None else "no canary call is made; SANDHOG_BOX_CANARY_S lets it"
        why = why and f"canary: {why}"
    if why is not None:
        raise Refused(Code.UNAVAILABLE, f"Not ready: {why}.", retry_after_s=5)
    return Health()


def _volume_fault(state_dir: Path) -> str | None:
    try:
        with tempfile.TemporaryFile(dir=state_dir) as file:
            file.write(b"ready?")
            file.flush()
    except OSError as exc:
        return f"the volume {state_dir} takes no files: {exc.strerror or exc}"
    return None
