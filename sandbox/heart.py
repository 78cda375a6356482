"""The heartbeats of a node's boxes, and who of them may move.

A box that hears no heartbeat for long lets its commands stand still by itself; a node that must not touch its
workspaces for a while holds all of them. Either way a box goes on only after its standing was asked for.
"""

import logging
import threading
from collections.abc import Callable
from enum import StrEnum

from sandbox.box import Box
from sandbox.errors import SandboxError

log = logging.getLogger(__name__)


class Standing(StrEnum):
    """Whether a box that stood still may go on."""

    OURS = "ours"
    """Its session is still its own: its commands go on."""
    UNKNOWN = "unknown"
    """Nobody can say now: it stands still."""
    LOST = "lost"
    """Another box may have the session's workspace: it ends."""


class Heart:
    """Beats in a thread of its own until it is closed."""

    def __init__(self, boxes: Callable[[], list[Box]], standing: Callable[[Box], Standing], heartbeat_s: float) -> None:
        self._boxes = boxes
        self._standing = standing
        self._heartbeat_s = heartbeat_s
        self._closed = threading.Event()
        self._asking: set[str] = set()
        self._freezing: set[str] = set()
        self.is_held = False
        self._thread = threading.Thread(target=self._beat, name="box-heartbeat", daemon=True)
        self._thread.start()

    def freeze_all(self) -> None:
        """Let all commands stand still until `release_all`, those of boxes that come later too."""
        self.is_held = True
        for box in self._boxes():
            self._hold(box)

    def release_all(self) -> None:
        """Ask for each box whether it may go on, with the next heartbeat and until there is an answer."""
        self.is_held = False
        for box in self._boxes():
            box.wants_frozen = False

    def close(self) -> None:
        """Stop."""
        self._closed.set()
        self._thread.join()

    def _beat(self) -> None:
        while not self._closed.wait(self._heartbeat_s):
            for box in self._boxes():
                box.beat()
                if self.is_held and not (box.is_frozen and box.wants_frozen):
                    self._hold(box)
                if box.is_frozen and not box.wants_frozen and box.box_id not in self._asking:
                    self._asking.add(box.box_id)
                    self._in_thread(box, self._ask)

    def _hold(self, box: Box) -> None:
        box.wants_frozen = True
        if box.box_id not in self._freezing:
            self._freezing.add(box.box_id)
            self._in_thread(box, self._freeze)

    def _ask(self, box: Box) -> None:
        try:
            standing = self._standing(box)
            if standing is Standing.LOST:
                log.warning("a box is ended: its session may be elsewhere", extra={"box_id": box.box_id})
                box.close()
            elif standing is Standing.OURS and not self.is_held:
                box.thaw()
        except SandboxError as error:
            # The box is lost; whoever uses it hears of it.
            log.info("a box could not go on", extra={"box_id": box.box_id, "error": str(error)})
        finally:
            self._asking.discard(box.box_id)

    def _freeze(self, box: Box) -> None:
        try:
            if self.is_held:
                box.freeze()
        except SandboxError as error:
            # Lost, or without a link, which may be back at any time: the next heartbeats try again.
            log.info("a box could not be frozen", extra={"box_id": box.box_id, "error": str(error)})
        finally:
            self._freezing.discard(box.box_id)
            # The hold may have ended meanwhile.
            box.wants_frozen = self.is_held

    def _in_thread(self, box: Box, act: Callable[[Box], None]) -> None:
        threading.Thread(target=act, args=(box,), name=f"standing-{box.box_id}", daemon=True).start()
