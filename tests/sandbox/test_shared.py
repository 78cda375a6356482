"""Whether the engine sees what a worker sees, asked of a real engine. A worker that it does not: `tests/worker`."""

from pathlib import Path

import docker
import pytest

from sandbox.shared import check_shared

pytestmark = pytest.mark.docker


def test_to_ask_leaves_nothing(tmp_path: Path) -> None:
    check_shared(tmp_path)

    assert list(tmp_path.iterdir()) == []
    client = docker.from_env()
    made = client.containers.list(all=True, filters={"volume": "/probe"})
    client.close()
    assert made == []
