"""Runs a job in a confined child and ends it with all that it started: held → **confined** → child."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from pydantic import ValidationError

from worker.own_process import PASSED_ON, end_all_of
from worker.own_wire import own_uid
from worker.sources.jobs import GitJob, Said, UnpackJob

LOOK_S = 0.25
GRACE_S = 5.0


def run_confined(job: GitJob | UnpackJob, *, passed_fds: Sequence[int] = (), check: Callable[[], None]) -> Said:
    """Return what the child said; it is gone by then, with all its processes.

    Args:
        job: What to do.
        passed_fds: Descriptors that it needs.
        check: Asked now and then; what it raises breaks the job off.
    """
    environment = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
    process = subprocess.Popen(
        # Safe path: nothing is imported from the directory it runs in.
        [sys.executable, "-P", "-m", "worker.sources.child"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        pass_fds=tuple(passed_fds),
        env={**environment, "PYTHONDONTWRITEBYTECODE": "1"},
        start_new_session=True,
    )
    try:
        return _said(process, _as_json(job), job.bounds.timeout_s, check)
    finally:
        with suppress(ProcessLookupError):
            if process.returncode is None:
                os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()
        if job.has_own_user:
            end_all_of(own_uid(process.pid))


def _said(process: "subprocess.Popen[bytes]", job: bytes, timeout_s: float, check: Callable[[], None]) -> Said:
    deadline, given = time.monotonic() + timeout_s, job
    while True:
        try:
            out, _ = process.communicate(given or None, timeout=LOOK_S)
            break
        except subprocess.TimeoutExpired:
            given = b""
            check()
            if time.monotonic() > deadline:
                return Said(error=f"it took longer than {timeout_s:g} s")
    try:
        return Said.model_validate_json(out)
    except ValidationError:
        return Said(error=f"the fetching process ended with code {process.returncode}")


def _as_json(job: GitJob | UnpackJob) -> bytes:
    """Return the job with its secrets, which are hidden everywhere else."""
    return json.dumps(job.model_dump(), default=lambda secret: secret.get_secret_value()).encode()
