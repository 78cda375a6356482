"""What became of a session's workspace, once nobody works in it: box → **results** → patch, apply, release."""

import stat
from contextlib import suppress
from pathlib import Path

from worker.apply import apply_result, load_result, save_result
from worker.beneath import change_mode, remove_tree, write_durably
from worker.changes import Changes, changes_between, shown
from worker.contract.orders import BoxOrder, FinishOutcome, WorkspaceMode
from worker.errors import ResultFailed, WorkspaceRefused
from worker.own_disk import OwnDisks
from worker.patch import pieces
from worker.setids import strip_set_ids
from worker.workspace import locked, make_session_dir, opened, source_of

COLLECTED = "collected"
"""In the session's directory: the generation whose patch is made, whatever happens in the copy from then on."""


def release(order: BoxOrder, keep: bool, disks: OwnDisks | None = None) -> None:
    """Remove a private copy and its base, unless they are kept. Idempotent; a bound directory is never touched.

    A disk of its own that is kept is not mounted afterwards; the session mounts it again when it goes on.

    Raises:
        OSError: something cannot be removed.
    """
    session_dir = Path(order.session_dir)
    if order.workspace_mode is not WorkspaceMode.COPY or not session_dir.exists():
        return
    if keep:
        if disks is not None:
            disks.let_go(session_dir)
        return
    # The copy first: without its base, all of it would look added.
    if disks is not None:
        disks.remove(session_dir)
    for name in ("work", "base", "work.part", "base.part"):
        remove_tree(session_dir / name)


def collect_copy(order: BoxOrder, disks: OwnDisks | None = None) -> None:
    """Make a private copy's patch and result before something that is not the session's work changes it. Idempotent.

    Raises:
        OSError, ResultFailed, WorkspaceRefused: they cannot be made.
    """
    session_dir = Path(order.session_dir)
    with locked(session_dir):
        if not _is_collected(order):
            _collect(order, session_dir / "patch.diff", disks)
            write_durably(session_dir / COLLECTED, [str(order.generation).encode()])


def finish_copy(order: BoxOrder, apply: bool, keep: bool = False, disks: OwnDisks | None = None) -> FinishOutcome:
    """Write a private copy's patch and result, apply it if asked, and release the copy. Idempotent.

    A failure is told in the outcome: then the copy, or at least the kept result, is still there.
    """
    session_dir = Path(order.session_dir)
    patch_path = session_dir / "patch.diff"
    try:
        make_session_dir(session_dir)
        with locked(session_dir):
            changes = _collect(order, patch_path, disks)
    except (OSError, ResultFailed, WorkspaceRefused) as error:
        return FinishOutcome(session=order.session, error=f"The session's changes cannot be collected: {error}")
    notes = [f"Not in the patch: {note}" for note in changes.left_out]
    conflicts: tuple[str, ...] = ()
    failure: str | None = None
    try:
        if apply:
            conflicts = apply_result(session_dir, Path(order.workspace)).conflicts
    except ResultFailed as error:
        failure = str(error)
    try:
        release(order, keep, disks)
    except OSError as error:
        notes.append(f"The private copy in {session_dir} could not be removed: {error}")
    return FinishOutcome(
        session=order.session,
        patch_path=str(patch_path),
        changed=[shown(change.path) for change in changes.items],
        applied=apply and not conflicts and failure is None,
        conflicts=[shown(path) for path in conflicts],
        notes=notes,
        error=failure,
    )


def _is_collected(order: BoxOrder) -> bool:
    """Whether the patch of this generation is made: a session that goes on gets a new one."""
    try:
        return (Path(order.session_dir) / COLLECTED).read_text() == str(order.generation)
    except FileNotFoundError:
        return False


def _collect(order: BoxOrder, patch_path: Path, disks: OwnDisks | None) -> Changes:
    """Return the copy's changes, now on disk as patch and result; the kept ones where the copy is gone already."""
    session_dir = Path(order.session_dir)
    work, base = opened(session_dir, disks), session_dir / "base"
    if work.exists() and not _is_collected(order):
        # A command may have shut it to everybody. Its own mode is no part of a patch, and a check goes there next.
        with suppress(OSError):
            change_mode(str(work), None, stat.S_IRWXU)
        changes = changes_between(base, work)
        write_durably(patch_path, pieces(changes, base, work))
        save_result(session_dir, changes, work)
        return changes
    kept = load_result(session_dir)
    if kept is None:
        # No box was ever started.
        write_durably(patch_path, [])
        return Changes(())
    return kept


def finish_bind(order: BoxOrder) -> FinishOutcome:
    """Take the set-id bits back that a session may have left on its bound directory.

    Raises:
        WorkspaceRefused: the directory is gone.
        OSError: the directory cannot be read.
    """
    started = Path(order.session_dir) / "bound"
    if not started.exists():
        return FinishOutcome(session=order.session)
    stripped = strip_set_ids(source_of(order, Path(order.session_dir)), started.stat().st_mtime_ns)
    return FinishOutcome(session=order.session, notes=[f"Set-id bit removed: {path}" for path in stripped])
