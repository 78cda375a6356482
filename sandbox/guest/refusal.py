"""How the guest says no."""

import errno

from sandbox.wire import RefusalCode

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


def from_os_error(error: OSError, what: str) -> Refusal:
    """The refusal that an operating system error means."""
    code = _BY_ERRNO.get(error.errno or 0, RefusalCode.IO_ERROR)
    return Refusal(code, f"{what}: {error.strerror or error}")
