"""Files that a session brings along are put into its workspace before the first call: order → **files_in** → workspace.

The workspace may hold links that lead anywhere, so nothing here follows one. In a private copy the file is put into the
copy's untouched twin too: it is not the session's work, and no part of the patch.
"""

import errno
import hashlib
import os
import shutil
import stat
from contextlib import suppress
from pathlib import Path

from worker.beneath import OPEN_DIRECTORY
from worker.contract.extras import FILES_DIR, FileIn
from worker.contract.orders import BoxOrder, WorkspaceMode
from worker.errors import WorkspaceRefused
from worker.workspace import Workspace

DONE = "files-put"
"""In the session's directory: a later box of the session finds the files as the session left them."""

NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP)
"""What a file system says that gives a file no second name."""


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
    """Put one file below a root; no link is followed. What a killed node had put, wholly or in part, is put again.

    Raises:
        OSError: it cannot be put, or another one stands there and may not be replaced.
    """
    directory, _, name = file.path.rpartition("/")
    parent = _directory(root, directory, place)
    # The same name for each attempt: what a killed one left is found and removed.
    draft = f".sandhog-put-{hashlib.sha256(os.fsencode(source)).hexdigest()[:12]}"
    try:
        _write(source, parent, name if may_replace else draft, file, place)
        if not may_replace:
            _place(source, parent, draft, name)
    finally:
        os.close(parent)


def _write(source: Path, parent: int, name: str, file: FileIn, place: Workspace) -> None:
    with suppress(FileNotFoundError):
        os.unlink(name, dir_fd=parent)
    descriptor = os.open(name, NEW_FILE, 0o755 if file.is_executable else 0o644, dir_fd=parent)
    with source.open("rb") as content, os.fdopen(descriptor, "wb") as target:
        shutil.copyfileobj(content, target)
        _give(target.fileno(), place)


def _place(source: Path, parent: int, draft: str, name: str) -> None:
    """Give a draft its name, unless another file has that: it is there whole, or not at all."""
    try:
        try:
            os.link(draft, name, src_dir_fd=parent, dst_dir_fd=parent, follow_symlinks=False)
        except OSError as error:
            if error.errno not in NO_LINKS:
                raise
            os.close(os.open(name, NEW_FILE, dir_fd=parent))
            os.rename(draft, name, src_dir_fd=parent, dst_dir_fd=parent)
    except FileExistsError:
        if not _is_copy(source, parent, name):
            raise
    finally:
        with suppress(FileNotFoundError):
            os.unlink(draft, dir_fd=parent)


def _is_copy(source: Path, parent: int, name: str) -> bool:
    there = os.stat(name, dir_fd=parent, follow_symlinks=False)
    if not stat.S_ISREG(there.st_mode) or there.st_size != source.stat().st_size:
        return False
    # Whoever owns the directory may put a pipe in its place meanwhile.
    descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=parent)
    with os.fdopen(descriptor, "rb") as file:
        return file.read(there.st_size) == source.read_bytes()


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
