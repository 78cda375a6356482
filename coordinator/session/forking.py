"""Make a fork of a session, which goes on from one of its steps in a copy of its workspace.

command, service → `demand_forkable` → the workspace's copy (`copy_kept`, or `Copying` where it runs) → `lay_out` →
resume: a fork lies on the volume as a session that was broken off between two steps, and is gone on with as such a one.
"""

import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from coordinator.cluster.parts import Cluster
from coordinator.endpoint.model import ModelSettings
from coordinator.errors import ConfigError, TranscriptError
from coordinator.session.box_options import BoxOptions
from coordinator.session.box_order import box_order
from coordinator.session.call_events import CallStarted
from coordinator.session.model_table import ModelTable
from coordinator.session.redact import Redactor
from coordinator.session.request import SessionRequest
from coordinator.session.resume import Resumable, kept_env
from coordinator.session.saved import save_session
from coordinator.session.session_events import (
    LimitsChanged,
    SessionEnded,
    SessionEnding,
    SessionForked,
    SessionStarted,
    TurnEnded,
)
from coordinator.session.step_events import ReplyTaken, StepStarted, UserMessage
from coordinator.session.transcript import CHILDREN_DIR, VERSION, Entry, segment_path
from coordinator.session.workspace_choice import Chosen
from worker.contract.mcp import MCP_FILE
from worker.contract.orders import WorkspaceMode
from worker.contract.places import has_private_copy

GENERATION = 1
"""Of the segment that is laid out; whoever goes on has the next one."""
REASON = "a fork works on a copy"


def demand_forkable(found: Resumable, at_step: int | None, *, is_live: bool) -> None:
    """Return if a session can be forked as it is now.

    Args:
        found: The session.
        at_step: The last step that the fork is to have; None is the last one there is.
        is_live: Whether a coordinator runs it.

    Raises:
        ConfigError: it cannot; says why, and what to do.
    """
    name, workspace = found.session_id, found.saved.to_request(ModelTable()).workspace
    if found.rebuilt.started is None:
        raise ConfigError(f"Session {name} has not begun, or its transcript does not say how it began.")
    if not is_live and found.rebuilt.ended is None:
        raise ConfigError(
            f"Session {name} was broken off, and nobody knows what its last step did. Let it go on first: "
            f"sandhog resume {name}"
        )
    if workspace.mode is not WorkspaceMode.COPY:
        if not workspace.directory.is_dir():
            raise ConfigError(f"Session {name} worked on {workspace.directory}, which is not there.")
    elif not is_live and not has_private_copy(found.session_dir):
        raise ConfigError(
            f"The workspace of session {name} is gone: the private copy of a session that has completed is kept only "
            "where that was asked for (`keep`, or --keep), that of any other one for a while. Fork a session while it "
            "runs, or keep its copy."
        )
    step_of(found.reading.entries, at_step)


def step_of(entries: Sequence[Entry], at_step: int | None, last: int | None = None) -> int:
    """Return the last step that a fork has whose workspace is that of the last step.

    Args:
        entries: The session's transcript.
        at_step: The step that is wanted; None is the last one.
        last: The last step whose work is in the copy; None is the last one of the transcript.

    Raises:
        ConfigError: there is no such step, or the workspace of that time is not known any more.
    """
    taken, step = 0, 0
    called = set()
    for entry in entries:
        match entry.event:
            case StepStarted():
                step = entry.event.step
            case ReplyTaken():
                taken = step
            case CallStarted():
                called.add(entry.event.step)
    last = taken if last is None else last
    if at_step is None or at_step == last:
        return last
    if at_step > last:
        raise ConfigError(f"at_step: the session has {last} steps that are over, and no step {at_step}.")
    later = sorted(one for one in called if at_step < one <= last)
    if later:
        raise ConfigError(
            f"at_step: only the workspace as it is after step {last} is known, and step {later[0]} made calls behind "
            f"step {at_step}. Give {last}, or leave it out."
        )
    return at_step


def request_of(found: Resumable, models: ModelTable) -> SessionRequest:
    """Return what a fork is asked for where nothing else is wanted: what the session was, on a copy."""
    asked = found.saved.to_request(models)
    chosen = asked.workspace
    if chosen.mode is not WorkspaceMode.COPY:
        chosen = Chosen(chosen.directory, WorkspaceMode.COPY, REASON, chosen.policy, as_root=False)
    # What judges the session, and where its result goes, were its own.
    return replace(asked, workspace=chosen, apply=False, check=None, keep="unfinished")


async def copy_kept(found: Resumable, cluster: Cluster, target: str) -> None:
    """Let a node copy the workspace of a session that has ended.

    Raises:
        NoBox: it cannot be had; says why.
    """
    placed = found.rebuilt.placed
    node = await cluster.placement.any_node(placed.node if placed is not None else None)
    request = found.saved.to_request(ModelTable())
    order = box_order(request, found.session_id, found.session_dir, found.reading.generation)
    await cluster.placement.copy(order, node, target, found.session_dir.with_name(target))


def lay_out(
    found: Resumable,
    target: str,
    request: SessionRequest,
    model: ModelSettings,
    step: int,
    *,
    env: Mapping[str, str] | None = None,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
) -> None:
    """Write down what a fork knows; its workspace is there already.

    Args:
        found: The session, as it was when its workspace was copied or later.
        target: The fork's id.
        request: What is asked of the fork.
        model: How its model is asked.
        step: The last step that it has.
        env: Values of the box's variables beside those that are kept of the session.
        now: The time of day.

    Raises:
        ConfigError: values of the box's variables are missing.
        TranscriptError: it cannot be written.
    """
    target_dir = found.session_dir.with_name(target)
    values = {**kept_env(found.session_dir), **(env or {})}
    missing = ", ".join(name for name in request.box.extras.env_names if name not in values)
    if missing:
        raise ConfigError(
            f"The values of these variables were forgotten when session {found.session_id} completed: {missing}. Give "
            "them anew (--env), or fork a session before it completes."
        )
    names = tuple(dict.fromkeys([*request.box.extras.env_names, *(env or {})]))
    box = BoxOptions(request.box.extras.model_copy(update={"env_names": names}), values)
    try:
        box.lay_out(target_dir)
        if (found.session_dir / MCP_FILE).exists():
            shutil.copy2(found.session_dir / MCP_FILE, target_dir / MCP_FILE)
        if (found.session_dir / CHILDREN_DIR).is_dir():
            shutil.copytree(found.session_dir / CHILDREN_DIR, target_dir / CHILDREN_DIR, symlinks=True)
        save_session(target_dir, target, replace(request, box=box), model, Redactor(values.values()))
        at = now().isoformat(timespec="milliseconds").replace("+00:00", "Z")
        lines = _lines(found, target, request, model, step, at)
        _write(segment_path(target_dir, target, GENERATION), lines)
    except OSError as exc:
        raise TranscriptError(f"{target_dir} cannot be written: {exc}") from exc


def discard(state_dir: Path, target: str) -> None:
    """Remove what was made of a fork that cannot be; blocks for the removal."""
    with suppress(OSError):
        shutil.rmtree(state_dir / "sessions" / target)


def _lines(
    found: Resumable, target: str, request: SessionRequest, model: ModelSettings, step: int, at: str
) -> list[dict[str, Any]]:
    """Return the fork's first segment."""
    own = {
        "session_id": target,
        "model": model.model,
        "workspace_mode": WorkspaceMode.COPY.value,
        "workspace_reason": request.workspace.reason,
        "max_steps": request.limits.steps,
        "limits": request.limits.model_dump(mode="json"),
        "forked_from": found.session_id,
    }
    events: list[tuple[str, dict[str, Any]]] = []
    for entry in through(found.reading.entries, step):
        if isinstance(entry.event, SessionStarted):
            events.append((at, {**entry.fields, **own}))
        else:
            events.append((entry.at, entry.fields))
    events.append((at, SessionForked(session_id=found.session_id, at_step=step).model_dump(mode="json")))
    return [{"v": VERSION, "seq": seq, "at": one, **fields} for seq, (one, fields) in enumerate(events, start=1)]


def through(entries: Sequence[Entry], step: int) -> list[Entry]:
    """Return the lines of a session up to the end of a step, without its own end and limits."""
    kept: list[Entry] = []
    is_taken = step == 0
    now = 0
    for entry in entries:
        match entry.event:
            case StepStarted():
                now = entry.event.step
                if now > step:
                    break
            case ReplyTaken():
                is_taken = is_taken or now == step
            case UserMessage() | TurnEnded() if is_taken:
                # Said behind the step.
                break
            case SessionEnding() | SessionEnded() | LimitsChanged():
                continue
        kept.append(entry)
    return kept


def _write(path: Path, lines: Sequence[Mapping[str, Any]]) -> None:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
        for line in lines:
            text = json.dumps(line, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
            file.write(text.encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())
