"""The guest: requests from the link in, answers out, one thread."""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Callable

from sandbox.guest.background import Backgrounds
from sandbox.guest.calls import Call, Calls, Mark
from sandbox.guest.channel import Channel
from sandbox.guest.connections import Connections
from sandbox.guest.egress import Egress
from sandbox.guest.files import Files
from sandbox.guest.loop import Loop
from sandbox.guest.pipes import Pipes
from sandbox.guest.pool import Pool
from sandbox.guest.processes import facts
from sandbox.guest.refusal import Refusal, from_os_error
from sandbox.guest.runner import Runner, json_env
from sandbox.guest.spawning import SpawnerLink
from sandbox.wire import GUEST_FOLDER, PROTOCOL, SPILL, WORKSPACE, Frame, Op, RefusalCode

TYPE_CHECKING = False
if TYPE_CHECKING:
    # The typing module alone would be a tenth of the guest's memory.
    from typing import Any

    from sandbox.guest.calls import Answer

BEAT_EVERY_S = 1.0
CHECK_EVERY_S = 5.0
KNOCK_EVERY_S = (0.05, 0.5)
"""At least and at most, while there is no link."""


class Server:
    """Holds one link (the newest wins) and gives every request one answer."""

    def __init__(self, listener: socket.socket, spawner_fd: int, freeze_s: int, door: str = "") -> None:
        """`door`: path of the worker's socket; "" where the worker comes by relays only."""
        self._loop = Loop()
        self._door = door
        self._linkless_since = time.monotonic()
        self._is_coming = False
        self._listener = listener
        self._freeze_s = freeze_s
        self._check_every_s = min(CHECK_EVERY_S, freeze_s / 4)
        self._channel: Channel | None = None
        self._spawner = SpawnerLink(self._loop, spawner_fd)
        self._calls = Calls(self._answer)
        self._backgrounds = Backgrounds(self._loop, self._answer)
        self._runner = Runner(self._loop, self._spawner, self._calls, self._backgrounds, self._emit)
        self._pool = Pool(self._loop)
        self._files = Files()
        self._egress = Egress(self._loop, self._send)
        self._pipes = Pipes(self._loop, self._spawner, self._runner, self._send)
        self._connections = Connections(self._loop, self._pool, self._send)
        self._last_frame = self._last_beat = time.monotonic()
        self._operations: dict[str, Callable[[int, Frame], None]] = {
            Op.HELLO: self._hello,
            Op.PING: lambda request_id, _: self._answer(request_id, ({"frozen": self._runner.is_frozen}, b"")),
            Op.BEGIN_STEP: self._begin_step,
            Op.RUN: self._run,
            Op.PIPE_OPEN: self._pipe_open,
            Op.PIPE_CONNECT: self._pipe_connect,
            Op.CANCEL: self._cancel,
            Op.BACKGROUND_READ: self._backgrounds.read,
            Op.BACKGROUND_LIST: self._backgrounds.states,
            Op.BACKGROUND_KILL: self._background_kill,
            Op.FREEZE: self._freeze,
            Op.THAW: self._thaw,
            Op.STAT: self._stat,
            Op.READ: self._read,
            Op.EDIT: lambda request_id, frame: self._change(request_id, frame, self._files.edit),
            Op.WRITE: lambda request_id, frame: self._change(request_id, frame, self._files.write),
            Op.SHUTDOWN: self._shutdown,
        }
        self._loop.watch(listener.fileno(), self._accept)
        self._loop.after(self._check_every_s, self._check)
        if door:
            # Asked before anything else is: who hears of the first command's end knows whether we could come.
            self._is_coming = True
            self._knock()

    def run(self) -> None:
        """Serve until told to end."""
        self._loop.run()

    def _accept(self, _events: int) -> None:
        relay, _address = self._listener.accept()
        with relay:
            relay.settimeout(2.0)
            try:
                _, fds, _, _ = socket.recv_fds(relay, 16, 2)
            except OSError:
                return
            if len(fds) != 2:
                for passed in fds:
                    os.close(passed)
                return
            for passed in fds:
                os.set_inheritable(passed, False)
            if self._channel is not None:
                self._channel.close()
            self._begin_link((fds[0], fds[1], relay.detach()))

    def _begin_link(self, fds: tuple[int, ...]) -> None:
        self._runner.forget_idle_count()
        self._channel = Channel(self._loop, fds, self._frame, self._runner.resume_output, self._closed)

    def _come(self, delay_s: float) -> None:
        """Come to the worker's door, if there is one: else a relay would have to be executed."""
        if self._door and not self._is_coming:
            self._is_coming = True
            self._loop.after(delay_s, self._knock)

    def _knock(self) -> None:
        if self._channel is None:
            self._spawner.knock(self._door, self._knocked)
        else:
            self._is_coming = False

    def _knocked(self, fd: int | None) -> None:
        self._is_coming = False
        if fd is None:
            # Often at first: a worker that is only restarted is soon back.
            least_s, most_s = KNOCK_EVERY_S
            silence_s = time.monotonic() - self._linkless_since
            self._come(min(most_s, max(least_s, silence_s / 50)))
        elif self._channel is not None:
            os.close(fd)
        else:
            self._begin_link((fd, os.dup(fd)))

    def _closed(self, channel: Channel) -> None:
        if self._channel is channel:
            self._channel = None
            self._linkless_since = time.monotonic()
            # Not at once: a relay may just be taking its place.
            self._come(0)
        self._calls.forget_waiters()
        self._backgrounds.forget_waiters()
        self._runner.link_lost()
        self._egress.link_lost()
        self._pipes.link_lost()
        self._connections.link_lost()

    def _send(self, head: dict[str, Any], body: bytes) -> bool:
        if self._channel is None:
            return False
        self._channel.send(head, body)
        return self._channel is not None

    def _answer(self, request_id: int, answer: Answer) -> None:
        if self._channel is not None:
            self._channel.send({"id": request_id, **answer[0]}, answer[1])

    def _emit(self, call: Call, data: bytes) -> bool:
        channel = self._channel
        if channel is None or not call.waiters:
            return False
        channel.send({"id": call.waiters[-1], "event": "out"}, data)
        if channel.is_full:
            self._runner.pause_output()
        return channel.is_open

    def _refuse(self, request_id: int, refusal: Refusal) -> None:
        self._answer(request_id, refusal.answer())

    def _frame(self, frame: Frame) -> None:
        self._last_frame = now = time.monotonic()
        if now - self._last_beat > BEAT_EVERY_S:
            self._last_beat = now
            self._spawner.beat()
        if "stream_id" in frame.head:
            self._egress.frame(frame)
            return
        if "pipe_id" in frame.head and "do" in frame.head:
            if not self._connections.frame(frame):
                self._pipes.frame(frame)
            return
        request_id = frame.head.get("id")
        operation = self._operations.get(frame.head.get("op", ""))
        if not isinstance(request_id, int) or operation is None:
            self._refuse(request_id or 0, Refusal(RefusalCode.INVALID_PARAM, "no such operation"))
            return
        try:
            operation(request_id, frame)
        except Refusal as refusal:
            self._refuse(request_id, refusal)
        except OSError as error:
            self._refuse(request_id, from_os_error(error, frame.head["op"]))
        except Exception as error:
            self._refuse(request_id, Refusal(RefusalCode.INTERNAL, repr(error)))

    def _check(self) -> None:
        """Without a word from the host commands stand still: another box may soon have their workspace."""
        if time.monotonic() - self._last_frame > self._freeze_s and not self._runner.is_frozen:
            self._runner.freeze()
        self._loop.after(self._check_every_s, self._check)

    def _hello(self, request_id: int, frame: Frame) -> None:
        of_image = frame.head.get("image_env")
        if of_image is not None:
            # An image may have a variable without a name, which no program is given.
            of_image = {name: text for name, text in of_image.items() if name}
            self._runner.set_environment(json_env(of_image), json_env(frame.head["env"]))
        if frame.head.get("egress") is True:
            self._egress.listen()
        head = {
            "protocol": PROTOCOL,
            "python": platform_version(),
            "machine": os.uname().machine,
            "shell": self._runner.shell,
            "uid": os.geteuid(),
            "gid": os.getegid(),
            "frozen": self._runner.is_frozen,
            "pids": self._runner.tasks(),
            "facts": facts(GUEST_FOLDER, WORKSPACE, SPILL),
        }
        self._answer(request_id, (head, b""))

    def _begin_step(self, request_id: int, frame: Frame) -> None:
        head = frame.head
        self._calls.begin_step(str(head["session"]), int(head["generation"]), int(head["step"]))
        self._answer(request_id, ({}, b""))

    def _run(self, request_id: int, frame: Frame) -> None:
        call = self._calls.claim(Mark(frame.head), request_id)
        if call is not None:
            self._guarded(call, lambda: self._runner.start(call, frame))

    def _pipe_open(self, request_id: int, frame: Frame) -> None:
        self._pipes.open(frame)
        # An earlier guest knows of no terminals, and says nothing of one.
        self._answer(request_id, ({"tty": frame.head.get("tty") is not None}, b""))

    def _pipe_connect(self, request_id: int, frame: Frame) -> None:
        self._connections.open(frame, lambda answer: self._answer(request_id, answer))

    def _guarded(self, call: Call, begin: Callable[[], None]) -> None:
        """Whatever prevents a claimed call from running is its answer."""
        try:
            begin()
        except Refusal as refusal:
            self._calls.finish(call, refusal.answer())
        except Exception as error:
            self._calls.finish(call, Refusal(RefusalCode.INTERNAL, repr(error)).answer())

    def _cancel(self, request_id: int, frame: Frame) -> None:
        self._answer(request_id, ({"found": self._runner.cancel(str(frame.head["key"]))}, b""))

    def _background_kill(self, request_id: int, frame: Frame) -> None:
        if self._runner.is_frozen:
            raise Refusal(RefusalCode.FROZEN, "commands of this box stand still")
        self._backgrounds.kill(request_id, frame)

    def _freeze(self, request_id: int, _: Frame) -> None:
        self._runner.freeze()
        self._answer(request_id, ({}, b""))

    def _thaw(self, request_id: int, _: Frame) -> None:
        self._runner.thaw()
        self._answer(request_id, ({}, b""))

    def _stat(self, request_id: int, frame: Frame) -> None:
        cwd = self._calls.session(str(frame.head["session"])).cwd
        self._in_pool(lambda: self._files.stat(cwd, frame), lambda answer: self._answer(request_id, answer))

    def _read(self, request_id: int, frame: Frame) -> None:
        mark = Mark(frame.head)
        if not mark.join:
            self._calls.begin_step(mark.session, mark.generation, mark.step)
        cwd = self._calls.session(mark.session).cwd
        small = self._files.read_small(cwd, frame)
        if small is not None:
            self._answer(request_id, small)
        else:
            self._in_pool(lambda: self._files.read(cwd, frame), lambda answer: self._answer(request_id, answer))

    def _change(self, request_id: int, frame: Frame, change: Callable[[str, Frame], Answer]) -> None:
        call = self._calls.claim(Mark(frame.head), request_id)
        if call is not None:
            cwd = self._calls.session(call.mark.session).cwd
            self._in_pool(lambda: change(cwd, frame), lambda answer: self._calls.finish(call, answer))

    def _in_pool(self, work: Callable[[], Answer], deliver: Callable[[Answer], None]) -> None:
        def job() -> Callable[[], None]:
            answer: Answer
            try:
                answer = work()
            except Refusal as refusal:
                answer = refusal.answer()
            except OSError as error:
                answer = from_os_error(error, "file work").answer()
            except Exception as error:
                answer = Refusal(RefusalCode.INTERNAL, repr(error)).answer()
            return lambda: deliver(answer)

        self._pool.submit(job)

    def _shutdown(self, request_id: int, _: Frame) -> None:
        self._answer(request_id, ({}, b""))
        self._loop.stop()


def platform_version() -> str:
    """Version of the guest's own interpreter."""
    return ".".join(str(part) for part in sys.version_info[:3])
