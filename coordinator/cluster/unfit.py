"""What is said where no node suits a session, and what to do then: placement → people."""

from collections.abc import Mapping

from coordinator.cluster.store import NodeView
from worker.contract.orders import CONTRACT_VERSION, NodeLife


def nobody(away: str, nodes: list[NodeView]) -> str:
    """Say why no node is alive; `away` is what is wrong with Redis, "" for nothing."""
    if away:
        return f"Redis does not answer: {away}. Start it, or correct SANDHOG_REDIS_URL."
    others = [f"{one.life.node}: {one.life.v}" for one in nodes if one.is_leased and one.life.v != CONTRACT_VERSION]
    if others:
        return (
            f"No worker speaks version {CONTRACT_VERSION} of the contract, as this coordinator does "
            f"({', '.join(others)}). Upgrade both to one release, the workers first."
        )
    return (
        "No worker is alive that takes sessions: start one with `sandhog worker` (its log says why one that was "
        "started is not there; `sandhog nodes` shows all)."
    )


def other_labels(nodes: list[NodeLife], pins: Mapping[str, str]) -> str:
    """Say that none of these nodes has the labels."""
    wanted = ", ".join(f"{name}={value}" for name, value in pins.items())
    return (
        f"No worker has the labels {wanted}; there are {', '.join(node.node for node in nodes)}. See `sandhog nodes`."
    )


def directory_away(node: str) -> str:
    """Say that a session cannot go on without the machine of its directory."""
    return f"the node {node} is gone, and the directory is on it. Resume the session when it is back."


def other_tools(nodes: list[NodeLife]) -> str:
    """Say that none of these nodes has the session's own tools."""
    named = ", ".join(f"{node.node} has {'others' if node.tools else 'none'}" for node in nodes)
    return (
        f"No worker has the own tools of this session ({named}). Start one with SANDHOG_TOOLS naming the same files, "
        "with the same content, or leave the tools out."
    )


def other_volume(nodes: list[NodeLife]) -> str:
    """Say that none of these nodes sees the coordinator's volume."""
    named = ", ".join(node.node for node in nodes)
    return (
        f"No worker sees the volume of this coordinator ({named}: another one). Mount one volume on every machine, and "
        "name it with SANDHOG_STATE_DIR on each."
    )
