"""Refusals: what the guest or the box's file system declined → **ToolFailure**. Translated here and nowhere else."""

from collections.abc import Iterator
from contextlib import contextmanager

from sandbox.errors import GuestRefused
from sandbox.wire import RefusalCode
from tools.base import ErrorCode, ToolFailure

CODES: dict[RefusalCode, ErrorCode] = {
    RefusalCode.NOT_FOUND: ErrorCode.NOT_FOUND,
    RefusalCode.IS_DIRECTORY: ErrorCode.IS_DIRECTORY,
    RefusalCode.NOT_DIRECTORY: ErrorCode.INVALID_PARAM,
    RefusalCode.NOT_REGULAR: ErrorCode.NOT_REGULAR_FILE,
    RefusalCode.BINARY_FILE: ErrorCode.BINARY_FILE,
    RefusalCode.ACCESS_DENIED: ErrorCode.ACCESS_DENIED,
    RefusalCode.SYMLINK_LOOP: ErrorCode.INVALID_PARAM,
    RefusalCode.INVALID_PATH: ErrorCode.INVALID_PARAM,
    RefusalCode.TOO_LARGE: ErrorCode.LIMIT_REACHED,
    RefusalCode.NO_SPACE: ErrorCode.LIMIT_REACHED,
    RefusalCode.IO_ERROR: ErrorCode.EXECUTION_ERROR,
    RefusalCode.CONFLICT: ErrorCode.CONFLICT,
    RefusalCode.EXISTS: ErrorCode.CONFLICT,
    RefusalCode.NO_MATCH: ErrorCode.INVALID_PARAM,
    RefusalCode.NOT_UNIQUE: ErrorCode.INVALID_PARAM,
    RefusalCode.OVERLAP: ErrorCode.INVALID_PARAM,
    RefusalCode.INVALID_PARAM: ErrorCode.INVALID_PARAM,
    RefusalCode.CALL_MISMATCH: ErrorCode.INTERNAL_ERROR,
    RefusalCode.UNKNOWN_CALL: ErrorCode.OUTCOME_UNKNOWN,
    RefusalCode.ANSWER_DROPPED: ErrorCode.OUTCOME_UNKNOWN,
    RefusalCode.STALE: ErrorCode.CANCELLED,
    RefusalCode.LIMIT: ErrorCode.LIMIT_REACHED,
    RefusalCode.NO_SHELL: ErrorCode.EXECUTION_ERROR,
    RefusalCode.FROZEN: ErrorCode.EXECUTION_ERROR,
    RefusalCode.INTERNAL: ErrorCode.INTERNAL_ERROR,
}

_ADVICE: dict[RefusalCode, str] = {
    RefusalCode.NOT_FOUND: "Find it with Glob.",
    RefusalCode.IS_DIRECTORY: "List it with Glob, or with ls in Bash.",
    RefusalCode.BINARY_FILE: "Look at it with Bash: file, xxd, strings.",
    RefusalCode.CONFLICT: "Read it again before changing it.",
    RefusalCode.NO_MATCH: "Nothing was changed. Read the file and copy the text exactly, blanks included.",
    RefusalCode.NOT_UNIQUE: "Nothing was changed; replace_all takes them all.",
    RefusalCode.OVERLAP: "Nothing was changed. Join the edits that touch each other.",
    RefusalCode.UNKNOWN_CALL: "The call may not have run; look before doing it again.",
    RefusalCode.ANSWER_DROPPED: "The call ran, its answer is lost; look at what it did.",
}


@contextmanager
def refusals_as_failures() -> Iterator[None]:
    """Turn a guest's refusal into the tool's failure.

    Raises:
        ToolFailure: the guest refused.
    """
    try:
        yield
    except GuestRefused as exc:
        message = f"{exc.message.rstrip('.')}. {_ADVICE.get(exc.code, '')}".rstrip()
        raise ToolFailure(CODES[exc.code], message) from exc
