"""A box with a way out on each runtime, and hosts for it to reach."""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import docker
import pytest

from sandbox.box import Box
from sandbox.egress.limits import EgressLimits
from sandbox.egress.settings import EgressSettings
from sandbox.engine import DockerEngine
from sandbox.spec import BoxSpec
from tests.sandbox.egress.outside import NODE, RUNSC_WEAK, Echo, Names, Server, allowed, python


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


@pytest.fixture(scope="module")
def echo() -> Iterator[Echo]:
    with Echo() as echo:
        threading.Thread(target=echo.serve_forever, daemon=True).start()
        yield echo
        echo.shutdown()


@pytest.fixture(scope="module")
def names() -> Names:
    return Names()


@pytest.fixture(scope="module")
def egress_engine(make_engine: Callable[..., DockerEngine], names: Names) -> DockerEngine:
    settings = EgressSettings(
        allow_private=frozenset({"site.test", "silent.test", "wild.site.test"}),
        limits=EgressLimits(head_s=1.5, dial_s=2, linger_s=1),
        resolver=names,
    )
    return make_engine(NODE, egress=settings)


@pytest.fixture(scope="module", params=["runc", "runsc"])
def out_box(
    request: pytest.FixtureRequest,
    egress_engine: DockerEngine,
    make_spec: Callable[..., BoxSpec],
    server: Server,
    echo: Echo,
    docker_client: docker.APIClient,
) -> Iterator[Box]:
    """A box that may reach some names, on each runtime that is here."""
    if request.param not in docker_client.info()["Runtimes"]:
        pytest.skip(f"the engine has no runtime {request.param}")
    weak = frozenset[str]() if request.param == "runc" else RUNSC_WEAK
    spec = make_spec(egress=allowed(server, echo), runtime=request.param, allow_weak=weak)
    box = egress_engine.start(spec, "s", 1)
    yield box
    box.close()


@pytest.fixture
def talk(out_box: Box, server: Server, echo: Echo) -> Callable[..., str]:
    """Sends bytes to the proxy port from a command in the box; what came back."""

    def talk(data: bytes, **more: Any) -> str:
        answer = python(out_box, f"sys.stdout.buffer.write(talk({data!r}, **{more!r}))")
        assert answer.exit_code == 0, answer.stderr.text()
        return answer.stdout.text()

    return talk


@pytest.fixture
def port(server: Server) -> int:
    return server.server_address[1]
