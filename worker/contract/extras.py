"""What a session's box has beyond image and workspace: order → **extras** → setup, box."""

from pydantic import BaseModel, ConfigDict

ENV_FILE = "box-env.json"
"""In the session's directory, for its owner only: the values of `env_names`. They never travel in a message."""
FILES_DIR = "files"
"""In the session's directory: the content of `files`, named by their place in the list."""


class FileIn(BaseModel):
    """A file that is put into the workspace before the session begins."""

    model_config = ConfigDict(frozen=True, extra="ignore", use_attribute_docstrings=True)

    path: str
    """Where, relative to the workspace."""
    is_executable: bool = False


class BoxExtras(BaseModel):
    """Everything is empty unless it was asked for."""

    model_config = ConfigDict(frozen=True, extra="ignore", use_attribute_docstrings=True)

    allow_hosts: tuple[str, ...] = ()
    """Hosts that commands may reach: `name`, `*.name`, `name:port,port`, or `*` for every public one."""
    env_names: tuple[str, ...] = ()
    """Names of the variables whose values are in `ENV_FILE`."""
    files: tuple[FileIn, ...] = ()
    dockerfile: str | None = None
    """The image is built from this file (absolute path), in place of the order's image."""
    context: str = ""
    """The directory of that build (absolute path)."""
    setup: tuple[str, ...] = ()
    """Commands that make the image ready, run as root in a box of their own; the result is kept as an image."""
    setup_hosts: tuple[str, ...] = ()
    """As `allow_hosts`, for these commands."""
    setup_files: tuple[str, ...] = ()
    """Files of the workspace, relative to it, that these commands see at the same place; lock files as a rule."""
    setup_timeout_s: float = 900.0
    """For building and set-up together."""
    mcp: str = ""
    """Hash of the session's MCP servers, which `worker.contract.mcp` keeps in its directory; "" for none."""

    @property
    def makes_image(self) -> bool:
        """True when the box does not run on the order's image itself."""
        return bool(self.setup or self.dockerfile)
