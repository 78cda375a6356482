"""Routes about the server: who one is, its nodes, whether it lives and is ready."""

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict
from redis.exceptions import RedisError

from coordinator.api.asked import Service
from coordinator.api.auth import Asker
from coordinator.api.errors import ErrorBody
from coordinator.service.principals import Allowance
from coordinator.service.refusals import Code, Refused

router = APIRouter(tags=["server"], responses={503: {"model": ErrorBody}})


class NodeView(BaseModel):
    """One worker process."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    node: str
    is_alive: bool
    state: str
    """ready or draining."""
    places: int
    """Room for boxes."""
    lanes: int
    """Calls at once."""


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


@router.get("/v1/nodes", response_model=Nodes, responses={401: {"model": ErrorBody}})
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
                state=view.life.state,
                places=view.life.places,
                lanes=view.life.lanes,
            )
            for view in views
        ]
    )


@router.get("/v1/principals/me", response_model=Me, responses={401: {"model": ErrorBody}})
async def me(service: Service, asker: Asker) -> Me:
    """Show who your token is and what it may."""
    running, waiting = service.load_of(asker.name)
    return Me(principal=asker.name, allowance=asker.allowance, running=running, waiting=waiting)


@router.get("/healthz", response_model=Health)
async def healthz() -> Health:
    """Answer: the process lives."""
    return Health()


@router.get("/readyz", response_model=Health)
async def readyz(service: Service) -> Health:
    """Answer 200 if sessions can be run now: Redis answers and a node is alive."""
    why = await service.ready()
    if why is not None:
        raise Refused(Code.UNAVAILABLE, f"Not ready: {why}.", retry_after_s=5)
    return Health()
