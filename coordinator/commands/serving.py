"""Runs the server: settings → cluster → sessions → app → uvicorn, and all of it to its end."""

import asyncio
import contextlib
import ipaddress
import os
import socket
import ssl
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import uvicorn
from fastapi import FastAPI

from coordinator.api.app import create_app
from coordinator.commands.explain import rules_of
from coordinator.commands.model_flags import endpoint_environment, model_settings
from coordinator.commands.one_session import own_tools
from coordinator.commands.own_cluster import Signals, looked_after, redis_of
from coordinator.ending import end
from coordinator.endpoint.model import ModelSettings
from coordinator.endpoint.model_choice import choose_model
from coordinator.errors import ConfigError
from coordinator.service.admission import Admission
from coordinator.service.archives import Archives
from coordinator.service.box_canary import BoxCanary
from coordinator.service.models import Models
from coordinator.service.serve_settings import ServeSettings, read_serve_settings
from coordinator.service.sessions import Sessions
from coordinator.service.tokens import Tokens
from coordinator.service.webhooks import Webhooks
from coordinator.session.mcp_settings import read_mcp_config
from coordinator.session.model_table import read_model_table
from coordinator.session.principal import LOCAL
from coordinator.settings import Settings, read_settings
from coordinator.wiring import open_cluster
from tools.loading import LoadedTools
from worker.contract.logs import begin_logs
from worker.contract.traces import is_traced, shows_content

CLOSE_S = 5
"""How long open connections may still take once nothing runs any more."""
KEEP_ALIVE_S = 30


@dataclass(frozen=True)
class Serving:
    """What the command line says."""

    host: str
    port: int
    tools: tuple[Path, ...] = ()
    policy_file: Path | None = None
    max_sessions: int | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None


class _Server(uvicorn.Server):
    """Leaves signals to its owner, who drains first."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def run_server(serving: Serving) -> None:
    """Serve until a signal ends it.

    Raises:
        SandhogError: it cannot begin, or its cluster is gone.
    """
    _check_certificate(serving.tls_cert, serving.tls_key)
    settings, serve_settings = read_settings(), read_serve_settings()
    secrets = [one.get_secret_value() for one in (serve_settings.api_token, serve_settings.metrics_token) if one]
    begin_logs(settings.log, settings.log_level, [*secrets, os.environ.get("OPENAI_API_KEY", "")])
    first = serve_settings.api_token
    tokens = Tokens(settings.state_dir, first.get_secret_value() if first is not None else None)
    if tokens.is_empty:
        if not _is_loopback(serving.host):
            raise ConfigError(
                f"--host {serving.host}: others could reach it, and there is no token. Make one with "
                "`sandhog token create NAME`, or set SANDHOG_API_TOKEN to one of your own."
            )
        print(f"sandhog: no token was there; this one is new, and shown once: {tokens.create(LOCAL)}", file=sys.stderr)
    asyncio.run(_serve(serving, settings, serve_settings, tokens))


def _check_certificate(cert: Path | None, key: Path | None) -> None:
    if (cert is None) != (key is None):
        raise ConfigError("--tls-cert and --tls-key belong together: give both, or neither.")
    if cert is None:
        return
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(cert, key, password=_no_password)
    except (OSError, ValueError) as exc:
        raise ConfigError(
            f"--tls-cert {cert}, --tls-key {key}: no certificate with its key in PEM, without a password: {exc}."
        ) from exc


def _no_password() -> str:
    """Be asked in place of whoever sits at the terminal."""
    raise ValueError("the key has a password")


async def _serve(serving: Serving, settings: Settings, serve_settings: ServeSettings, tokens: Tokens) -> None:
    signals = Signals()
    tools = own_tools([*settings.tool_paths, *serving.tools])
    endpoint = await _endpoint(settings)
    admission = _admission(serving, settings, serve_settings, tools)
    listener = _listen(serving.host, serving.port)
    async with contextlib.AsyncExitStack() as stack:
        stack.callback(listener.close)
        redis_url, embedded = stack.enter_context(redis_of(settings, tools))
        broken = await stack.enter_async_context(looked_after(embedded))
        cluster = await stack.enter_async_context(open_cluster(redis_url, settings.state_dir, tools))
        models = await stack.enter_async_context(Models(endpoint))
        sessions = Sessions(
            cluster,
            admission,
            models,
            tokens=tokens,
            max_running=serving.max_sessions or serve_settings.max_sessions,
            max_file_bytes=serve_settings.max_file_bytes,
            webhooks=Webhooks(serve_settings.webhook_private),
            hidden=_hidden(endpoint, serve_settings),
        )
        # Whoever watches sessions does so before any begins, and until all have ended.
        canary = None
        if serve_settings.box_canary_s is not None:
            canary = BoxCanary(cluster, settings.image, every_s=serve_settings.box_canary_s)
        app = create_app(sessions, tokens, serve_settings, canary)
        if is_traced(os.environ):
            # An SDK that most servers do without.
            from coordinator.tracing import SessionSpans

            spans = SessionSpans(shows_content=shows_content(os.environ))
            stack.push_async_callback(asyncio.to_thread, spans.close)
            sessions.floor.watchers.append(spans.watch)
        await stack.enter_async_context(sessions)
        if canary is not None:
            await stack.enter_async_context(canary)
        await _attended(_server(app, serving), listener, sessions, broken, signals, serve_settings.drain_s)


def _admission(serving: Serving, settings: Settings, serve_settings: ServeSettings, tools: LoadedTools) -> Admission:
    """Return what decides on the sessions that are asked for."""
    return Admission(
        settings,
        roots=serve_settings.roots,
        tools=tools,
        rules=rules_of(serving.policy_file or settings.policy_file, tools.registry),
        models=read_model_table(settings.models_file, settings.context_tokens),
        archives=Archives(settings.state_dir),
        environment=os.environ,
        mcp=read_mcp_config(settings.mcp_config, os.environ),
    )


def _hidden(endpoint: ModelSettings | None, serve_settings: ServeSettings) -> tuple[str, ...]:
    """Return the server's own secrets, which no transcript may have."""
    values = (
        endpoint and endpoint.api_key,
        os.environ.get("OPENAI_API_KEY"),
        serve_settings.api_token and serve_settings.api_token.get_secret_value(),
    )
    return tuple(value for value in values if value)


def _server(app: FastAPI, serving: Serving) -> _Server:
    return _Server(
        uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=CLOSE_S,
            timeout_keep_alive=KEEP_ALIVE_S,
            lifespan="off",
            ssl_certfile=serving.tls_cert,
            ssl_keyfile=serving.tls_key,
        )
    )


async def _endpoint(settings: Settings) -> ModelSettings | None:
    """Return the server's model endpoint, without a model where each session must name one.

    None where none is set, and callers bring their own loop.
    """
    environment = endpoint_environment(settings)
    if not (environment.get("OPENAI_BASE_URL") or environment.get("OPENAI_API_KEY")):
        print("sandhog: no model endpoint is set: only sessions whose caller has the loop will run.", file=sys.stderr)
        return None
    endpoint = model_settings(settings, None)
    try:
        return await choose_model(endpoint)
    except ConfigError as exc:
        print(f"sandhog: {exc} Until then each session must name its model.", file=sys.stderr)
        return endpoint


async def _attended(
    server: uvicorn.Server,
    listener: socket.socket,
    sessions: Sessions,
    broken: "asyncio.Task[None]",
    signals: Signals,
    drain_s: float,
) -> None:
    """Serve until a signal comes and what runs has ended or its time is over; or the embedded cluster is gone.

    Raises:
        SandhogError: the embedded cluster is gone.
    """
    serving = asyncio.create_task(server.serve([listener]), name="serve")
    first, second = (asyncio.create_task(event.wait()) for event in (signals.first, signals.second))
    host, port = listener.getsockname()[:2]
    scheme = "https" if server.config.is_ssl else "http"
    print(f"sandhog: serving at {scheme}://{f'[{host}]' if ':' in host else host}:{port}", file=sys.stderr, flush=True)
    try:
        await asyncio.wait({serving, first, broken}, return_when=asyncio.FIRST_COMPLETED)
        if first.done():
            print("sandhog: draining; a second signal ends at once", file=sys.stderr, flush=True)
            draining = asyncio.create_task(sessions.drain(drain_s))
            await asyncio.wait({draining, second, broken}, return_when=asyncio.FIRST_COMPLETED)
            if draining.done():
                _tell_left(*draining.result())
            await end(draining)
        sessions.close()
        server.should_exit = True
        await serving
        if broken.done():
            broken.result()
    finally:
        await end(serving, first, second)


def _tell_left(waiting: int, at_work: int) -> None:
    if waiting or at_work:
        words = f"{waiting} that wait for somebody, {at_work} at work"
        print(f"sandhog: left for another server or the next start: {words}", file=sys.stderr, flush=True)


def _listen(host: str, port: int) -> socket.socket:
    """Return a listening socket.

    Raises:
        ConfigError: the address cannot be had.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=1024)
    except OSError as exc:
        raise ConfigError(f"--host {host} --port {port}: {exc.strerror or exc}.") from exc


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
