"""All looks at an installation, in the order in which one rests on the other: **doctor_run** → doctor."""

import asyncio
import os
import subprocess
import sys

from coordinator.commands import doctor_looks
from coordinator.commands.config_rows import effective_rows, misspelt
from coordinator.errors import ConfigError
from coordinator.settings import Settings, read_settings
from worker.contract.findings import FINDINGS, Finding, failure
from worker.contract.settings_file import settings_file

NODE_TIMEOUT_S = 300


def examine(image: str | None, *, with_node: bool) -> list[Finding]:
    """Return what is found; wrong settings end it at once, for everything else rests on them."""
    try:
        settings = read_settings()
        rows = effective_rows()
        path = settings_file(os.environ)
    except ConfigError as exc:
        return [failure("settings", str(exc), "Correct it; `sandhog config` shows what holds.")]
    findings = list(doctor_looks.of_file(path, misspelt(rows, os.environ)))
    findings += asyncio.run(_of_cluster(settings))
    if with_node:
        findings += _of_machine(settings, image or settings.image)
    return findings


async def _of_cluster(settings: Settings) -> list[Finding]:
    findings = []
    if settings.redis_url:
        findings += [finding async for finding in doctor_looks.of_redis(settings.redis_url)]
        findings += [finding async for finding in doctor_looks.of_nodes(settings.redis_url, settings.state_dir)]
    else:
        findings += list(doctor_looks.of_own_redis())
    return findings + [finding async for finding in doctor_looks.of_endpoint(settings)]


def _of_machine(settings: Settings, image: str) -> list[Finding]:
    environment = {
        **os.environ,
        "SANDHOG_STATE_DIR": str(settings.state_dir),
        "SANDHOG_REDIS_URL": settings.redis_url or "unix:///embedded",
    }
    argv = [sys.executable, "-P", "-m", "worker", "doctor", "--image", image]
    try:
        done = subprocess.run(
            argv, capture_output=True, text=True, env=environment, timeout=NODE_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return [failure("engine", f"nothing was found within {NODE_TIMEOUT_S} s", "Look at the engine: it hangs.")]
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no word"])[-1]
        return [failure("engine", f"the look at this machine broke off: {last}", "Run `python -m worker doctor`.")]
    return FINDINGS.validate_json(done.stdout)
