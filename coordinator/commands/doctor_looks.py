"""What a coordinator sees of its installation: settings, Redis, nodes, volume, endpoint → findings."""

import asyncio
import ipaddress
import subprocess
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from urllib.parse import urlsplit

import openai
from pydantic import ValidationError
from redis.asyncio import Redis
from redis.exceptions import AuthenticationError, RedisError

from coordinator.cluster.store import NodeView, Store, connect
from coordinator.commands.model_flags import endpoint_environment
from coordinator.embedded import redis_server_binary
from coordinator.errors import ConfigError
from coordinator.settings import Settings
from worker.contract.findings import Finding, failure, ok, warning
from worker.contract.marks import NodeMark
from worker.contract.places import node_mark
from worker.contract.settings_file import without_password

OLDEST_REDIS = (6, 2)
MOST_SKEW_S = 2.0
ENDPOINT_S = 20.0
VERSION_S = 10


def of_file(path: Path | None, misspelt: list[str]) -> Iterator[Finding]:
    """Yield whether settings can be read by those alone who may."""
    if path is None:
        yield ok("settings", "no file; variables and defaults hold")
    elif path.stat().st_mode & 0o077:
        yield warning("settings", f"{path} can be read by others", f"If secrets are in it: `chmod 600 {path}`.")
    else:
        yield ok("settings", f"{path} is valid")
    for words in misspelt:
        yield warning("settings", words, "Correct or unset the variable.")


async def of_redis(redis_url: str) -> AsyncIterator[Finding]:
    """Yield what is to be said of a cluster's Redis; ends at once where it does not answer."""
    shown = without_password(redis_url)
    client = connect(redis_url)
    try:
        info = await _info(client)
    except AuthenticationError as exc:
        yield failure("redis", f"{shown} refuses the login: {exc}", "Correct user and password in SANDHOG_REDIS_URL.")
        return
    except (RedisError, OSError, ValueError) as exc:
        yield failure("redis", f"{shown} does not answer: {exc}", "Start it, or correct SANDHOG_REDIS_URL.")
        return
    finally:
        await client.aclose()
    yield _of_version(str(info.get("redis_version", "")), shown)
    for finding in of_info(info):
        yield finding
    for finding in of_address(redis_url):
        yield finding


def of_info(info: Mapping[str, object]) -> Iterator[Finding]:
    """Yield what Redis' own description says of eviction and persistence."""
    policy = info.get("maxmemory_policy")
    if policy not in (None, "noeviction"):
        fix = "`CONFIG SET maxmemory-policy noeviction`, and in redis.conf: else claims vanish and calls may run twice."
        yield failure("redis", f"maxmemory-policy is {policy}", fix)
    elif policy is not None:
        yield ok("redis", "maxmemory-policy is noeviction")
    if str(info.get("aof_enabled", "1")) == "0":
        fix = "`CONFIG SET appendonly yes`, and in redis.conf: else a restart forgets claims, places and questions."
        yield warning("redis", "it keeps no append-only file", fix)
    else:
        yield ok("redis", "it keeps an append-only file")
    if str(info.get("aof_last_write_status", "ok")) != "ok" or str(info.get("rdb_last_bgsave_status", "ok")) != "ok":
        yield failure("redis", "its last write to disk failed", "See its log; its disk is full or not writable.")


def of_address(redis_url: str) -> Iterator[Finding]:
    """Yield whether others could read along, or use it without a password."""
    parts = urlsplit(redis_url)
    if parts.scheme == "unix" or _is_this_machine(parts.hostname or "localhost"):
        return
    if not parts.password:
        fix = "Give it a user for each role (deploy/redis), and the password in SANDHOG_REDIS_URL."
        yield failure("redis", f"{parts.hostname} is on the network and lets in whoever comes", fix)
    else:
        yield ok("redis", "a login is used")
    if parts.scheme != "rediss":
        fix = "Use rediss:// with TLS, or keep it in a network that only coordinators and workers reach."
        yield warning("tls", f"the way to Redis at {parts.hostname} is not encrypted", fix)


def of_own_redis() -> Iterator[Finding]:
    """Yield whether a command can start a Redis of its own."""
    try:
        with redis_server_binary() as binary:
            done = subprocess.run([binary, "--version"], capture_output=True, text=True, timeout=VERSION_S, check=False)
    except (ConfigError, OSError, subprocess.TimeoutExpired) as exc:
        yield failure("redis", str(exc), "Install redis-server, or set SANDHOG_REDIS_URL.")
        return
    version = next((word.removeprefix("v=") for word in done.stdout.split() if word.startswith("v=")), "")
    yield _of_version(version, "each command starts its own")


async def of_nodes(redis_url: str, state_dir: Path) -> AsyncIterator[Finding]:
    """Yield whether nodes are there, see this volume, and have clocks that go alike."""
    client = connect(redis_url)
    try:
        views = await Store(client).nodes()
        seconds, micros = await client.time()
        skew_s = time.time() - (seconds + micros / 1e6)
    except (RedisError, OSError, ValueError):
        # Said by whoever looked at Redis.
        return
    finally:
        await client.aclose()
    yield _of_clock("this machine", skew_s)
    living = [view for view in views if view.is_leased]
    if not living:
        yield failure("nodes", "no worker has a lease", "Start one: `sandhog worker` on a machine with Docker.")
    for view in views:
        if not view.is_leased:
            yield warning("nodes", f"{view.life.node} has no lease", "Start it again; it is forgotten by itself soon.")
    for view in living:
        yield ok("nodes", f"{view.life.node}: {view.life.state}, {view.life.places} places")
        for finding in of_mark(view, state_dir):
            yield finding


def of_mark(view: NodeView, state_dir: Path) -> Iterator[Finding]:
    """Yield whether a node sees this volume: its mark must be here."""
    node = view.life.node
    fix = f"Mount one volume at {state_dir} on every machine (SANDHOG_STATE_DIR is the same everywhere)."
    try:
        mark = NodeMark.model_validate_json(node_mark(state_dir, node).read_bytes())
    except (OSError, ValidationError):
        yield failure("volume", f"{node} has left no mark here: it sees another volume, or just started", fix)
        return
    if mark.incarnation != view.life.incarnation:
        yield failure("volume", f"the mark of {node} is an old one: it sees another volume, or just started", fix)
        return
    yield ok("volume", f"{node} sees the same one")
    yield _of_clock(node, mark.skew_s)


async def of_endpoint(settings: Settings) -> AsyncIterator[Finding]:
    """Yield whether the model's endpoint answers; its key is not told."""
    environment = endpoint_environment(settings)
    base_url, key = environment.get("OPENAI_BASE_URL") or None, environment.get("OPENAI_API_KEY") or None
    if base_url is None and key is None:
        fix = "Set OPENAI_API_KEY, or OPENAI_BASE_URL for a server of your own."
        yield warning("endpoint", "none is set: only sessions whose caller has the loop will run", fix)
        return
    shown = without_password(base_url) if base_url else "OpenAI's own endpoint"
    client = openai.AsyncOpenAI(base_url=base_url, api_key=key or "none", timeout=ENDPOINT_S, max_retries=0)
    try:
        async with asyncio.timeout(ENDPOINT_S):
            names = [model.id for model in (await client.models.list()).data or []]
    except openai.AuthenticationError:
        yield failure("endpoint", f"{shown} refuses the key", "Correct OPENAI_API_KEY.")
    except openai.APIStatusError as exc:
        yield warning("endpoint", f"{shown} lists no models: status {exc.status_code}", "Name one: SANDHOG_MODEL.")
    except (openai.OpenAIError, TimeoutError, ValueError, OSError) as exc:
        words = type(exc).__name__
        yield failure("endpoint", f"{shown} does not answer ({words})", "Start it, or correct OPENAI_BASE_URL.")
    else:
        for finding in of_models(shown, names, settings.model):
            yield finding
    finally:
        await client.close()
    parts = urlsplit(base_url or "https://")
    if parts.scheme == "http" and not _is_this_machine(parts.hostname or ""):
        yield warning("tls", f"the way to {shown} is not encrypted", "Use https://, or keep it in a closed network.")


def of_models(shown: str, names: list[str], wanted: str | None) -> Iterator[Finding]:
    """Yield whether the endpoint has the wanted model."""
    yield ok("endpoint", f"{shown} answers with {len(names)} models")
    if wanted and names and wanted not in names:
        yield warning(
            "endpoint", f"{wanted} is not among its models", f"Set SANDHOG_MODEL to one of: {', '.join(names[:8])}."
        )
    elif not wanted and len(names) > 1:
        yield warning("endpoint", "no model is named, and it has several", "Set SANDHOG_MODEL, or give --model.")


async def _info(client: Redis) -> Mapping[str, object]:
    found = await client.info()
    return dict(found)


def _of_version(version: str, what: str) -> Finding:
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    if len(numbers) < 2:
        return warning("redis", f"its version is not told ({what})", "It must be 6.2 or later.")
    if numbers < OLDEST_REDIS:
        return failure("redis", f"version {version} ({what})", "Install 6.2 or later.")
    return ok("redis", f"version {version} ({what})")


def _of_clock(whose: str, skew_s: float) -> Finding:
    if abs(skew_s) > MOST_SKEW_S:
        fix = "Let both take the time from the network (chrony, systemd-timesyncd)."
        return warning("clock", f"{whose} is {abs(skew_s):.1f} s {'ahead of' if skew_s > 0 else 'behind'} Redis", fix)
    return ok("clock", f"{whose} and Redis agree to {abs(skew_s):.1f} s")


def _is_this_machine(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
