"""What can go wrong with a box, one class per reaction of a caller."""

from enum import StrEnum

from sandbox.wire import RefusalCode

__all__ = [
    "BoxLost",
    "ControlNotEnforced",
    "EngineAway",
    "EngineFailing",
    "EngineUnavailable",
    "GuestRefused",
    "ImageMissing",
    "LossReason",
    "NoRoom",
    "RefusalCode",
    "SandboxError",
]


class LossReason(StrEnum):
    """Why a box is gone."""

    OOM = "oom"
    """The box's memory limit ended its guest."""
    DISK = "disk"
    """It wrote more than it may; the worker ended it."""
    KILLED = "killed"
    """Somebody killed the container."""
    ENGINE = "engine"
    """The engine does not answer, so nothing can be said about the box."""
    PROTOCOL = "protocol"
    """The guest broke the rules of the link; the box was removed."""
    ENDED = "ended"
    """The box ended by itself or was closed."""


class SandboxError(Exception):
    """Root of everything the sandbox room raises."""


class BoxLost(SandboxError):
    """The box is gone; what it ran may have had effects. A new box is needed."""

    def __init__(self, reason: LossReason, detail: str) -> None:
        super().__init__(f"box lost ({reason}): {detail}")
        self.reason = reason
        self.detail = detail


class GuestRefused(SandboxError):
    """The guest lives and declined this request; the code says why."""

    def __init__(self, code: RefusalCode, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message


class EngineUnavailable(SandboxError):
    """The container engine cannot be reached or failed a request. Trying again later may help.

    Args:
        message: What was asked of it, and its words.
        is_refusal: It does not take such a request: the same one is refused the next time.
    """

    def __init__(self, message: str, *, is_refusal: bool = False) -> None:
        super().__init__(message)
        self.is_refusal = is_refusal


class EngineAway(EngineUnavailable):
    """Nobody listens at the container engine's address: it is being restarted, or it is down."""


class EngineFailing(EngineUnavailable):
    """The container engine failed a request by a fault of its own, as one does that is just ending."""


class ImageMissing(SandboxError):
    """The image of the box is not on this engine and could not be pulled; the message says why."""


class NoRoom(SandboxError):
    """A disk has too little free for another box; nothing was made."""

    def __init__(self, place: str, free_bytes: int, needed_bytes: int) -> None:
        mib = 1024 * 1024
        super().__init__(
            f"no room for another box: {place} has {free_bytes // mib} MiB free and {needed_bytes // mib} MiB must "
            "stay free. Free some space there, or lower the node's min_free_bytes."
        )
        self.place = place
        self.free_bytes = free_bytes
        self.needed_bytes = needed_bytes


class ControlNotEnforced(SandboxError):
    """A control was asked for and does not hold inside the box; the box was removed."""

    def __init__(self, control: str, detail: str) -> None:
        super().__init__(f"control {control!r} is not enforced: {detail}")
        self.control = control
        self.detail = detail
