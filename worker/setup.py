"""The image that a session's box runs on, built or set up first where the session asks: order → **setup** → image.

Set-up commands run as root in a box of their own, which has a network profile of its own, none of the session's
variables and of its workspace only the files they name. Everything they can see goes into the name of the result, so
that the next session with the same wishes finds it ready.
"""

import hashlib
import json
import logging
import shutil
import stat
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

from sandbox.box import Box
from sandbox.engine import DockerEngine
from sandbox.errors import SandboxError
from sandbox.images import Image
from sandbox.making import context_digest, made_tag
from sandbox.requests import CallMark, RunRequest
from sandbox.spec import BoxSpec, Network
from worker.beneath import Tree
from worker.contract.orders import BoxOrder
from worker.errors import BoxUnavailable

log = logging.getLogger(__name__)

LAYOUT_VERSION = 1
"""Part of every name: raised when the same wishes make another image."""
TAIL_BYTES = 3000
KEEP_S = 300.0
LOOK_S = 0.5
MAX_FILE_BYTES = 64 * 1024 * 1024
CLEAN = "rmdir /home/agent 2>/dev/null; true"
"""The home of this box's user, which is root: the session's user gets one of its own."""


class Setup:
    """Finds or makes the images of this node's sessions. Thread-safe; each image is made once at a time."""

    def __init__(self, engine: DockerEngine, tell: Callable[[str, str], None] = lambda session, words: None) -> None:
        """`tell` is told a session and how far its image is."""
        self._engine = engine
        self._tell = tell
        self._guard = threading.Lock()
        self._making: dict[str, threading.Lock] = {}
        self._active: dict[str, Box | None] = {}
        """Sessions whose image is being made, with the box that set-up runs in."""
        self._cancelled: set[str] = set()

    def resolved(self, order: BoxOrder, like: Callable[[], BoxSpec]) -> BoxOrder:
        """The order with the image that is made for it; takes as long as that does when it was not made yet.

        `like` gives the session's own specification, from which set-up takes limits and runtime.

        Raises:
            BoxUnavailable: it cannot be made; says why, and what was printed.
        """
        if not order.extras.makes_image:
            return order
        with self._guard:
            self._active[order.session] = None
        try:
            return self._resolved(order, like)
        finally:
            with self._guard:
                self._active.pop(order.session)
                self._cancelled.discard(order.session)

    def cancel(self, session: str) -> None:
        """Break off what is being made for the session, if anything is."""
        with self._guard:
            if session not in self._active:
                return
            self._cancelled.add(session)
            box = self._active[session]
        if box is not None:
            box.close()

    def close(self) -> None:
        """Break off everything."""
        with self._guard:
            sessions = list(self._active)
        for session in sessions:
            self.cancel(session)

    def _resolved(self, order: BoxOrder, like: Callable[[], BoxSpec]) -> BoxOrder:
        extras = order.extras
        deadline = time.monotonic() + extras.setup_timeout_s
        try:
            image = self._built(order, deadline) if extras.dockerfile else order.image
            if extras.setup:
                image = self._set_up(order, like(), image, deadline)
        except (SandboxError, OSError) as exc:
            self._check_wanted(order.session)
            raise BoxUnavailable(f"the session's image cannot be made: {exc}") from exc
        return order.model_copy(update={"image": image})

    def _built(self, order: BoxOrder, deadline: float) -> str:
        context, dockerfile = Path(order.extras.context), Path(order.extras.dockerfile or "")
        tag = made_tag(hashlib.sha256(f"build\0{context_digest(context, dockerfile)}".encode()).hexdigest())
        with self._one_at_a_time(tag, order.session, deadline):
            if not self._is_there(tag):
                self._tell(order.session, f"{dockerfile.name} is being built.")
                left_s = max(1.0, deadline - time.monotonic())
                wanted = partial(self._check_wanted, order.session)
                self._engine.maker.build(context, dockerfile, tag, order.session, left_s, wanted)
                self._engine.images.count(tag)
        return tag

    def _set_up(self, order: BoxOrder, like: BoxSpec, ref: str, deadline: float) -> str:
        files = dict(_files(order))
        with self._engine.images.held(ref, order.principal) as image:
            tag = made_tag(_digest(order, like, image, files))
            with self._one_at_a_time(tag, order.session, deadline):
                if not self._is_there(tag):
                    self._make(order, replace(like, image=image.id), image, files, tag, deadline)
        return tag

    def _is_there(self, tag: str) -> bool:
        if self._engine.images.find(tag) is None:
            return False
        self._engine.maker.used(tag)
        return True

    @contextmanager
    def _one_at_a_time(self, tag: str, session: str, deadline: float) -> Iterator[None]:
        with self._guard:
            lock = self._making.setdefault(tag, threading.Lock())
        while not lock.acquire(timeout=LOOK_S):
            self._check_wanted(session)
            if time.monotonic() > deadline:
                raise BoxUnavailable("another session makes the same image, and that takes too long")
        try:
            yield
        finally:
            lock.release()

    def _make(
        self, order: BoxOrder, like: BoxSpec, base: Image, files: dict[str, bytes], tag: str, deadline: float
    ) -> None:
        scratch = Path(tempfile.mkdtemp(prefix="setup-", dir=order.session_dir))
        try:
            workspace, spill = scratch / "workspace", scratch / "spill"
            _write(workspace, files)
            spill.mkdir()
            hosts = order.extras.setup_hosts
            spec = replace(
                like,
                workspace_dir=workspace,
                spill_dir=spill,
                uid=0,
                gid=0,
                env={},
                network=Network.ALLOWLIST if hosts else Network.NONE,
                egress=hosts,
                profile="setup",
                installs=True,
            )
            box = self._engine.start(spec, session=f"{order.session}.setup", generation=order.generation)
            try:
                with self._guard:
                    self._active[order.session] = box
                self._check_wanted(order.session)
                self._run(box, order, deadline)
                self._engine.maker.keep(box, base, tag, order.session, KEEP_S)
                self._engine.images.count(tag)
            finally:
                with self._guard:
                    self._active[order.session] = None
                box.close()
        finally:
            shutil.rmtree(scratch, ignore_errors=True)

    def _check_wanted(self, session: str) -> None:
        with self._guard:
            is_cancelled = session in self._cancelled
        if is_cancelled:
            raise BoxUnavailable("the session ended while its image was being made")

    def _run(self, box: Box, order: BoxOrder, deadline: float) -> None:
        for number, command in enumerate((*order.extras.setup, CLEAN)):
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                raise BoxUnavailable(f"set-up took longer than {order.extras.setup_timeout_s:g} s")
            if command is not CLEAN:
                self._tell(order.session, f"Set-up command {number + 1} of {len(order.extras.setup)} runs.")
            mark = CallMark(key=f"setup-{number}", digest="", session="setup", generation=order.generation, step=number)
            request = RunRequest(
                mark,
                command=command,
                timeout_ms=int(left_s * 1000) + 1,
                keep_bytes=TAIL_BYTES,
                env={"HOME": "/root", "USER": "root", "LOGNAME": "root"},
            )
            answer = box.run(request)
            if answer.timed_out:
                raise BoxUnavailable(f"set-up took longer than {order.extras.setup_timeout_s:g} s, in: {command[:200]}")
            if answer.exit_code != 0:
                printed = (answer.stdout.text() + answer.stderr.text())[-TAIL_BYTES:]
                how = f"signal {answer.signal}" if answer.signal else f"exit code {answer.exit_code}"
                raise BoxUnavailable(f"the set-up command {command[:200]!r} ended with {how}:\n{printed}")
            log.info("a set-up command ran", extra={"session_id": order.session, "number": number})


def _digest(order: BoxOrder, like: BoxSpec, image: Image, files: dict[str, bytes]) -> str:
    extras = order.extras
    seen = {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
    made_of = ["setup", LAYOUT_VERSION, image.id, extras.setup, extras.setup_hosts, seen, like.runtime]
    return hashlib.sha256(json.dumps(made_of, sort_keys=True).encode()).hexdigest()


def _files(order: BoxOrder) -> Iterator[tuple[str, bytes]]:
    """Name and content of the files that set-up sees, read without following links."""
    if not order.extras.setup_files:
        return
    with Tree(Path(order.workspace).resolve()) as tree:
        for name in order.extras.setup_files:
            status = tree.status(name)
            if status is None or not stat.S_ISREG(status.st_mode) or status.st_size > MAX_FILE_BYTES:
                raise BoxUnavailable(f"--setup-file {name} is no file of the workspace, or too large")
            yield name, tree.read(name)


def _write(workspace: Path, files: dict[str, bytes]) -> None:
    workspace.mkdir()
    for name, content in files.items():
        target = workspace / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
