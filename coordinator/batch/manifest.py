"""What a batch was run with, so that its results can be judged and had again: settings → **manifest** → file."""

import hashlib
import json
import platform
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from coordinator.batch.lines import now, write_whole
from coordinator.batch.ran_on import RanOn
from coordinator.batch.requests import Defaults
from coordinator.session.model_table import ModelTable

MANIFEST = "manifest.json"
MASKED = ("--env", "--header")
HIDDEN = ("--webhook",)
"""Their value, as a whole, may be a secret."""
PACKAGES = ("sandhog", "celery", "docker", "openai", "pydantic", "redis")


def write_manifest(
    directory: Path,
    *,
    tasks: Path,
    defaults: Defaults,
    model: str,
    base_url: str | None,
    models: ModelTable,
    flags: Mapping[str, Any],
) -> RanOn:
    """Write the batch's manifest; one that is there is kept beside it under its time.

    Args:
        directory: The batch's.
        tasks: The tasks file.
        defaults: What holds for tasks that say nothing else.
        model: The model of such tasks.
        base_url: The endpoint's.
        models: Prices.
        flags: The command's own.

    Returns:
        What earlier runs of the batch ran on, for `keep_ran_on` to go on with.

    Raises:
        TranscriptError: it cannot be written.
    """
    path, ran = directory / MANIFEST, RanOn()
    if path.exists():
        ran = _ran_on(path)
        path.replace(directory / f"manifest-{int(path.stat().st_mtime)}.json")
    facts = models.of(model)
    write_whole(
        path,
        {
            "written_at": now(),
            "versions": {name: version(name) for name in PACKAGES} | {"python": platform.python_version()},
            "platform": platform.platform(),
            "command": [Path(sys.argv[0]).name, *masked(sys.argv[1:])],
            "tasks": {"path": str(tasks), "sha256": _digest(tasks)},
            "endpoint": base_url,
            "model": model,
            "prices": facts.model_dump(),
            "image": defaults.image,
            "profile": defaults.profile,
            "policy": defaults.policy.value,
            "limits": defaults.limits.model_dump(),
            "params": defaults.params.model_dump(exclude={"headers"}),
            "setup": list(defaults.setup),
            "allow_hosts": list(defaults.allow_hosts),
            "env_names": [text.partition("=")[0] for text in defaults.env],
            "flags": dict(flags),
            "ran_on": ran.model_dump(),
        },
    )
    return ran


def keep_ran_on(directory: Path, ran: RanOn) -> None:
    """Put into the manifest what the batch ran on, unless it stands there.

    Raises:
        TranscriptError: it cannot be written.
    """
    path = directory / MANIFEST
    if _ran_on(path) != ran:
        write_whole(path, {**json.loads(path.read_bytes()), "ran_on": ran.model_dump()})


def _ran_on(path: Path) -> RanOn:
    """Return what a manifest says; nothing where it is of an earlier release, or no manifest."""
    try:
        return RanOn.model_validate(json.loads(path.read_bytes()).get("ran_on", {}))
    except (OSError, ValueError, AttributeError):
        return RanOn()


def masked(arguments: Sequence[str]) -> list[str]:
    """Return a command's arguments without what may be secrets: values of variables and headers, addresses to tell."""
    shown, flag = [], ""
    for word in arguments:
        if flag in MASKED:
            word = _without_value(word)
        elif word.startswith(tuple(f"{name}=" for name in MASKED)):
            name, _, pair = word.partition("=")
            word = f"{name}={_without_value(pair)}"
        elif flag in HIDDEN:
            word = "…"
        elif word.startswith(tuple(f"{name}=" for name in HIDDEN)):
            word = f"{word.partition('=')[0]}=…"
        shown.append(word)
        flag = word
    return shown


def _without_value(pair: str) -> str:
    name, equals, _ = pair.partition("=")
    return f"{name}=…" if equals else pair


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
