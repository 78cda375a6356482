"""What a node says of itself for placement."""

from pathlib import Path
from typing import Any, cast

from sandbox.machine import parse_machine
from worker.boxes import Boxes
from worker.facts import Facts
from worker.settings import NodeSettings

OWN = {"proven": {"runtime": "runsc"}, "plain": {"runtime": "runc"}, "any": {}}


class NoneWarm:
    """Stands for boxes of which none is warm."""

    def warm_images(self) -> tuple[str, ...]:
        return ()


def told(tmp_path: Path, *runtimes: str) -> dict[str, Any]:
    settings = NodeSettings(redis_url="redis://here", state_dir=tmp_path, profiles=OWN)
    machine = parse_machine({"Runtimes": {name: {"path": name} for name in runtimes}, "NCPU": 2})
    return Facts(settings, cast(Boxes, NoneWarm()), lambda: ("box:1",), machine)()


def test_a_node_tells_the_profiles_whose_runtime_its_engine_has(tmp_path: Path) -> None:
    facts = told(tmp_path, "runc", "io.containerd.runc.v2")
    assert facts["profiles"] == ("any", "large", "medium", "plain", "small")
    assert facts["runtimes"] == ("io.containerd.runc.v2", "runc")
    assert "proven" in told(tmp_path, "runc", "runsc")["profiles"]
