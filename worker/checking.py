"""Runs a session's check before its box goes: finish → **checking** → outcome.

The session's changes have been collected before: neither the check's files nor what it writes are part of the patch.
"""

import hashlib
import logging
from pathlib import Path

from pydantic import ValidationError

from sandbox.box import Box
from sandbox.errors import GuestRefused, SandboxError
from sandbox.requests import CallMark, Capture, RunAnswer, RunRequest
from worker.beneath import write_durably
from worker.contract.checks import CHECK_FILES_DIR, CHECK_TAIL_BYTES, CHECKED_FILE, Check, CheckOutcome
from worker.contract.orders import BoxOrder
from worker.errors import WorkspaceRefused
from worker.files_in import put_file
from worker.workspace import Workspace

log = logging.getLogger(__name__)

STEP = 1
"""The check speaks to the guest as a session of its own, which begins in /workspace."""


def known_outcome(session_dir: Path) -> CheckOutcome | None:
    """Return what the session's check said before; None when it was not run to its end."""
    try:
        return CheckOutcome.model_validate_json((session_dir / CHECKED_FILE).read_bytes())
    except (FileNotFoundError, ValidationError):
        return None


def remember(session_dir: Path, outcome: CheckOutcome) -> None:
    """Keep what the check said.

    Raises:
        OSError: it cannot be written.
    """
    write_durably(session_dir / CHECKED_FILE, [outcome.model_dump_json().encode()])


def end_commands(box: Box) -> None:
    """End what the session left running, so that nothing changes the workspace any more; never raises."""
    try:
        for state in box.backgrounds(None):
            if state.is_running:
                box.kill_background(state.session, state.background_id)
    except SandboxError as exc:
        # A box that is lost runs nothing; any other is replaced by the one that the check asks for.
        log.warning("commands may still run", extra={"box_id": box.box_id, "error": str(exc)})


def run_check(check: Check, order: BoxOrder, box: Box, place: Workspace) -> CheckOutcome:
    """Put the check's files into the workspace and run its command."""
    source = Path(order.session_dir) / CHECK_FILES_DIR
    for number, file in enumerate(check.files):
        if not (source / str(number)).is_file():
            return CheckOutcome(error=f"{file.path} was not brought along.", is_infrastructure=True)
        try:
            put_file(source / str(number), place.directory, file, place, may_replace=True)
        except (OSError, WorkspaceRefused) as exc:
            words = f"{file.path} cannot be put into the workspace as the session left it: {exc}"
            return CheckOutcome(error=words)
    digest = hashlib.sha256(check.command.encode("utf-8", "surrogatepass")).hexdigest()
    mark = CallMark(
        key=f"{order.session}:check",
        digest=digest,
        session=f"{order.session}.check",
        generation=order.generation,
        step=STEP,
    )
    request = RunRequest(
        mark, command=check.command, timeout_ms=int(check.timeout_s * 1000), keep_bytes=CHECK_TAIL_BYTES
    )
    try:
        return _outcome(box.run(request))
    except GuestRefused as exc:
        return CheckOutcome(error=f"It could not be started: {exc.message}")
    except SandboxError as exc:
        return CheckOutcome(error=f"The box was lost under the check: {exc}")


def _outcome(answer: RunAnswer) -> CheckOutcome:
    return CheckOutcome(
        exit_code=answer.exit_code,
        signal=answer.signal,
        timed_out=answer.timed_out,
        stdout=_tail(answer.stdout),
        stderr=_tail(answer.stderr),
        duration_ms=answer.duration_ms,
        error="It ran out of time." if answer.timed_out else None,
    )


def _tail(captured: Capture) -> str:
    kept = (b"" if captured.dropped_bytes else captured.head) + captured.tail
    return kept[-CHECK_TAIL_BYTES:].decode("utf-8", "replace")
