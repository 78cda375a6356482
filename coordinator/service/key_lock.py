"""One request at a time for an idempotency key, whichever server it came to: making → **key_lock** → records.

A lock of the volume is its holder's process': whoever dies with it holds up nobody.
"""

import asyncio
import fcntl
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from coordinator.service.refusals import Code, Refused
from coordinator.service.volume import on_volume

WAIT_S = 150.0
"""How long a request waits for another one with its key: about as long as a fork's copy may take."""
PAUSE_S = 0.05


@asynccontextmanager
async def key_lock(key_file: Path, within_s: float = WAIT_S) -> AsyncIterator[None]:
    """Hold a key, waiting for whoever has it.

    Args:
        key_file: Where the key is kept, or is to be; the lock lies beside it while it is held.
        within_s: How long is waited.

    Raises:
        Refused: it is held for longer, or the volume does not take the lock.
    """
    path = key_file.with_suffix(".lock")
    clock = asyncio.get_running_loop().time
    until = clock() + within_s
    while (descriptor := await on_volume(_taken, path)) is None:
        if clock() > until:
            words = "Another request with this idempotency key is still at work."
            raise Refused(Code.UNAVAILABLE, words, "Ask again.", retry_after_s=5)
        await asyncio.sleep(PAUSE_S)
    try:
        yield
    finally:
        await asyncio.to_thread(_let_go, path, descriptor)


def _taken(path: Path) -> int | None:
    """Return the open lock, None while another one has it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    is_ours = False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        is_ours = os.path.samestat(os.fstat(descriptor), path.stat())
    except (BlockingIOError, FileNotFoundError):
        # Held, or taken away by its holder in this moment.
        pass
    finally:
        if not is_ours:
            os.close(descriptor)
    return descriptor if is_ours else None


def _let_go(path: Path, descriptor: int) -> None:
    # The file first: whoever has the lock then looks whether it still lies there. One that stays is nobody's.
    with suppress(OSError):
        path.unlink(missing_ok=True)
    os.close(descriptor)
