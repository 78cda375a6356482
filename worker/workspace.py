"""A session's workspace on its node: bound, or copied privately and given back as a patch: order → **workspace** → box.

A warm box is born with directories of its own: the copy goes into its empty one, and both directories then move to the
session's, which a bind mount does not notice.

Below the session's directory stand `work` (the copy that the box sees; below `disk` where it has a file system of its
own, see `own_disk`), `base` (the same without `.git`, as it was at the start), `spill`, and in the end `patch.diff` and
`result`. `work` gets its name last, so it is whole or not there.
"""

import errno
import fcntl
import hashlib
import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from sandbox.pool import Newborn
from sandbox.profiles import shown_bytes
from worker.beneath import OPEN_DIRECTORY, remove_tree, write_durably
from worker.contract.orders import BoxOrder, WorkspaceMode
from worker.copying import MAX_DEPTH, Copier, TooDeep
from worker.errors import SourceUnfit, WorkspaceRefused
from worker.own_disk import IMAGE, OwnDisks, copy_dir
from worker.own_disk import size_bytes as disk_size_bytes

FIRST_AGENT_UID = 600_000
AGENT_UIDS = 1_400_000
"""Ends below 2,097,151, the largest id that a tar archive of the plain format can hold."""
LOCK_TIMEOUT_S = 600.0

_LOCK_POLL_S = 0.05


@dataclass(frozen=True)
class Workspace:
    """What a box is given to work on."""

    directory: Path
    """Mounted at /workspace."""
    uid: int
    """Who commands run as."""
    gid: int
    spill_dir: Path
    """Mounted read-only at /spill; the worker writes there."""
    mode: WorkspaceMode
    special_files: int = 0
    """Sockets, FIFOs and devices that the copy made by this call left out."""
    size_bytes: int | None = None
    """Of the file system that the directory has for itself; None where it has none."""


NOWHERE = Workspace(Path("/"), 0, 0, Path("/"), WorkspaceMode.COPY)
"""For what a box of a kind is made of, whichever workspace it gets."""


def agent_uid(name: str) -> int:
    """Return the uid (and gid) of commands on a private copy, when the worker is root; `name` is the session or box."""
    return FIRST_AGENT_UID + int.from_bytes(hashlib.sha256(name.encode()).digest()) % AGENT_UIDS


def is_new(order: BoxOrder) -> bool:
    """Whether the order's session never had a box or workspace here: only such a one may get a warm box."""
    session_dir = Path(order.session_dir)
    if order.workspace_mode is not WorkspaceMode.COPY:
        return False
    if any((session_dir / name).exists() for name in ("work", "work.part", IMAGE, "base", "patch.diff", "result")):
        return False
    try:
        return not any((session_dir / "spill").iterdir())
    except FileNotFoundError:
        return True
    except OSError:
        return False


def directory_of(order: BoxOrder) -> Path:
    """Return where the order's workspace lies, or will lie."""
    is_copy = order.workspace_mode is WorkspaceMode.COPY
    return copy_dir(Path(order.session_dir)) if is_copy else Path(order.workspace)


def own_size_bytes(order: BoxOrder) -> int | None:
    """Return the size of the file system that the order's workspace has for itself; None where it has none."""
    return disk_size_bytes(Path(order.session_dir)) if order.workspace_mode is WorkspaceMode.COPY else None


def prepare(
    order: BoxOrder, newborn: Newborn | None = None, *, disks: OwnDisks | None = None, size_bytes: int | None = None
) -> Workspace:
    """Return the session's workspace, made if it is not there. Idempotent.

    `newborn`: the directories of the box that the session gets, for a session that `is_new`; they become its own.
    `size_bytes`: what a copy may hold, if `disks` can enforce it.

    Raises:
        SourceUnfit: the session's copy became its result and was removed.
        WorkspaceRefused: it cannot be had; nothing half-made is left.
    """
    session_dir = Path(order.session_dir)
    try:
        if order.workspace_mode is WorkspaceMode.BIND:
            return _bind(order, session_dir)
        return _copy(order, session_dir, newborn, disks, size_bytes)
    except OSError as error:
        raise WorkspaceRefused(_refusal(order, error, size_bytes)) from error


def _bind(order: BoxOrder, session_dir: Path) -> Workspace:
    source = source_of(order, session_dir)
    owner = source.stat()
    worker_uid = os.geteuid()
    if worker_uid not in (0, owner.st_uid) or (order.as_root and worker_uid != 0):
        wanted = 0 if order.as_root else owner.st_uid
        raise WorkspaceRefused(
            f"{source} is owned by uid {owner.st_uid} and its commands would run as uid {wanted}, but this worker is "
            f"uid {worker_uid}. Work on a private copy (--copy), or start the worker as root."
        )
    if owner.st_uid == 0 and not order.as_root:
        raise WorkspaceRefused(
            f"{source} is owned by root, and commands in the box would run as root on it. Work on a private copy "
            "(--copy, with --apply to have the result put back), or bind it all the same with --as-root."
        )
    spill_dir = make_session_dir(session_dir)
    started = session_dir / "bound"
    if not started.exists():
        write_durably(started, [])
    uid, gid = (0, 0) if order.as_root else (owner.st_uid, owner.st_gid)
    return Workspace(source, uid, gid, spill_dir, WorkspaceMode.BIND)


def _copy(
    order: BoxOrder, session_dir: Path, newborn: Newborn | None, disks: OwnDisks | None, size_bytes: int | None
) -> Workspace:
    if not (session_dir / IMAGE).exists() and not copy_dir(session_dir).exists():
        source_of(order, session_dir)
    spill_dir = make_session_dir(session_dir)
    with locked(session_dir):
        work = opened(session_dir, disks)
        uid, gid = (newborn.uid, newborn.gid) if newborn is not None else _owner_of(work, order)
        copier = Copier(uid, gid) if os.geteuid() == 0 else Copier()
        if not work.exists():
            if (session_dir / "result").exists():
                # Made anew it would look as if the session had done nothing, and that would become its patch.
                raise SourceUnfit(f"{order.session} has ended: its private copy is gone, and its patch is kept.")
            make_copy(source_of(order, session_dir), session_dir, copier, newborn, disks, size_bytes)
        elif newborn is not None:
            raise WorkspaceRefused(f"{work} is there already; a warm box must not be given to an old session.")
    return Workspace(
        copy_dir(session_dir),
        uid,
        gid,
        spill_dir,
        WorkspaceMode.COPY,
        copier.special_files,
        disk_size_bytes(session_dir),
    )


def _owner_of(work: Path, order: BoxOrder) -> tuple[int, int]:
    """Return the user that a session's first box had, or is to have."""
    if os.geteuid() != 0:
        if order.as_root:
            raise WorkspaceRefused(
                f"Commands of profile {order.profile!r} run as root, but this worker is uid {os.geteuid()} and cannot "
                "give files to root. Start the worker as root, or name another profile."
            )
        return os.geteuid(), os.getegid()
    if order.as_root:
        return 0, 0
    try:
        status = work.lstat()
    except FileNotFoundError:
        return (agent_uid(order.session),) * 2
    if status.st_uid == 0 or not stat.S_ISDIR(status.st_mode):
        raise WorkspaceRefused(f"{work} is not as it was left: it should be a directory that root does not own.")
    return status.st_uid, status.st_gid


def make_copy(
    source: Path,
    session_dir: Path,
    copier: Copier,
    newborn: Newborn | None,
    disks: OwnDisks | None,
    size_bytes: int | None,
    *,
    begun_as: Path | None = None,
) -> None:
    """Make the session's copy of a directory; `begun_as` is what it is compared with, where that is another one."""
    base = session_dir / "base"
    base_part = base.with_name("base.part")
    try:
        for left in (session_dir / "work.part", base_part, base):
            remove_tree(left)
        if disks is not None:
            disks.remove(session_dir)
        if newborn is None:
            if disks is not None and size_bytes is not None:
                disks.make(session_dir, size_bytes)
            work = copy_dir(session_dir)
            copier.copy(source, work.with_name("work.part"))
        else:
            work = _take(newborn, session_dir, disks)
            copier.fill(source, work.with_name("work.part"))
        # From the copy, not from the source: what changes there meanwhile must not look like the session's work.
        Copier(without=frozenset({".git"})).copy(begun_as or work.with_name("work.part"), base_part)
        base_part.rename(base)
        work.with_name("work.part").rename(work)
    except (OSError, TooDeep) as error:
        for left in (copy_dir(session_dir).with_name("work.part"), base_part, base):
            remove_tree(left)
        if disks is not None:
            disks.remove(session_dir)
        if isinstance(error, TooDeep):
            raise WorkspaceRefused(f"{source} is nested deeper than {MAX_DEPTH} directories.") from error
        raise


def opened(session_dir: Path, disks: OwnDisks | None) -> Path:
    """Return where the session's copy lies, mounted if it has a disk of its own. The session's directory is locked."""
    if disks is not None:
        disks.open(session_dir)
    elif (session_dir / IMAGE).exists():
        raise WorkspaceRefused(f"{session_dir / IMAGE} cannot be mounted by this worker.")
    return copy_dir(session_dir)


def _take(newborn: Newborn, session_dir: Path, disks: OwnDisks | None) -> Path:
    """Make a newborn's directories the session's; where its copy will lie, which is still named `work.part`.

    The box keeps what is mounted, whatever its path: the one in place of the session's own spill directory, which is
    empty, the other as the copy.
    """
    newborn.spill_dir.rename(session_dir / "spill")
    if disks is None or newborn.size_bytes is None:
        newborn.workspace_dir.rename(session_dir / "work.part")
        return session_dir / "work"
    disks.move(newborn.folder, session_dir)
    work = copy_dir(session_dir)
    work.rename(work.with_name("work.part"))
    return work


def source_of(order: BoxOrder, session_dir: Path) -> Path:
    """Return the order's directory without links in its path, if it can be a workspace at all."""
    given = Path(order.workspace)
    if not given.is_absolute() or not session_dir.is_absolute():
        raise WorkspaceRefused(f"{given} or {session_dir} is a relative path; the order must hold absolute ones.")
    try:
        source = given.resolve(strict=True)
    except FileNotFoundError as error:
        raise WorkspaceRefused(f"{given} does not exist on this node. Give a directory that does.") from error
    except RuntimeError as error:
        raise WorkspaceRefused(f"{given} is a loop of links. Give a directory.") from error
    if not source.is_dir():
        raise WorkspaceRefused(f"{given} is not a directory. Give a directory.")
    place = session_dir.resolve()
    if place.is_relative_to(source) or source.is_relative_to(place):
        raise WorkspaceRefused(
            f"{given} and the session's directory {session_dir} lie inside each other. Work on another directory, or "
            "keep sessions elsewhere."
        )
    if not os.access(source, os.R_OK | os.X_OK):
        raise WorkspaceRefused(f"{given} cannot be read by this worker (uid {os.geteuid()}).")
    return source


def _refusal(order: BoxOrder, error: OSError, size_bytes: int | None) -> str:
    place = f" ({error.filename!s})" if error.filename else ""
    match error.errno:
        case errno.ENOSPC | errno.EDQUOT:
            bound = f" Its profile gives it {shown_bytes(size_bytes)}." if size_bytes is not None else ""
            where = f"{order.workspace} in {order.session_dir}"
            return f"There is no room for a private copy of {where}: {error.strerror}.{bound}"
        case errno.EACCES | errno.EPERM:
            return (
                f"{order.workspace} or {order.session_dir} cannot be used by this worker (uid {os.geteuid()}): "
                f"{error.strerror}{place}. Make it readable, or start the worker as a user who can read it."
            )
        case _:
            return f"The workspace {order.workspace} cannot be had: {error}."


def make_session_dir(session_dir: Path) -> Path:
    """Make the session's directory, closed to other users, and the spill directory in it; return the latter."""
    for parent in reversed(session_dir.parents):
        if not parent.exists():
            parent.mkdir(mode=0o711, exist_ok=True)
    session_dir.mkdir(mode=0o700, exist_ok=True)
    if session_dir.stat().st_mode & 0o077:
        session_dir.chmod(0o700)
    spill_dir = session_dir / "spill"
    spill_dir.mkdir(exist_ok=True)
    spill_dir.chmod(0o755)
    return spill_dir


@contextmanager
def locked(session_dir: Path) -> Iterator[None]:
    """Hold the session's directory against other workers that copy or finish it.

    Raises:
        WorkspaceRefused: another one holds it for longer than `LOCK_TIMEOUT_S`.
    """
    descriptor = os.open(session_dir, OPEN_DIRECTORY)
    deadline = time.monotonic() + LOCK_TIMEOUT_S
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError as error:
                if time.monotonic() > deadline:
                    raise WorkspaceRefused(f"{session_dir} is held by another worker; try again later.") from error
                time.sleep(_LOCK_POLL_S)
        yield
    finally:
        os.close(descriptor)
