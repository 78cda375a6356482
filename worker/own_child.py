"""`python -m worker.own_child FD`: one call of an own tool, in a process of its own.

Reads its job from standard input, answers on descriptor FD. It loads the tools with the rights it was started with,
gives them up for good, and only then runs the tool. When the node's end of its input closes, it ends with all its
processes.
"""

import ctypes
import os
import queue
import resource
import signal
import sys
import threading
import traceback
from collections.abc import Sequence
from contextlib import suppress
from typing import BinaryIO, NoReturn, cast

from pydantic import BaseModel

from sandbox.box import Box
from sandbox.requests import CallMark
from tools.base import AnyTool, ErrorCode, RunContext, ToolFailure, ToolResult
from tools.context import BoxRun, ToolContext
from tools.loading import ToolsUnusable, load_tools
from tools.own import FunctionTool
from tools.schema import parse_arguments
from tools.sealing import checked
from worker.own_imports import hold_import_paths
from worker.own_wire import AskBox, BoxSaid, Failed, Job, Ready, Result, line, own_uid

PR_SET_DUMPABLE = 4
PR_SET_NO_NEW_PRIVS = 38
MIB = 1024 * 1024


class _Node:
    """The node's end, as the child sees it."""

    def __init__(self, replies: BinaryIO, orders: BinaryIO) -> None:
        self._replies = replies
        self._orders = orders
        self._answers: queue.SimpleQueue[BoxSaid] = queue.SimpleQueue()
        self._asking = threading.Lock()

    def say(self, said: BaseModel) -> None:
        self._replies.write(line(said))
        self._replies.flush()

    def ask(self, command: AskBox) -> BoxSaid:
        """Return what the box said. One question at a time, whatever threads the tool has."""
        with self._asking:
            self.say(command)
            return self._answers.get()

    def listen(self) -> None:
        """Pass answers on until the node is gone, then end everything."""
        for row in self._orders:
            self._answers.put(BoxSaid.model_validate_json(row))
        _end_all()


class _PipedBox:
    """The session's box, by way of the node."""

    def __init__(self, node: _Node) -> None:
        self._node = node

    def run(self, command: str | Sequence[str], *, timeout_s: float = 30.0) -> BoxRun:
        """Run a command in the box; see `tools.context.ToolBox`."""
        words = command if isinstance(command, str) else list(command)
        said = self._node.ask(AskBox(command=words, timeout_s=timeout_s))
        if said.code is not None:
            raise ToolFailure(said.code, said.message)
        return BoxRun(said.exit_code, said.stdout, said.stderr, said.timed_out)


class _NoBox:
    """Stands where a Tool class that runs on the worker would find a box."""

    def __getattr__(self, name: str) -> NoReturn:
        raise ToolFailure(ErrorCode.INTERNAL_ERROR, "This tool runs on the worker and has no box.")


def main() -> None:
    """Run one job and end."""
    replies_fd = int(sys.argv[1])
    os.set_inheritable(replies_fd, False)
    orders_fd = os.dup(0)
    # The tool's own input is empty, and what it prints is not taken for an answer.
    with open(os.devnull, "rb") as nothing:  # noqa: PTH123  # a descriptor is wanted
        os.dup2(nothing.fileno(), 0)
    with os.fdopen(replies_fd, "wb") as replies, os.fdopen(orders_fd, "rb") as orders:
        row = orders.readline()
        if not row:
            return
        node = _Node(replies, orders)
        said = _run(Job.model_validate_json(row), node)
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError, AttributeError):
                stream.flush()
        node.say(said)
        # Threads that the tool left behind are not waited for.
        os._exit(0)


def _run(job: Job, node: _Node) -> Result | Failed:
    try:
        tool, arguments = _load(job)
        _give_up_rights(job)
    except (ToolsUnusable, ToolFailure, OSError) as exc:
        return Failed(code=ErrorCode.INTERNAL_ERROR, message=f"{job.tool} cannot be started on this node: {exc}")
    threading.Thread(target=node.listen, name="node", daemon=True).start()
    node.say(Ready())
    try:
        # Whole: it is cut by the node, once the secrets are out of it.
        result = checked(_invoke(tool, arguments, job, node), tool.name)
    except ToolFailure as exc:
        return Failed(code=exc.code, message=exc.message)
    except MemoryError:
        words = f"{tool.name} needs more memory than the {job.limits.memory_bytes // MIB} MiB that a call may have"
        return Failed(code=ErrorCode.LIMIT_REACHED, message=f"{words}; give it less to do at once.")
    except BaseException as exc:
        # The outermost edge of this process: whatever a tool raises, the node gets one answer.
        traceback.print_exc()
        words = f"{tool.name} raised {type(exc).__name__}: {_text_of(exc)}"
        return Failed(code=ErrorCode.INTERNAL_ERROR, message=words)
    return Result(result=result.model_dump(mode="json"))


def _text_of(exc: BaseException) -> str:
    try:
        return str(exc).encode(errors="replace").decode()
    except Exception as broken:
        return f"(its text cannot be had: {type(broken).__name__})"


def _load(job: Job) -> tuple[AnyTool, BaseModel]:
    loaded = load_tools(job.files)
    if loaded.digest != job.digest:
        raise ToolsUnusable("its sources changed since the node started; restart the node")
    tool = loaded.registry.get(job.tool)
    if tool is None:
        raise ToolsUnusable("there is no such tool")
    return tool, parse_arguments(tool, job.arguments)


def _invoke(tool: AnyTool, arguments: BaseModel, job: Job, node: _Node) -> ToolResult:
    if isinstance(tool, FunctionTool):
        box = _PipedBox(node)
        context = ToolContext(job.principal, job.session, job.call_key, box, job.attributes, job.secrets)
        return tool.invoke(arguments, context)
    mark = CallMark(job.call_key, "", job.session, 0, 0)
    return tool.run(
        arguments,
        RunContext(cast(Box, _NoBox()), mark, job.principal, attributes=job.attributes, secrets=job.secrets),
    )


def _give_up_rights(job: Job) -> None:
    """Become a user that nothing else of this machine is, for good.

    Raises:
        OSError: that is not possible here.
    """
    with suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:  # noqa: PTH123
        # When memory runs out, a tool goes before the node and its boxes.
        file.write("1000")
    _limit(resource.RLIMIT_CORE, 0)
    _limit(resource.RLIMIT_AS, job.limits.memory_bytes)
    if job.has_own_user:
        uid = own_uid(os.getpid())
        # Counted by user: without one of its own, the call would be held to what all of the node's run.
        _limit(resource.RLIMIT_NPROC, job.limits.processes)
        os.chown(job.home, uid, uid)
        hold_import_paths()
        _become(uid)
        # /proc/self is root's after a change of user; the held paths are reached through it.
        _prctl(PR_SET_DUMPABLE)
    _prctl(PR_SET_NO_NEW_PRIVS)
    os.chdir(job.home)


def _limit(kind: int, most: int) -> None:
    hard = resource.getrlimit(kind)[1]
    most = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(kind, (most, most))


def _become(uid: int) -> None:
    try:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    except OSError as exc:
        words = f"user id {uid} cannot be taken here; run the node with that right, or not as root"
        raise OSError(exc.errno, words) from exc


def _prctl(option: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option}) was refused")


def _end_all() -> NoReturn:
    """End this process with its group and, with a user of its own, everything of that user."""
    if os.getuid() == own_uid(os.getpid()):
        with suppress(OSError):
            os.kill(-1, signal.SIGKILL)
    os.killpg(0, signal.SIGKILL)
    os._exit(1)


if __name__ == "__main__":
    main()
