"""Where a session's workspace comes from, if it is no directory of the node: order → **source** → private copy.

A session with a source works on a private copy of what the node fetched; its result is a patch.
"""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from worker.contract.repositories import check_ref, check_repository_url

ARCHIVE_FILE = "source-archive"
"""In the session's directory: the archive of an `ArchiveSource`."""


class _Source(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", use_attribute_docstrings=True)

    def check(self) -> None:
        """Refuse what no node can ever give, whatever its settings.

        Raises:
            ValueError: it is that; says what to do, and shows no password.
        """


class EmptySource(_Source):
    """An empty directory."""

    kind: Literal["empty"] = "empty"

    @property
    def shown(self) -> str:
        """What it is, for people."""
        return "an empty directory"


class GitSource(_Source):
    """A commit of a repository, fetched by the node."""

    kind: Literal["git"] = "git"
    url: str
    """`https://…`, `ssh://…` or `user@host:path`; holds no password."""
    ref: str | None = None
    """A branch, a tag or a commit; None is the repository's default branch."""
    credential: str | None = None
    """Name of one of the node's credentials (SANDHOG_GIT_CREDENTIALS); None asks without any."""
    submodules: bool = False
    """Fetch submodules too, by the same rules."""
    lfs: bool = False
    """Fetch large files in place of their pointers; no node of this version does."""

    def check(self) -> None:
        """Refuse a URL that holds a password or is none, a ref that is none, and large files."""
        check_repository_url(self.url)
        if self.ref is not None:
            check_ref(self.ref)
        if self.lfs:
            # Their own program would connect to addresses that nobody judged.
            raise ValueError("lfs: large files are not fetched; without it their pointers are left as they are.")

    @property
    def shown(self) -> str:
        """What it is, for people."""
        return f"{self.url} at {self.ref}" if self.ref else self.url


class ArchiveSource(_Source):
    """The content of a tar archive (plain, gzip, bzip2, xz) or a zip archive: `ARCHIVE_FILE`, whatever its name."""

    kind: Literal["archive"] = "archive"
    name: str = "archive"
    """How its owner calls it."""

    @property
    def shown(self) -> str:
        """What it is, for people."""
        return self.name


class ImageSource(_Source):
    """A directory of the session's image, copied out once."""

    kind: Literal["image"] = "image"
    path: str
    """Absolute, in the image."""

    def check(self) -> None:
        """Refuse what is no absolute path, and the image's root."""
        is_root = self.path.strip("/") == ""
        if not self.path.startswith("/") or ".." in self.path.split("/") or "\0" in self.path or is_root:
            raise ValueError(f"image:{self.path} is no absolute path of a directory, such as image:/testbed.")

    @property
    def shown(self) -> str:
        """What it is, for people."""
        return f"image:{self.path}"


class LocalSource(_Source):
    """A directory of the node, below one of its SANDHOG_WORKSPACE_ROOTS."""

    kind: Literal["local"] = "local"
    path: str
    """Absolute."""

    @property
    def shown(self) -> str:
        """What it is, for people."""
        return self.path


Source = Annotated[EmptySource | GitSource | ArchiveSource | ImageSource | LocalSource, Field(discriminator="kind")]
