import threading
from typing import Any

import docker
import pytest

from sandbox.engine_events import EngineEvents
from tests.conftest import Until

pytestmark = pytest.mark.docker


@pytest.mark.parametrize("opens_late", [False, True])
def test_nothing_of_a_stream_stays_open_behind_it(opens_late: bool, docker_engine_or_skip: None, until: Until) -> None:
    client = docker.APIClient()
    is_open, is_closing, streams = threading.Event(), threading.Event(), list[Any]()

    def subscribe() -> Any:
        streams.append(client.events(decode=True, filters={"label": ["sandhog.test=none"]}))
        is_open.set()
        if opens_late:
            is_closing.wait(60)
        return streams[-1]

    events = EngineEvents(subscribe, lambda _: None)
    assert is_open.wait(60)
    connection = streams[-1]._response.raw._fp.fp.raw
    assert not connection.closed

    events.close()
    is_closing.set()

    # Left to the collector, it is a matter of luck whether the file or its socket goes first.
    until(lambda: connection.closed, "the connection is closed")
    assert len(streams) == 1
    client.close()
