"""Every error the coordinator raises.

SandhogError
├── ConfigError            bad usage or settings: exit 2
├── ModelError             the endpoint
│   ├── ModelRefused       it said no: asking again changes nothing
│   ├── ContextTooLong     the messages are more than the model's window takes: they are compacted and sent again
│   ├── ModelUnavailable   overloaded, away or too slow: asking later may help
│   └── ReplyBroken        its answer was cut or is not the protocol
├── ClusterBroken          the embedded Redis or worker is gone for good: the session ends
├── NoBox                  no node, no place or no box for a session: it fails before any call ran
│   ├── NoSource           what it is to work on is not there or broken: its own fault
│   └── NodeTrouble        its node, or the engine there, could not do it now: another try may have it
├── ChannelOver            a terminal's channel into a box has ended
├── NotCopied              a file or directory was not copied into a box or out of it
├── LostSession            another coordinator has the session now: this one writes nothing more
├── RedisLost              Redis stayed away longer than an outage may last, or refuses: the session ends
├── HistoryInvalid         the message list breaks the protocol: a bug of ours
└── TranscriptError        the transcript cannot be written or does not belong to us
"""


class SandhogError(Exception):
    """Root of all errors that carry words for the user."""


class ConfigError(SandhogError):
    """A setting or argument is missing or wrong; the message says what to set."""


class ModelError(SandhogError):
    """The model endpoint did not give a reply.

    Args:
        message: What was tried, what came back (the endpoint's own words), what to do.
        status: HTTP status; None when there was none.
        code: The endpoint's own error code; None when it gave none.
    """

    def __init__(self, message: str, *, status: int | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.body = ""
        """What the endpoint sent, as far as it is kept; "" where it sent nothing."""


class ModelRefused(ModelError):
    """The request itself is not accepted (bad request, key, rights, model name)."""


class ContextTooLong(ModelError):
    """The messages are more than the model's window takes.

    Args:
        limit_tokens: The window's size, where the endpoint's words say it.
    """

    def __init__(
        self, message: str, *, status: int | None = None, code: str | None = None, limit_tokens: int | None = None
    ) -> None:
        super().__init__(message, status=status, code=code)
        self.limit_tokens = limit_tokens


class ModelUnavailable(ModelError):
    """Overloaded, failing, unreachable or too slow.

    Args:
        retry_after_s: How long the endpoint asked us to wait; None when it did not say.
    """

    def __init__(
        self, message: str, *, status: int | None = None, code: str | None = None, retry_after_s: float | None = None
    ) -> None:
        super().__init__(message, status=status, code=code)
        self.retry_after_s = retry_after_s


class ReplyBroken(ModelError):
    """The answer ended half-way or is not a chat completion."""


class ClusterBroken(SandhogError):
    """The embedded Redis or worker ended and cannot be brought back; the message has its last words."""


class NoBox(SandhogError):
    """The session cannot have a box; the message says why and what to do."""

    kind = "box"
    """What the `stop_reason` of a session begins with that ends for it."""


class NoSource(NoBox):
    """What the session wants to work on cannot be had, whoever tries: it is not there, or broken."""

    kind = "source"


class NodeTrouble(NoBox):
    """The node was away or its engine failed: nothing is wrong with the session, and it is asked for again."""


class ChannelOver(SandhogError):
    """A terminal's channel into a box has ended, or broke; the message says why."""


class NotCopied(SandhogError):
    """A file or directory was not copied between here and a box, or not all of it; the message says why."""


class LostSession(SandhogError):
    """The session's generation is no longer ours."""


class RedisLost(SandhogError):
    """Redis did not answer for longer than is waited for, or it refuses what it is asked."""


class HistoryInvalid(SandhogError):
    """A message list a strict endpoint would not take."""


class TranscriptError(SandhogError):
    """The transcript cannot be created, written or read."""
