"""One box's container and link: asked over as many links as it takes, until there is an answer or the box is lost.

Holds the link and makes it again when it breaks while the container lives; requests under way are then asked again
under their call key, so that the guest joins them to the running command instead of running them twice.
"""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Protocol, TypeVar

from sandbox import replies
from sandbox.errors import BoxLost, EngineUnavailable, GuestRefused, LossReason
from sandbox.link import CarrierOf, Link, LinkClosed, LinkTimeout, Stream
from sandbox.requests import GuestInfo
from sandbox.wire import PROTOCOL, Frame, FrameTooLarge, Op, RefusalCode

Answer = TypeVar("Answer")

HELLO_TIMEOUT_S = 15.0
MARGIN_S = 15.0
"""What an answer may take beyond the time limit of the command itself."""
RELINK_S = 20.0
MAX_LINKS = 10
"""Over how many links one request is asked before the guest is held to be broken."""
RELINK_PAUSES_S = (0.0, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
SILENCE_S = 30.0
"""A link without a sign of life for so long is made again."""


class Container(Protocol):
    """What the box needs of its engine."""

    def connect(self) -> Stream:
        """A new stream to the guest. Raises EngineUnavailable."""

    def fate(self) -> tuple[LossReason, str] | None:
        """Why the container is gone; None while it runs. Raises EngineUnavailable."""

    def let_go(self) -> None:
        """It lives on without us: free what `connect` needs."""

    def remove(self) -> None:
        """End it; no error when it is gone. Raises EngineUnavailable."""


class Lifeline:
    """A running container with a link to its guest. Thread-safe; many requests may be under way at once."""

    def __init__(
        self,
        box_id: str,
        container: Container,
        env: tuple[Mapping[str, str], Mapping[str, str]] | None,
        on_gone: Callable[["Lifeline"], None] = lambda _: None,
        carrier_of: CarrierOf | None = None,
    ) -> None:
        """Make the first link.

        Args:
            box_id: Its name.
            container: What runs it.
            env: The image's and the wanted variables; None leaves them as they are.
            on_gone: Called once, when the box is lost or closed.
            carrier_of: Makes what carries the box's connections to the outside; None is a box that has no way out.

        Raises:
            BoxLost: there is no guest to talk to.
        """
        self.box_id = box_id
        self._container = container
        self._on_gone = on_gone
        self._carrier_of = carrier_of
        self._lost: BoxLost | None = None
        self._lock = threading.Lock()
        self._relink_lock = threading.Lock()
        self._relinking = self._was_tried = False
        self._under_way = 0
        self._last_used = time.monotonic()
        self._link: Link | None = None
        self._hello: dict[str, Any] = {"op": Op.HELLO, "image_env": None}
        if env is not None:
            self._hello = {"op": Op.HELLO, "image_env": dict(env[0]), "env": dict(env[1])}
        self._hello["egress"] = carrier_of is not None
        self.is_left = False
        """It was lost, and its container may run on: the engine was not there to remove it."""
        self.is_frozen = False
        self.wants_frozen = False
        self.info = self._first_hello()
        self._hello = {"op": Op.HELLO, "image_env": None}
        self.is_frozen = self.wants_frozen = self.info.frozen

    def answers(self, timeout_s: float) -> bool:
        """Whether the guest answers over the present link so soon; never waits longer, and makes no new link."""
        link = self._link
        if self._lost is not None or link is None or self.is_frozen:
            return False
        try:
            replies.check_refusal(link.ask({"op": Op.PING}, b"", timeout_s))
        except (LinkClosed, LinkTimeout, GuestRefused, replies.BadReply):
            return False
        return True

    @property
    def idle_s(self) -> float:
        """Seconds since the last use ended, such as a request; 0 while one is under way. Heartbeats do not count."""
        return 0.0 if self._under_way else time.monotonic() - self._last_used

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Count as used inside the block, by a request or by somebody who sits in the box."""
        with self._lock:
            self._under_way += 1
        try:
            yield
        finally:
            with self._lock:
                self._under_way -= 1
                self._last_used = time.monotonic()

    def is_alive(self, wait_s: float = 0.0) -> bool:
        """True while the container runs; an engine that is away is asked again for so long. Then nobody knows: False.

        Link and engine are away at once where the link is executed and the engine restarts: containers may live on.
        """
        deadline, pauses = time.monotonic() + wait_s, iter(RELINK_PAUSES_S)
        while self._lost is None:
            link = self._link
            if link is not None and link.is_open:
                return True
            try:
                return self._container.fate() is None
            except EngineUnavailable:
                if time.monotonic() >= deadline:
                    return False
                time.sleep(next(pauses, RELINK_PAUSES_S[-1]))
        return False

    def close(self) -> None:
        """End and remove the container; requests under way get BoxLost. More than once does no harm."""
        self._lose(LossReason.ENDED, "the box was closed")

    def lose(self, reason: LossReason, detail: str) -> None:
        """End the box because of what was seen of it from outside; requests under way get BoxLost with the reason."""
        self._lose(reason, detail)

    def let_go(self) -> None:
        """Close the link only; the box lives on until its dead-man timer or until it is adopted."""
        with self._lock:
            if self._lost is None:
                self._lost = BoxLost(LossReason.ENDED, "this process let go of the box")
        self._container.let_go()
        if self._link is not None:
            self._link.close()

    def beat(self) -> None:
        """Send a heartbeat; a link that is broken or silent is made again in the background."""
        link = self._link
        if self._lost is not None:
            return
        if link is not None and link.is_open:
            if time.monotonic() - link.last_heard > SILENCE_S:
                link.close()
            else:
                link.beat()
                return
        with self._lock:
            if self._relinking:
                return
            self._relinking = True
        threading.Thread(target=self._relink_in_background, name=f"relink-{self.box_id}", daemon=True).start()

    def _relink_in_background(self) -> None:
        try:
            with suppress(BoxLost):
                self._live_link(time.monotonic() + RELINK_S)
        finally:
            self._relinking = False

    def _ask(
        self,
        head: dict[str, Any],
        body: bytes,
        timeout_s: float,
        parse: Callable[[Frame], Answer],
        on_output: Callable[[bytes], None] | None = None,
    ) -> Answer:
        """The parsed answer, over as many links as it takes."""
        with self.in_use():
            return self._ask_until_answered(head, body, timeout_s, parse, on_output)

    def _ask_until_answered(
        self,
        head: dict[str, Any],
        body: bytes,
        timeout_s: float,
        parse: Callable[[Frame], Answer],
        on_output: Callable[[bytes], None] | None,
    ) -> Answer:
        silent = False
        links = 0
        while links < MAX_LINKS:
            links += 1
            link = self._live_link(time.monotonic() + RELINK_S)
            try:
                frame = link.ask(head, body, timeout_s, on_output)
                replies.check_refusal(frame)
                return parse(frame)
            except LinkClosed as closed:
                if closed.violation:
                    raise self._lose(LossReason.PROTOCOL, closed.violation) from None
            except LinkTimeout:
                link.close()
                if silent:
                    raise self._lose(LossReason.PROTOCOL, f"no answer to {head['op']} in time") from None
                # The guest joins the same request to the running call; its answer should be there at once.
                silent, timeout_s = True, MARGIN_S
            except FrameTooLarge as error:
                raise GuestRefused(RefusalCode.INVALID_PARAM, f"the request is too large: {error}") from None
            except (replies.BadReply, KeyError) as error:
                raise self._lose(LossReason.PROTOCOL, f"bad answer to {head['op']}: {error}") from None
            if self.is_frozen:
                # A command that stands still answers when it is thawed, however long that takes.
                silent, links = False, 0
        raise self._lose(LossReason.PROTOCOL, f"{head['op']}: the link broke {MAX_LINKS} times")

    def _live_link(self, deadline: float) -> Link:
        """The open link, made again if need be.

        Raises:
            BoxLost.
        """
        link = self._link
        if self._lost is None and link is not None and link.is_open:
            return link
        with self._relink_lock:
            pauses = iter(RELINK_PAUSES_S)
            while True:
                if self._lost is not None:
                    raise BoxLost(self._lost.reason, self._lost.detail)
                if self._link is not None and self._link.is_open:
                    return self._link
                time.sleep(next(pauses, RELINK_PAUSES_S[-1]))
                self._try_relink(deadline)

    def _try_relink(self, deadline: float) -> None:
        try:
            # One that was never linked has just been seen running.
            fate = self._container.fate() if self._was_tried else None
            self._was_tried = True
            if fate is not None:
                self._lose(*fate)
                return
            self._connect()
        except EngineUnavailable as error:
            if time.monotonic() > deadline:
                raise BoxLost(LossReason.ENGINE, str(error)) from error
        except (LinkClosed, LinkTimeout) as error:
            if isinstance(error, LinkClosed) and error.violation:
                self._lose(LossReason.PROTOCOL, error.violation)
            elif time.monotonic() > deadline:
                self._lose(LossReason.PROTOCOL, "the guest does not answer")
        except (replies.BadReply, GuestRefused) as error:
            self._lose(LossReason.PROTOCOL, f"bad answer to hello: {error}")

    def _connect(self) -> GuestInfo:
        link = Link(self._container.connect(), self.box_id, self._heard, self._carrier_of)
        try:
            frame = link.ask(self._hello, b"", HELLO_TIMEOUT_S)
            replies.check_refusal(frame)
            info = replies.parse_info(frame)
            if info.protocol != PROTOCOL:
                raise replies.BadReply(f"the guest speaks protocol {info.protocol}, not {PROTOCOL}")
        except BaseException:
            link.close()
            raise
        self.is_frozen = info.frozen
        self._link = link
        self.info = info
        return info

    def _first_hello(self) -> GuestInfo:
        self._live_link(time.monotonic() + RELINK_S)
        return self.info

    def _heard(self, head: dict[str, Any]) -> None:
        self.is_frozen = head.get("frozen") is True

    def _lose(self, reason: LossReason, detail: str) -> BoxLost:
        """Remember that the box is gone, and make sure that it is; the error to raise."""
        with self._lock:
            first = self._lost is None
            if self._lost is None:
                self._lost = BoxLost(reason, detail)
            lost = self._lost
        if first:
            if self._link is not None:
                self._link.close()
            try:
                self._container.remove()
            except EngineUnavailable:
                # The dead-man timer or the next sweep ends it, if nobody does before.
                self.is_left = True
            self._on_gone(self)
        return BoxLost(lost.reason, lost.detail)
