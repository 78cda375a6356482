"""Which repositories a node fetches from: URL → **remote** (judged, with its credentials) → git job."""

import base64
import os
import stat
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import BaseModel, ConfigDict, SecretStr, TypeAdapter, ValidationError

from sandbox.egress.addresses import Network, parse_address, why_refused
from sandbox.egress.dial import Resolver, resolve
from worker.contract.repositories import RepositoryParts, repository_parts
from worker.errors import WorkspaceRefused

SSH = (
    "ssh",
    "-F",
    "/dev/null",
    "-oBatchMode=yes",
    "-oStrictHostKeyChecking=yes",
    "-oGlobalKnownHostsFile=/dev/null",
    "-oPermitLocalCommand=no",
    "-oProxyCommand=none",
    "-oForwardAgent=no",
    "-oClearAllForwardings=yes",
    "-oConnectTimeout=20",
)


class Credential(BaseModel):
    """How a node proves itself to the hosts of one account."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    hosts: tuple[str, ...]
    """The only hosts that ever get it."""
    username: str = "x-access-token"
    password: SecretStr | None = None
    """A password or token, for https."""
    password_env: str | None = None
    """Name of a variable of the node's environment that holds it."""
    ssh_key: Path | None = None
    """File of a private key without a passphrase."""
    known_hosts: Path | None = None
    """File with the hosts' keys, which ssh needs."""


@dataclass(frozen=True)
class Remote:
    """A repository that may be fetched from."""

    url: str
    scheme: str
    host: str
    port: int
    address: str
    """What is connected to."""
    header: str = field(default="", repr=False)
    ssh: tuple[str, ...] = ()
    ssh_key: str = field(default="", repr=False)
    known_hosts: str = field(default="", repr=False)
    ca: str = field(default="", repr=False)

    @property
    def resolve(self) -> str:
        """What pins an http connection to the address that was judged."""
        address = f"[{self.address}]" if ":" in self.address else self.address
        return "" if self.scheme == "ssh" else f"{self.host}:{self.port}:{address}"


@dataclass(frozen=True)
class Remotes:
    """What the node's settings say of repositories."""

    private_hosts: frozenset[str] = frozenset()
    """Hosts that may be at private, loopback or own addresses, and may speak plain http."""
    credentials_file: Path | None = None
    ca_file: Path | None = None
    """Certificates that are trusted in place of the machine's."""
    deny: tuple[Network, ...] = ()
    resolver: Resolver = field(default=resolve)
    environment: Callable[[], Mapping[str, str]] = field(default=lambda: os.environ)

    def remote(self, url: str, credential: str | None) -> Remote:
        """Return the repository, if this node fetches from it.

        Raises:
            WorkspaceRefused: it does not; says why, and what to do.
        """
        scheme, user, host, port, path = _parts(url)
        if scheme == "http" and host not in self.private_hosts:
            raise WorkspaceRefused(f"{url}: plain http is not spoken; give https (SANDHOG_GIT_HOSTS allows hosts).")
        address = self._address(url, host)
        plain = f"ssh://{user}@{host}:{port}/{path.lstrip('/')}" if scheme == "ssh" else url
        proof = self._credential(credential, host) if credential is not None else None
        if scheme != "ssh":
            header = "" if proof is None else self._header(proof, str(credential))
            ca = _content(self.ca_file) if self.ca_file is not None else ""
            return Remote(plain, scheme, host, port, address, header=header, ca=ca)
        if proof is None or proof.ssh_key is None or proof.known_hosts is None:
            raise WorkspaceRefused(
                f"{url}: ssh needs a credential with ssh_key and known_hosts (SANDHOG_GIT_CREDENTIALS)."
            )
        command = (*SSH, f"-oHostName={address}", f"-oHostKeyAlias={host}")
        key, known_hosts = _content(proof.ssh_key), _content(proof.known_hosts)
        return Remote(plain, scheme, host, port, address, ssh=command, ssh_key=key, known_hosts=known_hosts)

    def credential_for(self, url: str, name: str | None) -> str | None:
        """Return the name of a credential if it is for the URL's host; None where it is for others.

        Raises:
            WorkspaceRefused: the URL is none, or the credentials cannot be read.
        """
        found = self._credentials().get(name) if name is not None else None
        is_for_it = found is not None and _parts(url).host in hosts_of(found.hosts)
        return name if is_for_it else None

    def _address(self, url: str, host: str) -> str:
        try:
            found = [parse_address(text) for text in self.resolver(host)]
        except (OSError, ValueError, UnicodeError) as exc:
            raise WorkspaceRefused(f"{url}: the host {host} cannot be found: {exc}.") from exc
        why = "it has no address"
        for address in found:
            why = why_refused(address, allow_private=host in self.private_hosts, deny=self.deny)
            if not why:
                return str(address)
        raise WorkspaceRefused(
            f"{url}: the host {host} may not be fetched from: {why}. If it is meant, the node's SANDHOG_GIT_HOSTS must "
            "name it."
        )

    def _credential(self, name: str, host: str) -> Credential:
        found = self._credentials().get(name)
        if found is None:
            raise WorkspaceRefused(f"This node has no credential {name!r} (SANDHOG_GIT_CREDENTIALS).")
        if host not in hosts_of(found.hosts):
            raise WorkspaceRefused(f"The credential {name!r} is not for the host {host}.")
        return found

    def _credentials(self) -> Mapping[str, Credential]:
        path = self.credentials_file
        if path is None:
            return {}
        try:
            with path.open("rb") as file:
                if stat.S_IMODE(os.fstat(file.fileno()).st_mode) & 0o077:
                    raise WorkspaceRefused(f"{path} can be read by others: chmod 600 it.")
                content = file.read()
            return TypeAdapter(dict[str, Credential]).validate_json(content)
        except OSError as exc:
            raise WorkspaceRefused(f"{path} cannot be read: {exc.strerror}.") from exc
        except ValidationError as exc:
            # Its own words would show what stands there.
            where = ", ".join(".".join(str(part) for part in fault["loc"]) for fault in exc.errors())
            raise WorkspaceRefused(f"{path} (SANDHOG_GIT_CREDENTIALS) is not as it should be: {where}.") from None

    def _header(self, proof: Credential, name: str) -> str:
        password = proof.password.get_secret_value() if proof.password else None
        if password is None and proof.password_env is not None:
            password = self.environment().get(proof.password_env)
        if not password or not (password.isascii() and password.isprintable()):
            raise WorkspaceRefused(f"The credential {name!r} has no password that can be sent.")
        return "Authorization: Basic " + base64.b64encode(f"{proof.username}:{password}".encode()).decode()


def _content(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as exc:
        raise WorkspaceRefused(f"{path}, which SANDHOG_GIT_… names, cannot be read: {exc}.") from exc


def hosts_of(names: Iterable[str]) -> frozenset[str]:
    """Return host names as they are compared."""
    return frozenset(name.lower() for name in names)


def _parts(url: str) -> RepositoryParts:
    """Return the parts of a URL.

    Raises:
        WorkspaceRefused: it is none that is fetched from.
    """
    try:
        return repository_parts(url)
    except ValueError as exc:
        raise WorkspaceRefused(str(exc)) from exc
