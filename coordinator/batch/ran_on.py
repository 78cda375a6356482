"""What a batch's sessions really ran on: placed sessions → **ran on** → manifest."""

from typing import Any

from pydantic import BaseModel, ConfigDict

from coordinator.session.session_events import SessionPlaced


class RanOn(BaseModel):
    """Gathered as sessions get their boxes; what is there stays."""

    model_config = ConfigDict(extra="ignore", use_attribute_docstrings=True)

    images: dict[str, list[str]] = {}
    """Name of an image → the digests that it stood for."""
    nodes: dict[str, list[dict[str, str]]] = {}
    """Name of a node → the versions that it told, one entry for each time they were others."""

    def note(self, image: str, event: SessionPlaced) -> None:
        """Take what a session that was placed tells."""
        _add(self.images, image, event.image_id)
        _add(self.nodes, event.node, event.versions)


def _add(known: dict[str, list[Any]], name: str, one: Any) -> None:
    found = known.setdefault(name, [])
    if one and one not in found:
        found.append(one)
