"""Files that a session brings along are put into its workspace before the first call: order → **files_in** → workspace.

The workspace may hold links that lead anywhere, so nothing here follows one. In a private copy the file is put into the
copy's untouched twin too: it is not the session's work, and no part of the patch.
"""

import os
import shutil
from contextlib import suppress
from pathlib import Path

from worker.beneath import OPEN_DIRECTORY
from worker.contract.extras import FILES_DIR, FileIn
from worker.contract.orders import BoxOrder, WorkspaceMode
from worker.errors import WorkspaceRefused
from worker.workspace import Workspace

DONE = "files-put"
"""In the session's directory: a later box of the session finds the files as the session left them."""


def put_files(order: BoxOrder, place: Workspace) -> None:
    """Put the order's files where they belong, once in the session's life.

    Raises:
        WorkspaceRefused: one of them cannot be put; those before it are there.
    """
    session_dir = Path(order.session_dir)
    if not order.extras.files or (session_dir / DONE).exists():
        return
    roots = [place.directory]
    if order.workspace_mode is WorkspaceMode.COPY:
        roots.append(session_dir / "base")
    for number, file in enumerate(order.extras.files):
        for root in roots:
            try:
                put_file(session_dir / FILES_DIR / str(number), root, file, place, may_replace=len(roots) > 1)
            except FileExistsError as error:
                words = f"{file.path} is in the workspace already; a file of yours is not overwritten."
                raise WorkspaceRefused(words) from error
            except OSError as error:
                raise WorkspaceRefused(f"{file.path} cannot be put into the workspace: {error.strerror}") from error
    (session_dir / DONE).touch()


def put_file(source: Path, root: Path, file: FileIn, place: Workspace, *, may_replace: bool) -> None:
    """Put one file below a root; no link is followed.

    Raises:
        OSError: it cannot be put, or stands there and may not be replaced.
    """
    directory, _, name = file.path.rpartition("/")
    parent = _directory(root, directory, place)
    try:
        if may_replace:
            with suppress(FileNotFoundError):
                os.unlink(name, dir_fd=parent)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(name, flags, 0o755 if file.is_executable else 0o644, dir_fd=parent)
        with source.open("rb") as content, os.fdopen(descriptor, "wb") as target:
            shutil.copyfileobj(content, target)
            _give(target.fileno(), place)
    finally:
        os.close(parent)


def _directory(root: Path, directory: str, place: Workspace) -> int:
    """Open a directory below the root, made where it is missing; the caller closes the descriptor."""
    current = os.open(root, OPEN_DIRECTORY)
    for name in directory.split("/") if directory else ():
        if name in ("", ".", ".."):
            os.close(current)
            raise OSError(22, "a path that leads elsewhere")
        try:
            try:
                os.mkdir(name, 0o755, dir_fd=current)
                is_new = True
            except FileExistsError:
                is_new = False
            following = os.open(name, OPEN_DIRECTORY, dir_fd=current)
            if is_new:
                _give(following, place)
        finally:
            os.close(current)
        current = following
    return current


def _give(descriptor: int, place: Workspace) -> None:
    if os.geteuid() == 0:
        os.fchown(descriptor, place.uid, place.gid)
