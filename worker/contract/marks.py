"""What a node writes onto the shared volume again and again, so that others see that it is the same one."""

from pydantic import BaseModel, ConfigDict


class NodeMark(BaseModel):
    """A node's mark."""

    model_config = ConfigDict(frozen=True, extra="ignore", use_attribute_docstrings=True)

    incarnation: str
    """Of the node's life, as its lease names it."""
    skew_s: float
    """How far the node's clock is ahead of Redis'."""
