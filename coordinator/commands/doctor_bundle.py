"""What those need who help from afar, in one archive without secrets: findings, settings, nodes, logs, transcripts."""

import asyncio
import contextlib
import io
import json
import os
import platform
import sys
import tarfile
import tomllib
from collections.abc import Iterator, Sequence
from importlib.metadata import distributions
from pathlib import Path

from redis.exceptions import RedisError

from coordinator.cluster.store import Store, connect
from coordinator.commands.config_rows import effective_rows
from coordinator.errors import ConfigError
from coordinator.session.redact import Redactor
from coordinator.settings import Settings, read_settings
from worker.contract.findings import FINDINGS, Finding
from worker.contract.setting_rows import ROWS
from worker.contract.settings_file import SettingsWrong, password_of, settings_file

MOST_LOG_BYTES = 200_000
LATEST_SESSIONS = 5
HEAD_LINES = 20
LINE_CHARS = 2_000
MOST_SECRET_BYTES = 65_536
SECRET_WORDS = ("KEY", "TOKEN", "PASSWORD", "SECRET", "CREDENTIAL", "AUTH")
PACKAGES = ("sandhog", "celery", "redis", "docker", "openai", "pydantic", "pydantic-settings", "fastapi", "mcp")


def write_bundle(path: Path, findings: Sequence[Finding]) -> None:
    """Write the archive, readable for its owner alone.

    Raises:
        ConfigError: it cannot be written.
    """
    redactor = Redactor(_secrets())
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as exc:
        raise ConfigError(f"--bundle {path}: {exc.strerror}.") from exc
    with os.fdopen(descriptor, "wb") as file, tarfile.open(fileobj=file, mode="w:gz") as archive:
        for name, text in _parts(findings):
            data = redactor.text(text).encode("utf-8", "replace")
            entry = tarfile.TarInfo(f"sandhog-doctor/{name}")
            entry.size, entry.mode = len(data), 0o600
            archive.addfile(entry, io.BytesIO(data))


def _secrets() -> set[str]:
    """Return every secret that this process can know by name: of variables, the settings file, and own tools."""
    found = {value for name, value in os.environ.items() if _names_secret(name)}
    found |= {password for value in os.environ.values() if (password := password_of(value))}
    try:
        path = settings_file(os.environ)
        if path is not None:
            found |= set(_secrets_below(tomllib.loads(path.read_text(encoding="utf-8")), is_secret=False))
        directory = read_settings().secrets_dir
    except (SettingsWrong, ConfigError, OSError, ValueError):
        return found
    for place in directory.glob("*/*") if directory is not None else ():
        with contextlib.suppress(OSError):
            found.add(place.read_bytes()[:MOST_SECRET_BYTES].decode(errors="replace").strip())
    return found


def _secrets_below(value: object, *, is_secret: bool) -> Iterator[str]:
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _secrets_below(inner, is_secret=is_secret or _names_secret(str(name)))
    elif isinstance(value, list):
        for inner in value:
            yield from _secrets_below(inner, is_secret=is_secret)
    elif isinstance(value, str):
        if is_secret:
            yield value
        if password := password_of(value):
            yield password


def _names_secret(name: str) -> bool:
    # Of `SANDHOG_SECRETS_DIR` and the like the value is a place.
    upper = name.upper()
    return any(word in upper for word in SECRET_WORDS) and not upper.endswith(("_DIR", "_FILE"))


def _parts(findings: Sequence[Finding]) -> Iterator[tuple[str, str]]:
    yield "versions.json", json.dumps(_versions(), indent=1)
    yield "findings.json", FINDINGS.dump_json(list(findings), indent=1).decode()
    try:
        settings = read_settings()
        yield "settings.json", ROWS.dump_json(effective_rows(), indent=1).decode()
    except ConfigError as exc:
        yield "settings.txt", str(exc)
        return
    if settings.redis_url:
        yield "nodes.json", asyncio.run(_nodes(settings))
    yield from _logs(settings.state_dir)
    yield from _heads(settings.state_dir / "sessions")


def _versions() -> dict[str, object]:
    found = {one.metadata["Name"].lower(): one.version for one in distributions()}
    packages = {name: found[name] for name in PACKAGES if name in found}
    return {"python": sys.version, "machine": platform.platform(), "packages": packages}


async def _nodes(settings: Settings) -> str:
    client = connect(settings.redis_url or "")
    try:
        views = await Store(client).nodes()
    except (RedisError, OSError, ValueError) as exc:
        return json.dumps({"error": type(exc).__name__})
    finally:
        await client.aclose()
    return json.dumps([{"is_leased": view.is_leased, **view.life.model_dump(mode="json")} for view in views], indent=1)


def _logs(state_dir: Path) -> Iterator[tuple[str, str]]:
    """Yield the ends of logs of commands that run now, and of the audit."""
    for path in sorted((*state_dir.glob("runs/*/*.log"), *state_dir.glob("audit*.jsonl"))):
        try:
            with path.open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(0, size - MOST_LOG_BYTES))
                yield f"logs/{path.parent.name}-{path.name}", file.read(MOST_LOG_BYTES).decode(errors="replace")
        except OSError:
            continue


def _heads(sessions: Path) -> Iterator[tuple[str, str]]:
    """Yield the first lines of the latest transcripts."""
    found = []
    for path in sessions.glob("*/*.jsonl"):
        try:
            found.append((path.stat().st_mtime, path))
        except OSError:
            continue
    for _, path in sorted(found, reverse=True)[:LATEST_SESSIONS]:
        lines = []
        try:
            with path.open(encoding="utf-8", errors="replace") as file:
                for _ in range(HEAD_LINES):
                    # A line may be as long as a model's whole prompt.
                    if line := file.readline(LINE_CHARS):
                        lines.append(line if line.endswith("\n") else f"{line}…\n")
        except OSError:
            continue
        yield f"sessions/{path.parent.name}-{path.name}", "".join(lines)
