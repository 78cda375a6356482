"""The model that is asked where nobody named one, against real HTTP servers."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from coordinator.endpoint.model import ModelSettings
from coordinator.endpoint.model_choice import DEFAULT_MODEL, choose_model
from coordinator.endpoint.scripted import ScriptedEndpoint, Turn
from coordinator.errors import ConfigError


@contextmanager
def listing(status: int, body: bytes) -> Iterator[str]:
    """A server that answers every GET with this; its base URL."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Print nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/v1"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


async def test_a_named_model_is_kept_and_nobody_is_asked() -> None:
    settings = ModelSettings("mine", base_url="http://127.0.0.1:1/v1")
    assert await choose_model(settings) == settings


async def test_the_only_model_of_an_endpoint_is_taken() -> None:
    with ScriptedEndpoint([Turn("hi")], model="the-only-one") as endpoint:
        chosen = await choose_model(ModelSettings("", base_url=endpoint.base_url))
    assert chosen.model == "the-only-one"


async def test_openais_own_endpoint_has_a_default() -> None:
    assert (await choose_model(ModelSettings("", api_key="k"))).model == DEFAULT_MODEL


async def test_several_models_are_named_and_one_must_be_chosen() -> None:
    body = json.dumps({"object": "list", "data": [{"id": name, "object": "model"} for name in ("b", "a")]}).encode()
    with listing(200, body) as base_url, pytest.raises(ConfigError, match=r"--model NAME.*: a, b"):
        await choose_model(ModelSettings("", base_url=base_url))


@pytest.mark.parametrize(
    ("status", "body"), [(404, b"{}"), (500, b"oops"), (200, b"not json"), (200, b"{}"), (200, b'{"data": null}')]
)
async def test_an_endpoint_that_lists_nothing_gets_the_default_name(status: int, body: bytes) -> None:
    with listing(status, body) as base_url:
        assert (await choose_model(ModelSettings("", base_url=base_url))).model == DEFAULT_MODEL
