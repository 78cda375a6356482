"""Files and directories that go to and fro as a tar, on this machine: `sandhog cp` → **trees** → disk.

Of a session that has ended, what is kept of its private copy is read and written here, and no box is needed. The copy
is as a model left it: nothing is reached through a link, and what is written is written with the copy's own rights.
"""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from worker import loop_device
from worker.beneath import open_beneath
from worker.contract.trees import OPEN_DIRECTORY, TreeRefused, check_tree, tar_pieces
from worker.contract.trees import TreeBounds as PackBounds
from worker.errors import ResultFailed
from worker.own_disk import IMAGE, MOUNT, OwnDisks, copy_dir
from worker.sources.jobs import Bounds
from worker.sources.unpack import ArchiveRefused, unpack_named

WORKSPACE = "/workspace"


def pack(path: Path, target: IO[bytes]) -> None:
    """Write a tar of a file or directory of this machine; links to the path itself are followed, others are kept.

    Raises:
        ResultFailed: it cannot be read, or is too large.
    """
    try:
        path = path.resolve(strict=True)
        above = os.open(path.parent, OPEN_DIRECTORY)
    except (OSError, RuntimeError) as exc:
        raise ResultFailed(f"{path} cannot be read: {exc}") from exc
    try:
        _write(above, path.name or ".", path.name or "root", target)
    finally:
        os.close(above)


def unpack(source: IO[bytes], path: Path, name: str) -> None:
    """Read a tar into a directory that is there, under `name`, or under the path's own name in a directory that is.

    Raises:
        ResultFailed: it cannot be written, or the tar is refused.
    """
    above, own_name = (path, name) if path.is_dir() else (path.parent, path.name)
    with _words(path):
        directory = os.open(above.resolve(strict=True), OPEN_DIRECTORY)
        try:
            unpack_named(source, directory, own_name, Bounds())
        finally:
            os.close(directory)


def pack_kept(session_dir: Path, inside: str, target: IO[bytes]) -> None:
    """Write a tar of a file or directory of an ended session's copy.

    Raises:
        ResultFailed: it is not there, or too large.
    """
    above, _, name = below_workspace(inside).rpartition("/")
    with _kept_copy(session_dir) as root:
        try:
            parent = open_beneath(root, above)
        except OSError as exc:
            raise ResultFailed(f"{inside} is not in the workspace; links are not followed") from exc
        try:
            _write(parent, name or ".", name or "workspace", target)
        finally:
            os.close(parent)


def unpack_kept(source: IO[bytes], session_dir: Path, inside: str, name: str) -> None:
    """Read a tar into an ended session's copy, as `unpack`, with the rights of the copy's owner.

    Raises:
        ResultFailed: it cannot be written, or the tar is refused.
    """
    path = below_workspace(inside)
    with _kept_copy(session_dir) as root, _words(inside), _rights_of(os.fstat(root)):
        above, own_name = _place(root, path, name)
        try:
            unpack_named(source, above, own_name, Bounds())
        finally:
            os.close(above)


def below_workspace(inside: str) -> str:
    """Return a path of a box as one below its workspace; "" is the workspace itself.

    Raises:
        ResultFailed: it leads elsewhere, and of an ended session nothing else is kept.
    """
    path = os.path.normpath(Path(WORKSPACE) / inside)
    if path != WORKSPACE and not path.startswith(f"{WORKSPACE}/"):
        raise ResultFailed(f"{inside} is not below {WORKSPACE}; of a session without a box nothing else is kept")
    return path.removeprefix(WORKSPACE).lstrip("/")


def _place(root: int, path: str, name: str) -> tuple[int, str]:
    """Return a descriptor of the directory to put a tar in, and the name there."""
    with contextlib.suppress(OSError):
        return open_beneath(root, path), name
    above, _, own_name = path.rpartition("/")
    return open_beneath(root, above), own_name


def _write(parent: int, name: str, shown: str, target: IO[bytes]) -> None:
    try:
        check_tree(parent, name, PackBounds())
        for piece in tar_pieces(parent, name, shown):
            target.write(piece)
        target.flush()
    except TreeRefused as exc:
        raise ResultFailed(f"{shown} is not packed: {exc}") from exc
    except OSError as exc:
        raise ResultFailed(f"{shown} cannot be packed: {exc}") from exc


@contextlib.contextmanager
def _words(path: object) -> Iterator[None]:
    """Say of a tar that cannot be unpacked where it was to go."""
    try:
        yield
    except ArchiveRefused as exc:
        raise ResultFailed(f"What came is refused: {exc}") from exc
    except OSError as exc:
        raise ResultFailed(f"{path} cannot be written: {exc}") from exc


@contextlib.contextmanager
def _rights_of(owner: os.stat_result) -> Iterator[None]:
    """Act with the rights of a user inside the block, if we can."""
    if os.geteuid() != 0:
        yield
        return
    os.setegid(owner.st_gid)
    os.seteuid(owner.st_uid)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)


@contextlib.contextmanager
def _kept_copy(session_dir: Path) -> Iterator[int]:
    """Yield a descriptor of a session's private copy; a disk of its own is mounted meanwhile."""
    with contextlib.ExitStack() as stack:
        image = session_dir / IMAGE
        try:
            if image.exists() and not loop_device.is_mounted(session_dir / MOUNT):
                _hold(image, stack)
                disks = OwnDisks(session_dir, makes=False)
                disks.open(session_dir)
                stack.callback(disks.let_go, session_dir)
            root = os.open(copy_dir(session_dir), OPEN_DIRECTORY)
        except OSError as exc:
            words = f"The private copy of {session_dir.name} cannot be read here: {exc}"
            raise ResultFailed(words) from exc
        stack.callback(os.close, root)
        yield root


def _hold(image: Path, stack: contextlib.ExitStack) -> None:
    """Make sure that no node has the disk mounted where this process does not see it: two kernels would ruin it."""
    file = os.open(image, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise ResultFailed("Its disk is mounted by a node now; try again when it has ended.") from None
    finally:
        os.close(file)
