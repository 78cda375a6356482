"""One connection of a client in the box to a host: what is known of it between two events of the carrier."""

import socket
import time
from enum import Enum, auto

from sandbox.egress.body import Body
from sandbox.wire import STREAM_CHUNK_BYTES, STREAM_FRAME_COST, STREAM_WINDOW


class Phase(Enum):
    """How far a stream is."""

    HEAD = auto()
    """The request's head is being read."""
    DIALING = auto()
    """A thread resolves and connects."""
    OPEN = auto()
    """Bytes go to and fro."""
    ANSWERED = auto()
    """The client has its answer, from us or all of the host's; whatever it still sends is dropped."""


class Stream:
    """State only; the carrier acts on it."""

    def __init__(self, number: int, deadline: float) -> None:
        self.number = number
        self.phase = Phase.HEAD
        self.began = time.monotonic()
        self.deadline = deadline
        """When the carrier gives the stream up, by the monotonic clock."""
        self.host = ""
        self.port = 0
        self.socket: socket.socket | None = None
        self.body: Body | None = None
        self.events = 0
        self.to_host = bytearray()
        """In HEAD and DIALING: what the client sent so far. Later what the host has not taken yet."""
        self.to_guest = bytearray()
        self.credit = STREAM_WINDOW
        """What may be sent to the guest."""
        self.received = 0
        """Cost of the frames that came and for which no credit was given back."""
        self.guest_ended = False
        self.host_ended = False
        self.end_sent = False
        self.shut = False
        """The host was told that the client sends no more."""
        self.up_bytes = 0
        self.down_bytes = 0
        self.outcome = "ended"

    @property
    def room_bytes(self) -> int:
        """How much one data frame to the guest may have now; 0 for none."""
        return max(0, min(STREAM_CHUNK_BYTES, self.credit - STREAM_FRAME_COST))

    @property
    def credit_due(self) -> int:
        """How much may be given back for frames whose bytes are gone from here."""
        return self.received - len(self.to_host)

    @property
    def wants_host(self) -> bool:
        """True when bytes of the host can be taken."""
        return self.phase is Phase.OPEN and not self.host_ended and not self.to_guest and self.room_bytes > 0
