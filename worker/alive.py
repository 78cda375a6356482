"""Whether the node of these settings lives: for a container's health check, from a process beside the node."""

from redis.exceptions import RedisError

from worker.contract import keys
from worker.contract.orders import NodeLife
from worker.settings import NodeSettings
from worker.wiring import connect


def fault_of_node(settings: NodeSettings) -> str:
    """Return what is wrong with the node, "" when it holds its lease."""
    client = connect(settings.redis_url)
    try:
        lease, told = client.mget([keys.lease(settings.node), keys.node(settings.node)])
    except RedisError as exc:
        return f"Redis does not answer: {exc}"
    finally:
        client.close()
    if lease is None or told is None:
        return f"node {settings.node} holds no lease"
    if NodeLife.model_validate_json(told).incarnation != lease.decode():
        return f"another life holds the lease of node {settings.node}"
    return ""
