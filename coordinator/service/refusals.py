"""What the service says no with: one error, with a code for programs and a fix for people."""

from enum import StrEnum

from coordinator.errors import SandhogError


class Code(StrEnum):
    """Why a request was not accepted."""

    INVALID = "INVALID"
    """It is not well formed, or asks for what cannot be."""
    UNAUTHENTICATED = "UNAUTHENTICATED"
    """No token, or one that is nobody's."""
    FORBIDDEN = "FORBIDDEN"
    """Above the principal's ceiling."""
    NOT_FOUND = "NOT_FOUND"
    """There is none, or none that the principal may know of."""
    NOT_ALLOWED = "NOT_ALLOWED"
    """The path is there, the method is not."""
    CONFLICT = "CONFLICT"
    """It contradicts what was asked before, or what the session is doing."""
    TOO_LARGE = "TOO_LARGE"
    UNSUPPORTED = "UNSUPPORTED"
    """The body is of another kind than what is taken there."""
    TOO_MANY = "TOO_MANY"
    """The principal's quota is used up."""
    UNAVAILABLE = "UNAVAILABLE"
    """Redis or the volume does not answer, or the server is ending: later."""
    INTERNAL = "INTERNAL"
    """A bug of ours; the log has the cause."""


class Refused(SandhogError):
    """A request is not accepted, and nothing was changed.

    Args:
        code: For programs.
        message: What was asked, and what is wrong with it.
        fix: What to do; "" where the message says it.
        retry_after_s: When asking again may help; None when nothing is known of that.
    """

    def __init__(self, code: Code, message: str, fix: str = "", *, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.fix = fix
        self.retry_after_s = retry_after_s


def no_session(session_id: str) -> Refused:
    """Return the answer for a session that is not there for the asker, whatever the reason."""
    return Refused(
        Code.NOT_FOUND, f"There is no session {session_id[:80]!r}.", "GET /v1/sessions lists those of your token."
    )
