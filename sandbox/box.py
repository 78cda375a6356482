"""One box as the rooms above see it: requests in, answers or typed errors out. The link is `lifeline`'s."""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from sandbox import replies
from sandbox.errors import GuestRefused, LossReason
from sandbox.lifeline import MARGIN_S, RELINK_S, Lifeline
from sandbox.link import LinkClosed, LinkTimeout
from sandbox.pipes import Listener, Pipe, PipeBroken, Tty
from sandbox.requests import (
    Background,
    BackgroundOutput,
    CallMark,
    EditAnswer,
    EditRequest,
    ReadAnswer,
    ReadRequest,
    RunAnswer,
    RunRequest,
    StatAnswer,
    Version,
    WriteAnswer,
    WriteRequest,
)
from sandbox.wire import Frame, Op, RefusalCode

FILE_TIMEOUT_S = 120.0
SHORT_TIMEOUT_S = 20.0


class Box(Lifeline):
    """A running container and its guest. Thread-safe; many requests may be under way at once."""

    image_id = ""
    """Digest of the image that it was started from; "" where there is none."""

    def run(self, request: RunRequest, on_output: Callable[[bytes], None] | None = None) -> RunAnswer:
        """How the command ended. `on_output` gets all output, from the beginning, once there is much of it.

        Raises:
            BoxLost: the box is gone, or its shell is; the command may have had effects.
            GuestRefused: it was not run (or, with `mark.join`, is not known).
        """
        if (request.command is None) == (request.argv is None):
            raise ValueError("a run has either a command or an argv")
        head = {
            **_mark(Op.RUN, request.mark),
            "argv": list(request.argv) if request.argv is not None else None,
            "cwd": request.cwd,
            "timeout_ms": request.timeout_ms,
            "keep_bytes": request.keep_bytes,
            "env": dict(request.env),
            "stream": on_output is not None,
            "stream_bytes": request.stream_bytes,
            "background": request.background,
        }
        body = (request.command or "").encode("utf-8", "surrogatepass")
        timeout_s = request.timeout_ms / 1000 + MARGIN_S
        try:
            return self._ask(
                head, body, timeout_s, lambda frame: replies.parse_run(frame, request.keep_bytes), on_output
            )
        except GuestRefused as refused:
            if refused.code is RefusalCode.NO_SHELL and self.info.shell:
                # A command removed it. Without it the box is of no more use, and a new one has it again.
                raise self._lose(LossReason.ENDED, refused.message) from None
            raise

    def open_pipe(
        self, argv: Sequence[str], env: Mapping[str, str], listener: Listener, *, tty: Tty | None = None
    ) -> Pipe:
        """A command in the workspace, started with pipes for its input and output; it ends with the link.

        Args:
            argv: Its words; no shell reads them.
            env: Variables for it, beside those of all commands.
            listener: Hears what it prints, and of its end.
            tty: Its size, for a terminal of its own in place of pipes; standard error then is part of the output.

        Raises:
            BoxLost: the box is gone, or breaks the rules.
            GuestRefused: it cannot be started.
            PipeBroken: the link broke meanwhile.
        """
        head: dict[str, Any] = {"op": Op.PIPE_OPEN, "argv": list(argv), "env": dict(env)}
        head["errors"] = listener.on_errors is not None
        if tty is not None:
            head["tty"] = asdict(tty)
        pipe, answer = self._open(head, listener)
        if tty is not None and answer.get("tty") is not True:
            pipe.close()
            raise GuestRefused(RefusalCode.INVALID_PARAM, "the box is of an earlier release and has no terminals")
        return pipe

    def connect(self, port: int, listener: Listener) -> Pipe:
        """A connection to a port of the box's loopback; it ends with the link. `listener` must have `on_eof`.

        Raises:
            BoxLost: the box is gone.
            GuestRefused: nothing listens there (NOT_FOUND), or there are too many.
            PipeBroken: the link broke meanwhile.
        """
        return self._open({"op": Op.PIPE_CONNECT, "port": port}, listener)[0]

    def _open(self, head: dict[str, Any], listener: Listener) -> tuple[Pipe, dict[str, Any]]:
        link = self._live_link(time.monotonic() + RELINK_S)
        pipe = link.pipes.new(listener)
        try:
            answer = link.ask({**head, "pipe_id": pipe.number}, b"", SHORT_TIMEOUT_S)
            replies.check_refusal(answer)
        except LinkClosed as closed:
            if closed.violation:
                raise self._lose(LossReason.PROTOCOL, closed.violation) from None
            raise PipeBroken("the link to the box broke") from closed
        except LinkTimeout as error:
            raise PipeBroken("the box does not answer") from error
        except replies.BadReply as error:
            raise self._lose(LossReason.PROTOCOL, f"bad answer to {head['op']}: {error}") from None
        except GuestRefused:
            link.pipes.forget(pipe)
            raise
        return pipe, answer.head

    def read(self, request: ReadRequest) -> ReadAnswer:
        """Lines of a file.

        Raises:
            BoxLost, GuestRefused.
        """
        head = {
            **_mark(Op.READ, request.mark),
            "path": request.path,
            "offset": request.offset,
            "limit": request.limit,
            "max_bytes": request.max_bytes,
        }
        return self._ask(head, b"", FILE_TIMEOUT_S, lambda frame: replies.parse_read(frame, request.max_bytes))

    def edit(self, request: EditRequest) -> EditAnswer:
        """What the edit did.

        Raises:
            BoxLost: the box is gone; the edit was made or not, never half.
            GuestRefused: it was not made.
        """
        head = {**_mark(Op.EDIT, request.mark), "path": request.path, "expected": _expected(request.expected)}
        edits = [[edit.old, edit.new, edit.replace_all] for edit in request.edits]
        return self._ask(head, json.dumps(edits).encode(), FILE_TIMEOUT_S, replies.parse_edit)

    def write(self, request: WriteRequest) -> WriteAnswer:
        """What the write did.

        Raises:
            BoxLost: the box is gone; the file was written or not, never half.
            GuestRefused: it was not written.
        """
        head = {
            **_mark(Op.WRITE, request.mark),
            "path": request.path,
            "expected": _expected(request.expected),
            "must_be_new": request.must_be_new,
        }
        return self._ask(head, request.content, FILE_TIMEOUT_S, replies.parse_write)

    def stat(self, session: str, path: str) -> StatAnswer:
        """What lies at a path (relative to the session's cwd).

        Raises:
            BoxLost, GuestRefused.
        """
        head = {"op": Op.STAT, "session": session, "path": path}
        return self._ask(head, b"", SHORT_TIMEOUT_S, replies.parse_stat)

    def begin_step(self, session: str, generation: int, step: int) -> None:
        """The answers of earlier steps of the session may be dropped.

        Raises:
            BoxLost, GuestRefused.
        """
        head = {"op": Op.BEGIN_STEP, "session": session, "generation": generation, "step": step}
        self._ask(head, b"", SHORT_TIMEOUT_S, _nothing)

    def ping(self) -> None:
        """Come back when the guest answered.

        Raises:
            BoxLost.
        """
        self._ask({"op": Op.PING}, b"", SHORT_TIMEOUT_S, _nothing)

    def cancel(self, key: str) -> bool:
        """True when a running call or its leftovers are being ended.

        Raises:
            BoxLost.
        """
        return self._ask({"op": Op.CANCEL, "key": key}, b"", SHORT_TIMEOUT_S, lambda frame: frame.head["found"] is True)

    def background_output(self, session: str, background_id: str, offset: int, max_bytes: int) -> BackgroundOutput:
        """At most so many bytes (and at most 1 MiB) of a background command's output, from the offset on.

        Raises:
            BoxLost.
            GuestRefused: NOT_FOUND: the session has no such background command.
        """
        head = {
            "op": Op.BACKGROUND_READ,
            "session": session,
            "name": background_id,
            "offset": offset,
            "max_bytes": max_bytes,
        }
        return self._ask(head, b"", SHORT_TIMEOUT_S, lambda frame: replies.parse_background_output(frame, max_bytes))

    def kill_background(self, session: str, background_id: str) -> Background:
        """End a background command with all its processes; what it is then. No error when it had ended.

        Raises:
            BoxLost.
            GuestRefused: NOT_FOUND, or FROZEN.
        """
        head = {"op": Op.BACKGROUND_KILL, "session": session, "name": background_id}
        return self._ask(head, b"", SHORT_TIMEOUT_S, lambda frame: replies.parse_background(frame.head))

    def backgrounds(self, session: str | None) -> tuple[Background, ...]:
        """The background commands of a session (None: of all), in the order of their start; ended ones too.

        Raises:
            BoxLost.
        """
        head = {"op": Op.BACKGROUND_LIST, "session": session}
        return self._ask(head, b"", SHORT_TIMEOUT_S, replies.parse_backgrounds)

    def freeze(self) -> None:
        """Stop all commands; their time limits stand still.

        Raises:
            BoxLost.
        """
        self.wants_frozen = True
        self._ask({"op": Op.FREEZE}, b"", SHORT_TIMEOUT_S, _nothing)
        self.is_frozen = True

    def thaw(self) -> None:
        """Let all commands go on.

        Raises:
            BoxLost.
        """
        self._ask({"op": Op.THAW}, b"", SHORT_TIMEOUT_S, _nothing)
        self.wants_frozen = self.is_frozen = False


def _mark(op: Op, mark: CallMark) -> dict[str, Any]:
    # By hand: `asdict` copies what it finds, which takes longer than all else that is done for a small request.
    return {
        "op": op,
        "key": mark.key,
        "digest": mark.digest,
        "session": mark.session,
        "generation": mark.generation,
        "step": mark.step,
        "join": mark.join,
    }


def _expected(version: Version | None) -> dict[str, Any] | None:
    return None if version is None else asdict(version)


def _nothing(_: Frame) -> None:
    return None
