"""Own tools on a node: gate → **a child process for each call** → ToolResult.

The tool's code is the operator's, its arguments are the model's: it runs beside neither the engine's socket nor
Redis' password, as a user of its own where the node is root, and is killed with all it started at its limit. A call
that an earlier life of the node started is never started again.
"""

import contextlib
import hashlib
import json
import logging
import os
import stat
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from sandbox.box import Box
from sandbox.errors import GuestRefused, SandboxError
from sandbox.requests import CallMark, RunAnswer, RunRequest
from tools.base import ErrorCode, ToolFailure, ToolResult
from tools.loading import LoadedTools
from tools.refusals import CODES
from tools.registry import Registry
from tools.sealing import sealed
from worker.beneath import remove_tree
from worker.gates.gate import GateCall
from worker.own_process import PRINTED_BYTES, ChildBabbled, ChildSilent, OwnProcess
from worker.own_secrets import Secrets, redacted, redacted_text
from worker.own_wire import (
    FROM_CHILD,
    LINE_BYTES,
    OWN_LIMITS,
    AskBox,
    BoxSaid,
    Failed,
    Job,
    OwnLimits,
    Ready,
    Result,
    line,
)

log = logging.getLogger(__name__)

START_S = 20.0
"""How long a child may take to import its tool; below what a coordinator waits beyond a call's own limit."""
BOX_OUTPUT_BYTES = 1024 * 1024
"""Of the head, and of the tail, of each stream of a command in the box."""
LOGGED_CHARS = PRINTED_BYTES // 2
MAY_HAVE_RUN = "It may have run in part; look before doing it again."


@dataclass
class _Running:
    """One call under way. `is_cancelled`, `process` and `box_key` are guarded by the lock of its OwnTools."""

    box: Box | None
    process: OwnProcess | None = None
    is_cancelled: bool = False
    box_key: str = ""
    """Of the command that runs in the box for it; "" for none."""


class OwnTools:
    """Runs calls of tools that have a process of their own. Thread-safe; one per node."""

    def __init__(
        self,
        loaded: LoadedTools,
        secrets: Secrets,
        scratch: Path,
        *,
        limits: OwnLimits = OWN_LIMITS,
        start_s: float = START_S,
    ) -> None:
        self._loaded = loaded
        self._secrets = secrets
        self._scratch = scratch
        self._limits = limits
        self._start_s = start_s
        self._guard = threading.Lock()
        self._running: dict[str, _Running] = {}

    @property
    def registry(self) -> Registry:
        """All tools of this node."""
        return self._loaded.registry

    def run(self, call: GateCall, box: Box | None) -> ToolResult:
        """Return the call's result.

        Args:
            call: A call of a tool that has a process of its own.
            box: The session's box; None for a tool that runs on the worker.

        Raises:
            ToolFailure: it has none; says why.
            BoxLost: the box ended under it.
        """
        order, tool = call.order, call.tool
        if call.joining:
            raise ToolFailure(ErrorCode.OUTCOME_UNKNOWN, f"The node was restarted under this call. {MAY_HAVE_RUN}")
        secrets = self._secrets.of(order.principal, tool.secrets, tool.name)
        running = _Running(box)
        try:
            with self._home() as home, self._started(str(order.key), home, running):
                said = self._converse(running, call, line(self._job(call, secrets, home)))
        except ToolFailure as exc:
            raise ToolFailure(exc.code, redacted_text(exc.message, secrets)) from exc
        finally:
            _log_prints(running, call, secrets)
        return _result_of(said, secrets, tool.name)

    def cancel(self, call_keys: Iterable[str]) -> None:
        """End the running ones of these calls."""
        with self._guard:
            found = [self._running[key] for key in call_keys if key in self._running]
            for one in found:
                one.is_cancelled = True
                if one.process is not None:
                    one.process.kill()
                if one.box is not None and one.box_key:
                    # A box that does not answer holds up nobody.
                    name = f"cancel-{one.box_key}"
                    threading.Thread(target=_cancel, args=(one.box, one.box_key), name=name, daemon=True).start()

    def close(self) -> None:
        """End every call that runs, and remove the directory of their homes."""
        with self._guard:
            keys = list(self._running)
        self.cancel(keys)
        self.sweep()

    def sweep(self) -> None:
        """Remove the directory of the homes, also one that an earlier life of the node left.

        Raises:
            OSError: it is not ours, or cannot be removed.
        """
        with contextlib.suppress(FileNotFoundError):
            _checked_directory(self._scratch)
            remove_tree(self._scratch)

    @contextlib.contextmanager
    def _home(self) -> Iterator[Path]:
        """Yield an empty directory for one call; it is gone afterwards."""
        with contextlib.suppress(FileExistsError):
            self._scratch.mkdir(mode=0o711)
            # Each home is its own user's: they pass through here, and see nothing of each other.
            self._scratch.chmod(0o711)
        _checked_directory(self._scratch)
        home = Path(tempfile.mkdtemp(dir=self._scratch))
        try:
            yield home
        finally:
            try:
                remove_tree(home)
            except OSError as exc:
                log.warning("a tool's directory was left", extra={"path": str(home), "error": str(exc)})

    @contextlib.contextmanager
    def _started(self, key: str, home: Path, running: _Running) -> Iterator[None]:
        """Give the call its child, which is ended with all it started at the end of the block."""
        with self._guard:
            self._running[key] = running
        try:
            with OwnProcess(home) as process:
                with self._guard:
                    running.process = process
                yield
        finally:
            with self._guard:
                del self._running[key]

    def _job(self, call: GateCall, secrets: Mapping[str, str], home: Path) -> Job:
        order = call.order
        return Job(
            tool=order.tool,
            arguments=order.arguments,
            principal=order.principal,
            attributes=order.attributes,
            session=order.key.session,
            call_key=str(order.key),
            secrets=dict(secrets),
            files=self._loaded.files,
            digest=self._loaded.digest,
            home=str(home),
            has_own_user=os.geteuid() == 0,
            limits=self._limits,
        )

    def _converse(self, running: _Running, call: GateCall, job: bytes) -> Result | Failed:
        """Give the child its job and answer its questions until it says how the call ended."""
        process, name = running.process, call.tool.name
        assert process is not None
        process.say(job)
        limit_s, is_ready, asked = call.tool.timeout_s(call.arguments), False, 0
        deadline = time.monotonic() + self._start_s
        while True:
            try:
                row = None if running.is_cancelled else process.hear(deadline)
            except ChildSilent as exc:
                raise _too_slow(name, limit_s if is_ready else None, self._start_s) from exc
            except ChildBabbled as exc:
                words = f"{name} gave a result of more than {LINE_BYTES} bytes. {MAY_HAVE_RUN}"
                raise ToolFailure(ErrorCode.LIMIT_REACHED, words) from exc
            said = self._understood(row, running, name)
            match said:
                case Ready():
                    # Once only: the tool shares the child's descriptors and could ask for ever more time.
                    deadline = deadline if is_ready else time.monotonic() + limit_s
                    is_ready = True
                case AskBox():
                    asked += 1
                    answer = self._in_box(running, call, said, f"{call.order.key}/{asked}", deadline)
                    process.say(line(answer))
                case Result() | Failed():
                    return said

    def _understood(self, row: bytes | None, running: _Running, name: str) -> Ready | AskBox | Result | Failed:
        process = running.process
        assert process is not None
        if running.is_cancelled:
            raise ToolFailure(ErrorCode.CANCELLED, f"{name} was cancelled and ended. {MAY_HAVE_RUN}")
        if row is None:
            process.close()
            if running.is_cancelled:
                raise ToolFailure(ErrorCode.CANCELLED, f"{name} was cancelled and ended. {MAY_HAVE_RUN}")
            words = f"{name} ended {process.ending} without a result. {MAY_HAVE_RUN}"
            raise ToolFailure(ErrorCode.INTERNAL_ERROR, words)
        try:
            return FROM_CHILD.validate_json(row)
        except ValidationError as exc:
            words = f"{name} broke the talk with its node, and was ended. {MAY_HAVE_RUN}"
            raise ToolFailure(ErrorCode.INTERNAL_ERROR, words) from exc

    def _in_box(self, running: _Running, call: GateCall, asked: AskBox, key: str, deadline: float) -> BoxSaid:
        """Run a command in the session's box under a key of its own.

        Raises:
            BoxLost: the box ended.
        """
        if running.box is None:
            words = 'This tool runs on the worker and has no box; declare it with runs_on="box".'
            return BoxSaid(code=ErrorCode.INTERNAL_ERROR, message=words)
        with self._guard:
            if running.is_cancelled:
                return BoxSaid(code=ErrorCode.CANCELLED, message="The call was cancelled.")
            running.box_key = key
        left_s = max(0.001, min(asked.timeout_s, deadline - time.monotonic()))
        is_text = isinstance(asked.command, str)
        request = RunRequest(
            mark=_mark(call, asked, key),
            command=asked.command if isinstance(asked.command, str) else None,
            argv=None if is_text else tuple(asked.command),
            timeout_ms=int(left_s * 1000) or 1,
            keep_bytes=BOX_OUTPUT_BYTES,
        )
        try:
            answer = running.box.run(request)
        except GuestRefused as exc:
            return BoxSaid(code=CODES[exc.code], message=exc.message)
        finally:
            with self._guard:
                running.box_key = ""
        return _box_said(answer)


def _cancel(box: Box, key: str) -> None:
    with contextlib.suppress(SandboxError):
        box.cancel(key)


def _mark(call: GateCall, asked: AskBox, key: str) -> CallMark:
    order = call.order.key
    digest = hashlib.sha256(asked.model_dump_json().encode()).hexdigest()
    return CallMark(key=key, digest=digest, session=order.session, generation=order.generation, step=order.step)


def _box_said(answer: RunAnswer) -> BoxSaid:
    return BoxSaid(
        exit_code=answer.exit_code,
        stdout=answer.stdout.text(),
        stderr=answer.stderr.text(),
        timed_out=answer.timed_out,
    )


def _result_of(said: Result | Failed, secrets: Mapping[str, str], name: str) -> ToolResult:
    if isinstance(said, Failed):
        raise ToolFailure(said.code, redacted_text(said.message, secrets))
    try:
        result = ToolResult.model_validate_json(json.dumps(redacted(said.result, secrets)), strict=True)
    except (ValidationError, ValueError) as exc:
        words = f"{name} gave a result that is none. {MAY_HAVE_RUN}"
        raise ToolFailure(ErrorCode.INTERNAL_ERROR, words) from exc
    return sealed(result, name)


def _too_slow(name: str, limit_s: float | None, start_s: float) -> ToolFailure:
    if limit_s is None:
        words = f"{name} did not start within {start_s:g} s; it did not run."
        return ToolFailure(ErrorCode.INTERNAL_ERROR, words)
    words = f"{name} did not end within {limit_s:g} s and was ended with all it started. {MAY_HAVE_RUN}"
    return ToolFailure(ErrorCode.TIMEOUT, words)


def _log_prints(running: _Running, call: GateCall, secrets: Mapping[str, str]) -> None:
    process = running.process
    if process is not None and process.printed:
        # More is kept than is logged: a secret that was cut through at the beginning is not found, and not shown.
        printed = redacted_text(process.printed.decode(errors="replace"), secrets)[-LOGGED_CHARS:]
        log.warning("an own tool printed: %s", printed, extra={"call_id": str(call.order.key), "tool": call.order.tool})


def _checked_directory(path: Path) -> None:
    """Raise unless the path is a directory of this process's user: it lies where others may write.

    Raises:
        OSError: it is something else.
    """
    status = path.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
        raise PermissionError(f"{path} belongs to somebody else; remove it")
