"""How the guest says no."""

from __future__ import annotations

import errno

from sandbox.wire import RefusalCode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from sandbox.guest.calls import Answer

MAX_MESSAGE = 2000

_BY_ERRNO = {
    errno.ENOENT: RefusalCode.NOT_FOUND,
    errno.EISDIR: RefusalCode.IS_DIRECTORY,
    errno.ENOTDIR: RefusalCode.NOT_DIRECTORY,
    errno.EACCES: RefusalCode.ACCESS_DENIED,
    errno.EPERM: RefusalCode.ACCESS_DENIED,
    errno.EROFS: RefusalCode.ACCESS_DENIED,
    errno.ETXTBSY: RefusalCode.ACCESS_DENIED,
    errno.ELOOP: RefusalCode.SYMLINK_LOOP,
    errno.ENAMETOOLONG: RefusalCode.INVALID_PATH,
    errno.ENXIO: RefusalCode.NOT_REGULAR,
    errno.ENODEV: RefusalCode.NOT_REGULAR,
    errno.ENOSPC: RefusalCode.NO_SPACE,
    errno.EDQUOT: RefusalCode.NO_SPACE,
    errno.EFBIG: RefusalCode.TOO_LARGE,
    errno.EMFILE: RefusalCode.LIMIT,
    errno.ENFILE: RefusalCode.LIMIT,
    errno.EAGAIN: RefusalCode.LIMIT,
    errno.ENOMEM: RefusalCode.LIMIT,
}


class Refusal(Exception):
    """A request is declined: a code for the host, words for the reader."""

    def __init__(self, code: RefusalCode, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message

    def answer(self) -> Answer:
        """The refusal as the answer to its request; long words are cut."""
        return {"refused": self.code, "message": self.message[:MAX_MESSAGE]}, b""


def from_os_error(error: OSError, what: str) -> Refusal:
    """The refusal that an operating system error means."""
    code = _BY_ERRNO.get(error.errno or 0, RefusalCode.IO_ERROR)
    return Refusal(code, f"{what}: {error.strerror or error}")
