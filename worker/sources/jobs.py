"""What a confined child is asked, and what it answers: confined → **job** → child → **said**."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, SecretStr

MIB = 1024 * 1024


class Bounds(BaseModel):
    """What a source may be at most."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    total_bytes: int = 4 * 1024 * MIB
    """All files together."""
    entries: int = 500_000
    """Files, directories and links."""
    timeout_s: float = 600.0


class _Job(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    directory: str
    """An empty directory, absolute; the child becomes its owner."""
    bounds: Bounds
    has_own_user: bool
    """Become a user that nothing else is."""


class GitJob(_Job):
    """Fetch a commit into `directory/tree`."""

    kind: Literal["git"] = "git"
    url: str
    """Judged by the node; holds no password."""
    ref: str
    """HEAD is the default branch."""
    scheme: str
    """The one protocol that may be spoken."""
    resolve: str = ""
    """`host:port:address`, which an http connection goes to, whatever the name resolves to."""
    ca: str = ""
    """Content of a file of certificates that are trusted in place of the machine's."""
    ssh: tuple[str, ...] = ()
    """The command that connects, for ssh."""
    ssh_key: SecretStr = SecretStr("")
    """Content of the key's file."""
    known_hosts: str = ""
    """Content of the file with the hosts' keys."""
    header: SecretStr = SecretStr("")
    """Sent with each request to the URL."""


class UnpackJob(_Job):
    """Unpack an archive into `directory/tree`."""

    kind: Literal["unpack"] = "unpack"
    descriptor: int
    """The archive, open for reading."""
    keeps_links: bool = False
    """Links that lead out of it are taken as they are, to nothing but words; else they refuse the whole."""


Job = Annotated[GitJob | UnpackJob, Field(discriminator="kind")]


class Said(BaseModel):
    """What came of a job."""

    model_config = ConfigDict(frozen=True, extra="ignore", use_attribute_docstrings=True)

    error: str | None = None
    """Why there is no tree, in words."""
    is_own_fault: bool = False
    """The source is at fault: neither the way to it nor this machine."""
    commit: str = ""
    """What was fetched, for git."""
    submodules: tuple[tuple[str, str, str], ...] = ()
    """Path, URL and commit of each submodule at the first level."""
