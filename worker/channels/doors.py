"""Takes the orders of terminals for this node's boxes: Redis → **doors** → channel. No call waits behind a terminal."""

import logging
import threading
from collections.abc import Callable

import redis
from pydantic import ValidationError

from sandbox.box import Box
from worker.channels.channel import Channel
from worker.contract import keys
from worker.contract.channels import SILENT_S, ChannelFrame, ChannelOrder, Do

log = logging.getLogger(__name__)

CHANNELS_MAX = 64
"""Of one node at once."""
BOX_CHANNELS_MAX = 8
"""Of one box at once."""
BLOCK_S = 1
PAUSE_S = 0.5
END_S = 5.0


class Doors:
    """Serves channels, each in threads of its own, until it is closed."""

    def __init__(
        self, client: redis.Redis, node: str, box_of: Callable[[str], Box | None], silent_s: float = SILENT_S
    ) -> None:
        """`box_of` gives the running box of a session, None where it has none here; a terminal that has been silent
        for `silent_s` is gone."""
        self._redis = client
        self._orders = keys.channel_orders(node)
        self._box_of = box_of
        self._silent_s = silent_s
        self._channels: dict[str, Channel] = {}
        self._guard = threading.Lock()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="doors", daemon=True)

    def start(self) -> None:
        """Begin to take orders."""
        self._thread.start()

    def close(self) -> None:
        """End every channel, and say so to the terminals."""
        self._closed.set()
        try:
            # Ends the wait for an order.
            self._redis.rpush(self._orders, b"")
        except redis.RedisError as exc:
            log.info("no terminals are heard", extra={"error": str(exc)})
        with self._guard:
            channels = list(self._channels.values())
        for channel in channels:
            channel.stop("the node is ending or being restarted")
        for channel in channels:
            channel.join(END_S)
        if self._thread.is_alive():
            self._thread.join(END_S)
        try:
            # The wait may have been over already, and nobody takes it out then.
            self._redis.lrem(self._orders, 0, b"")  # type: ignore[arg-type]
        except redis.RedisError as exc:
            log.info("an order to end is left", extra={"error": str(exc)})

    def _keep(self) -> None:
        while not self._closed.is_set():
            try:
                taken = self._redis.blpop([self._orders], BLOCK_S)
            except redis.RedisError as exc:
                log.info("no terminals are heard", extra={"error": str(exc)})
                self._closed.wait(PAUSE_S)
                continue
            if isinstance(taken, (list, tuple)) and taken[1]:
                self._take(taken[1])

    def _take(self, text: bytes | str) -> None:
        try:
            order = ChannelOrder.model_validate_json(text)
        except ValidationError as exc:
            log.warning("an order of a terminal cannot be read", extra={"error": str(exc)})
            return
        told = {"session_id": order.session, "actor": order.actor, "purpose": order.purpose}
        box = self._box_of(order.session)
        refusal = self._refusal(order, box)
        if box is None or refusal:
            log.info("a terminal is refused", extra={**told, "reason": refusal})
            self._tell_over(order, refusal)
            return
        log.info("a terminal reaches into a box", extra=told)
        channel = Channel(self._redis, order, box, self._box_of, self._ended, self._silent_s)
        with self._guard:
            self._channels[order.channel] = channel
        channel.start()

    def _refusal(self, order: ChannelOrder, box: Box | None) -> str:
        with self._guard:
            of_box = sum(channel.session == order.session for channel in self._channels.values())
            is_full = len(self._channels) >= CHANNELS_MAX
            if self._closed.is_set() or order.channel in self._channels:
                return "the node is ending"
        if box is None:
            return "the session has no box now; it gets one with its next call"
        if is_full or of_box >= BOX_CHANNELS_MAX:
            return f"{of_box} terminals reach into this box, and it takes {BOX_CHANNELS_MAX}; end one of them"
        return ""

    def _tell_over(self, order: ChannelOrder, words: str) -> None:
        down = keys.channel_down(order.channel)
        try:
            with self._redis.pipeline(transaction=False) as pipe:
                pipe.xadd(down, ChannelFrame(do=Do.OVER, words=words).fields())  # type: ignore[arg-type]
                pipe.expire(down, keys.CHANNEL_TTL_S)
                pipe.execute()
        except redis.RedisError as exc:
            log.info("a terminal was not told", extra={"error": str(exc)})

    def _ended(self, channel: Channel) -> None:
        with self._guard:
            self._channels.pop(channel.name, None)
        log.info("a terminal has left", extra={"session_id": channel.session, "reason": channel.over})
