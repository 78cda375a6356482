"""The API behind a real server, on a real Redis, with a scripted model; no worker unless a test has one."""

import asyncio
import contextlib
import json
import os
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import pytest
import uvicorn

from coordinator.api.app import create_app
from coordinator.endpoint.model import ModelSettings
from coordinator.endpoint.scripted import Script, ScriptedEndpoint, Turn
from coordinator.service.admission import Admission
from coordinator.service.archives import Archives
from coordinator.service.models import Models
from coordinator.service.principals import Allowance
from coordinator.service.serve_settings import ServeSettings
from coordinator.service.sessions import Sessions
from coordinator.service.tokens import Tokens
from coordinator.service.webhooks import Webhooks
from coordinator.session.model_table import ModelTable
from coordinator.settings import Settings
from coordinator.wiring import open_cluster
from tools.loading import load_tools

FIRST_TOKEN = "a-first-token-of-tests"
DONE = (Turn("done"),)
ENDED = ("completed", "stopped", "failed", "cancelled")


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Any:
        yield


@dataclass
class Served:
    """A server that listens, and how it is asked."""

    base_url: str
    sessions: Sessions
    tokens: Tokens
    state_dir: Path
    clients: list[httpx2.AsyncClient] = field(default_factory=list)

    def client(self, token: str | None = FIRST_TOKEN) -> httpx2.AsyncClient:
        headers = {"Authorization": f"Bearer {token}"} if token is not None else {}
        client = httpx2.AsyncClient(base_url=self.base_url, headers=headers, timeout=60, trust_env=False)
        self.clients.append(client)
        return client

    def principal(self, name: str, **allowance: Any) -> httpx2.AsyncClient:
        """A client of another principal."""
        return self.client(self.tokens.create(name, Allowance.model_validate(allowance)))

    async def ended(self, client: httpx2.AsyncClient, session_id: str) -> dict[str, Any]:
        """The session once it has ended."""
        async with asyncio.timeout(100):
            while True:
                shown = (await client.get(f"/v1/sessions/{session_id}", params={"wait": 20})).json()
                if shown["status"] in ENDED:
                    return dict(shown)


class Serves:
    """Starts servers, and ends them in the end."""

    def __init__(self, stack: AsyncExitStack, redis_url: str, state_dir: Path) -> None:
        self._stack = stack
        self.redis_url = redis_url
        self.state_dir = state_dir

    async def __call__(
        self,
        script: Script = DONE,
        *,
        max_running: int = 500,
        roots: dict[str, Path] | None = None,
        redis_url: str | None = None,
        webhooks: Webhooks | None = None,
        **settings: Any,
    ) -> Served:
        enter = self._stack.enter_async_context
        endpoint = self._stack.enter_context(ScriptedEndpoint(script))
        loaded = load_tools()
        cluster = await enter(open_cluster(redis_url or self.redis_url, self.state_dir, loaded))
        models = await enter(Models(ModelSettings("scripted", base_url=endpoint.base_url)))
        admission = Admission(
            Settings(state_dir=self.state_dir),
            roots=roots or {},
            tools=loaded,
            rules=None,
            models=ModelTable(),
            archives=Archives(self.state_dir),
            environment=os.environ,
        )
        tokens = Tokens(self.state_dir, FIRST_TOKEN)
        sessions = await enter(
            Sessions(cluster, admission, models, tokens=tokens, max_running=max_running, webhooks=webhooks)
        )
        listener = socket.create_server(("127.0.0.1", 0))
        app = create_app(sessions, tokens, ServeSettings(**settings))
        config = uvicorn.Config(
            app, log_config=None, lifespan="off", timeout_graceful_shutdown=2, timeout_keep_alive=300
        )
        server = _Server(config)
        task = asyncio.create_task(server.serve([listener]))
        served = Served(f"http://127.0.0.1:{listener.getsockname()[1]}", sessions, tokens, self.state_dir)

        async def stop() -> None:
            sessions.close()
            for client in served.clients:
                await client.aclose()
            server.should_exit = True
            await task

        self._stack.push_async_callback(stop)
        return served


@pytest.fixture
async def serve(redis_url: str, state_dir: Path) -> AsyncIterator[Serves]:
    async with AsyncExitStack() as stack:
        yield Serves(stack, redis_url, state_dir)


@pytest.fixture
async def served(serve: Serves) -> Served:
    """A server whose model answers every prompt with `done`."""
    return await serve()


def prompt(text: str = "do it", **more: Any) -> dict[str, Any]:
    return {"prompt": text, **more}


def code(response: httpx2.Response) -> str:
    """The error's code; the shape is checked on the way."""
    error = json.loads(response.content)["error"]
    assert set(error) == {"code", "message", "fix"}, error
    return str(error["code"])
