"""Tokens on the volume: `sandhog token` → **tokens** → auth. One file, for its owner only, always whole.

The file is read again whenever it has changed, so that a token that was revoked is refused from the next request on.
"""

import contextlib
import fcntl
import os
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path

from pydantic import ValidationError

from coordinator.errors import ConfigError
from coordinator.service.principals import Allowance, Principal, PrincipalsFile, stored, token_digest, whose
from coordinator.service.records import replace_file
from coordinator.session.principal import LOCAL

FILE_NAME = "principals.json"
TOKEN_START = "shog_"
"""Begins every token, so that one that leaked can be found by searching."""
TOKEN_BYTES = 32
FIRST_ALLOWANCE = Allowance(bind=True)
"""Of the principal that command lines act for, unless another one was written down."""


class Tokens:
    """The principals of one volume.

    Args:
        state_dir: The shared volume.
        first_token: `SANDHOG_API_TOKEN`: of the principal of sessions that a command line starts. None for none.
    """

    def __init__(self, state_dir: Path, first_token: str | None = None) -> None:
        self.path = state_dir / FILE_NAME
        self._first = (
            None
            if first_token is None
            else Principal(name=LOCAL, allowance=FIRST_ALLOWANCE, tokens=(stored(first_token, "first"),))
        )
        self._read: tuple[tuple[int, int, int], tuple[Principal, ...]] | None = None

    def principals(self) -> tuple[Principal, ...]:
        """Return all principals as the file has them now.

        Raises:
            ConfigError: the file cannot be read.
        """
        try:
            with self.path.open("rb") as file:
                facts = os.fstat(file.fileno())
                version = (facts.st_ino, facts.st_size, facts.st_mtime_ns)
                if self._read is None or self._read[0] != version:
                    self._read = version, PrincipalsFile.model_validate_json(file.read()).principals
        except FileNotFoundError:
            self._read = None
        except (OSError, ValidationError) as exc:
            raise ConfigError(f"{self.path} cannot be read: {str(exc).splitlines()[0]}") from exc
        return self._read[1] if self._read else ()

    def authenticate(self, token: str) -> Principal | None:
        """Return whose token this is now; None if it is nobody's.

        Raises:
            ConfigError: the file cannot be read.
        """
        return self.owner_of(token_digest(token))

    def owner_of(self, digest: str) -> Principal | None:
        """Return whose token has this digest now; None if it is nobody's, or was revoked.

        Raises:
            ConfigError: the file cannot be read.
        """
        principals = self.principals()
        if self._first is None:
            return whose(digest, principals)
        # Terms that were written down for the first principal hold for its first token too.
        written = next((one for one in principals if one.name == self._first.name), None)
        first = self._first if written is None else self._first.model_copy(update={"allowance": written.allowance})
        return whose(digest, (first, *principals))

    def principal(self, name: str) -> Principal | None:
        """Return a principal as it is now; None if there is none. The one of command lines is always there.

        Raises:
            ConfigError: the file cannot be read.
        """
        found = next((one for one in self.principals() if one.name == name), None)
        if found is None and name == LOCAL:
            return Principal(name=LOCAL, allowance=FIRST_ALLOWANCE)
        return found

    @property
    def is_empty(self) -> bool:
        """Whether nobody could be let in."""
        return self._first is None and not any(one.tokens for one in self.principals())

    def create(self, name: str, allowance: Allowance | None = None) -> str:
        """Return a new token of a principal, who is made if there is none; it is shown this once.

        Args:
            name: The principal.
            allowance: Takes the place of the one it has; None leaves that.

        Raises:
            ConfigError: the name cannot be one, or the file cannot be written.
        """
        token_id = secrets.token_hex(4)
        token = f"{TOKEN_START}{token_id}_{secrets.token_urlsafe(TOKEN_BYTES)}"

        def add(principals: dict[str, Principal]) -> None:
            try:
                old = principals.get(name) or Principal(
                    name=name, allowance=FIRST_ALLOWANCE if name == LOCAL else Allowance()
                )
            except ValidationError as exc:
                raise ConfigError(
                    f"{name!r} cannot name a principal: use lower-case letters, digits, - and _, 63 at most."
                ) from exc
            principals[name] = old.model_copy(
                update={
                    "allowance": old.allowance if allowance is None else allowance,
                    "tokens": (*old.tokens, stored(token, token_id)),
                }
            )

        self._change(add)
        return token

    def revoke(self, what: str) -> int:
        """Take back a token by its id, or all of a principal by the name; return how many there were.

        Raises:
            ConfigError: the file cannot be written.
        """
        gone = 0

        def take(principals: dict[str, Principal]) -> None:
            nonlocal gone
            for name, principal in principals.items():
                kept = () if name == what else tuple(one for one in principal.tokens if one.id != what)
                gone += len(principal.tokens) - len(kept)
                principals[name] = principal.model_copy(update={"tokens": kept})

        self._change(take)
        return gone

    def _change(self, change: Callable[[dict[str, Principal]], None]) -> None:
        with self._locked():
            principals = {one.name: one for one in self.principals()}
            change(principals)
            content = PrincipalsFile(principals=tuple(principals.values())).model_dump_json(indent=2)
            try:
                replace_file(self.path, content.encode() + b"\n")
            except OSError as exc:
                raise ConfigError(f"{self.path} cannot be written: {exc}") from exc

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            lock = os.open(self.path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as exc:
            raise ConfigError(f"{self.path.parent} cannot be used: {exc}") from exc
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)
