"""Who looks at the page: token → **login** → cookie → principal.

A login is a small file on the volume, so that every coordinator knows it and it outlives a restart. The cookie is 256
random bits; what lies on the volume is its digest. A login ends by its time, by logging out, or with its token.
"""

import hashlib
import hmac
import secrets
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from coordinator.service.principals import Principal, token_digest
from coordinator.service.records import replace_file
from coordinator.service.tokens import Tokens

LOGINS_DIR = "logins"
"""In the state directory."""
LASTS_S = 12 * 3600.0
MAX_SECRET_CHARS = 100

MAX_FAILURES = 10
"""Of one address, and twenty times as many of all together, within the time below."""
WITHIN_S = 60.0
MAX_ADDRESSES = 10_000


class Kept(BaseModel):
    """A login as it lies on the volume."""

    model_config = ConfigDict(frozen=True, extra="ignore", use_attribute_docstrings=True)

    token_sha256: str
    """Of the token that it was made with."""
    ends_at: float
    """Seconds since 1970."""


@dataclass(frozen=True)
class Visitor:
    """Somebody who has logged in."""

    principal: Principal
    csrf: str
    """Every form carries it."""


class Logins:
    """The logins of one volume.

    Args:
        state_dir: The shared volume.
        tokens: Whose tokens count.
        clock: Seconds since 1970.
    """

    def __init__(self, state_dir: Path, tokens: Tokens, clock: Callable[[], float] = time.time) -> None:
        self._dir = state_dir / LOGINS_DIR
        self._tokens = tokens
        self._clock = clock

    def begin(self, token: str) -> tuple[str, Principal] | None:
        """Return a new login's secret and its principal; None if the token is nobody's.

        Raises:
            ConfigError: the principals cannot be read.
            OSError: the login cannot be kept.
        """
        principal = self._tokens.authenticate(token)
        if principal is None:
            return None
        self._dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._drop_old()
        secret = secrets.token_urlsafe(32)
        kept = Kept(token_sha256=token_digest(token), ends_at=self._clock() + LASTS_S)
        replace_file(self._path(secret), kept.model_dump_json().encode())
        return secret, principal

    def visitor(self, secret: str) -> Visitor | None:
        """Return who has logged in with that secret; None where the login has ended, or never was.

        Raises:
            ConfigError: the principals cannot be read.
        """
        if not 0 < len(secret) <= MAX_SECRET_CHARS:
            return None
        try:
            kept = Kept.model_validate_json(self._path(secret).read_bytes())
        except (OSError, ValidationError):
            return None
        if kept.ends_at < self._clock():
            return None
        principal = self._tokens.owner_of(kept.token_sha256)
        return None if principal is None else Visitor(principal, csrf_of(secret))

    def end(self, secret: str) -> None:
        """Log out.

        Raises:
            OSError: the volume does not take it.
        """
        self._path(secret).unlink(missing_ok=True)

    def _path(self, secret: str) -> Path:
        return self._dir / hashlib.sha256(secret.encode("utf-8", "replace")).hexdigest()

    def _drop_old(self) -> None:
        for path in self._dir.iterdir():
            try:
                if path.stat().st_mtime < self._clock() - LASTS_S:
                    path.unlink()
            except FileNotFoundError:
                # Another coordinator was faster.
                continue


def csrf_of(secret: str) -> str:
    """Return what forms carry: it follows from a cookie that other sites cannot read."""
    return hashlib.sha256(b"form " + secret.encode("utf-8", "replace")).hexdigest()


def is_csrf_of(secret: str, given: str) -> bool:
    """Return whether a form came from a page that was made for this cookie."""
    return bool(secret) and hmac.compare_digest(csrf_of(secret).encode(), given.encode("utf-8", "replace"))


class Patience:
    """How many wrong tokens are listened to, in this process.

    Args:
        clock: Seconds, from anywhere on.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._by_address: OrderedDict[str, deque[float]] = OrderedDict()
        self._all: deque[float] = deque()

    def wait_s(self, address: str) -> float:
        """Return how long an address has to wait before its next try; 0 if it may try now."""
        now = self._clock()
        own = self._by_address.get(address, deque())
        waits = [
            times[-most] + WITHIN_S - now
            for times, most in ((own, MAX_FAILURES), (self._all, 20 * MAX_FAILURES))
            if len(times) >= most
        ]
        return max([0.0, *waits])

    def failed(self, address: str) -> None:
        """Count a wrong token."""
        own = self._by_address.setdefault(address, deque(maxlen=MAX_FAILURES))
        self._by_address.move_to_end(address)
        own.append(self._clock())
        self._all.append(self._clock())
        while len(self._all) > 20 * MAX_FAILURES:
            self._all.popleft()
        while len(self._by_address) > MAX_ADDRESSES:
            self._by_address.popitem(last=False)
