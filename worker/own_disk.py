"""File systems of fixed size for private copies, which refuse the very byte beyond the bound: workspace → **own disk**.

A folder with one has the file `disk.img` and, where it is mounted, the directory `disk`; the workspace lies below that,
since what is mounted cannot be renamed. A warm box's disk becomes its session's by being mounted at a second place.

On a node that stays, one of each size stands ready, so that a session need not wait for the kernel to make a device of
it. Whoever has one mounted holds a lock on its file, which ends with the process: what nobody holds is left over. Only
file systems that one kernel alone can reach are used: two kernels on one image would ruin it, and a session whose
node is lost goes on at another.
"""

import fcntl
import logging
import os
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from worker import loop_device
from worker.contract.places import COPY_DIR, DISK_FILE
from worker.copying import copy_sparse

log = logging.getLogger(__name__)

IMAGE, MOUNT, WORK = DISK_FILE, "disk", COPY_DIR
SPARE = "spare-"
LOCAL = frozenset({"ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs", "zfs", "bcachefs", "overlay", "tmpfs"})
LEAST_BYTES = 4 * 1024 * 1024
JOURNALED_BYTES = 64 * 1024 * 1024
"""A smaller one has no room for a journal."""
MKFS_TIMEOUT_S = 60
STALE_S = 3600.0
"""A spare disk of another process that is not mounted is left alone for so long."""
SBIN = "/usr/local/sbin:/usr/sbin:/sbin"


def size_bytes(folder: Path) -> int | None:
    """Return the size of the folder's disk; None when it has none."""
    try:
        return (folder / IMAGE).stat().st_size
    except FileNotFoundError:
        return None


def copy_dir(folder: Path) -> Path:
    """Return where the folder's private copy lies, or will lie."""
    return folder / MOUNT / WORK if (folder / IMAGE).exists() else folder / WORK


class OwnDisks:
    """The disks that this process has mounted. Thread-safe; of one folder one thread at a time."""

    def __init__(self, templates: Path, *, makes: bool = True, has_spares: bool = False) -> None:
        """`templates`: a directory for empty disks, which are copied. Without `makes` only old ones are opened.

        `has_spares`: have one of each size stand ready, for a process that serves many sessions.
        """
        self._has_spares = has_spares
        self._templates = templates
        self._makes = makes
        self._held: dict[Path, int] = {}
        self._spares: dict[int, Path | None] = {}
        """By size; None while one is being made."""
        self._makers: list[threading.Thread] = []
        self._guard = threading.Lock()

    def make(self, folder: Path, size_bytes: int) -> bool:
        """Give the folder an empty disk; False where none can be had, which leaves nothing behind."""
        is_able = os.geteuid() == 0 and loop_device.CONTROL.exists()
        if not self._makes or not is_able or size_bytes < LEAST_BYTES:
            return False
        try:
            if loop_device.file_system_of(folder) not in LOCAL:
                return False
            if not self._move_spare(folder, size_bytes):
                self._write(self._template(size_bytes), folder / IMAGE)
                self.open(folder)
            self._make_spare(size_bytes)
        except (OSError, subprocess.SubprocessError) as error:
            log.warning("a workspace has no disk of its own and is watched", extra={"error": str(error)})
            # No rights, devices or mkfs: the next one need not be tried.
            self._makes = not isinstance(error, (PermissionError, FileNotFoundError))
            with suppress(OSError):
                self.remove(folder)
            return False
        return True

    def open(self, folder: Path) -> None:
        """Have the folder's disk mounted and hold it. Idempotent; does nothing for a folder without one.

        Raises:
            OSError: it cannot be mounted here.
        """
        image, place = folder / IMAGE, folder / MOUNT
        if not image.exists():
            return
        with self._guard:
            if folder not in self._held:
                file = os.open(image, os.O_RDONLY | os.O_CLOEXEC)
                fcntl.flock(file, fcntl.LOCK_SH)
                self._held[folder] = file
        place.mkdir(mode=0o711, exist_ok=True)
        if not loop_device.is_mounted(place):
            loop_device.mount_file(image, place)

    def move(self, old: Path, new: Path) -> None:
        """Make the old folder's disk the new folder's, also under a box that has it mounted.

        Raises:
            OSError: it cannot be.
        """
        (new / MOUNT).mkdir(mode=0o711, exist_ok=True)
        loop_device.mount_again(old / MOUNT, new / MOUNT)
        (old / IMAGE).rename(new / IMAGE)
        with self._guard:
            if old in self._held:
                self._held[new] = self._held.pop(old)
        loop_device.unmount(old / MOUNT)
        (old / MOUNT).rmdir()

    def let_go(self, folder: Path) -> None:
        """Unmount the folder's disk, which stays. Idempotent.

        Raises:
            OSError: it cannot be.
        """
        loop_device.unmount(folder / MOUNT)
        with self._guard:
            file = self._held.pop(folder, None)
        if file is not None:
            os.close(file)

    def remove(self, folder: Path) -> None:
        """Unmount and delete the folder's disk. Idempotent.

        Raises:
            OSError: it cannot be.
        """
        if not (folder / IMAGE).exists() and not (folder / MOUNT).exists():
            return
        self.let_go(folder)
        with suppress(FileNotFoundError):
            (folder / MOUNT).rmdir()
        (folder / IMAGE).unlink(missing_ok=True)

    def sweep(self, folders: Iterable[Path]) -> list[Path]:
        """Unmount the disks that no living process holds; return their folders. Old spare ones are removed."""
        for spare in self._templates.glob(f"{SPARE}*"):
            with suppress(OSError):
                # Whoever has one mounted holds it; one that is not mounted yet may be in the making.
                is_left = loop_device.is_mounted(spare / MOUNT) or time.time() - spare.stat().st_mtime > STALE_S
                if is_left and _unmount_unheld(spare):
                    self.remove(spare)
                    spare.rmdir()
        swept = []
        for folder in folders:
            try:
                if loop_device.is_mounted(folder / MOUNT) and _unmount_unheld(folder):
                    swept.append(folder)
            except OSError as error:
                log.warning("a disk is left mounted", extra={"folder": str(folder), "error": str(error)})
        return swept

    def close(self) -> None:
        """Unmount all; they stay where they are, save the spare ones. None can be made afterwards."""
        self._makes = False
        for maker in self._makers:
            maker.join()
        with self._guard:
            spares = [spare for spare in self._spares.values() if spare is not None]
            self._spares.clear()
        for spare in spares:
            with suppress(OSError):
                self.remove(spare)
                spare.rmdir()
        with self._guard:
            folders = list(self._held)
        for folder in folders:
            try:
                self.let_go(folder)
            except OSError as error:
                log.warning("a disk is left mounted", extra={"folder": str(folder), "error": str(error)})

    def _move_spare(self, folder: Path, size_bytes: int) -> bool:
        with self._guard:
            spare = self._spares.pop(size_bytes, None) if self._spares.get(size_bytes) is not None else None
        if spare is None:
            return False
        try:
            self.move(spare, folder)
            spare.rmdir()
        except OSError as error:
            # Such as sessions on another file system than the spare ones.
            log.info("a spare disk could not be used", extra={"folder": str(folder), "error": str(error)})
            for left in (folder, spare):
                self.remove(left)
            spare.rmdir()
            return False
        return True

    def _make_spare(self, size_bytes: int) -> None:
        """Begin to make a disk of this size ready, unless there is one."""
        with self._guard:
            if size_bytes in self._spares or not self._makes or not self._has_spares:
                return
            self._spares[size_bytes] = None
            maker = threading.Thread(target=self._spare, args=(size_bytes,), name="spare-disk", daemon=True)
            self._makers = [each for each in self._makers if each.is_alive()] + [maker]
            maker.start()

    def _spare(self, size_bytes: int) -> None:
        spare = Path(tempfile.mkdtemp(prefix=f"{SPARE}{size_bytes}-", dir=self._templates))
        try:
            self._write(self._template(size_bytes), spare / IMAGE)
            self.open(spare)
        except (OSError, subprocess.SubprocessError) as error:
            log.warning("no spare disk was made", extra={"error": str(error)})
            with suppress(OSError):
                self.remove(spare)
                spare.rmdir()
            with self._guard:
                del self._spares[size_bytes]
        else:
            with self._guard:
                self._spares[size_bytes] = spare

    def _template(self, size_bytes: int) -> Path:
        """Return an empty disk of this size, made if it is not there: copying one takes a third of the time."""
        template = self._templates / f"empty-{size_bytes}.img"
        if template.exists():
            return template
        self._templates.mkdir(parents=True, exist_ok=True)
        draft = template.with_name(f".{template.name}-{os.getpid()}-{threading.get_ident()}")
        program = shutil.which("mkfs.ext4", path=f"{os.environ.get('PATH', '')}:{SBIN}")
        if program is None:
            raise FileNotFoundError("there is no mkfs.ext4 here")
        journal = ["-J", "size=4"] if size_bytes >= JOURNALED_BYTES else ["-O", "^has_journal"]
        lazy = "lazy_itable_init=1,lazy_journal_init=1,nodiscard"
        try:
            with draft.open("wb") as file:
                file.truncate(size_bytes)
            argv = [program, "-q", "-F", "-m", "0", *journal, "-E", lazy, os.fspath(draft)]
            subprocess.run(argv, check=True, capture_output=True, timeout=MKFS_TIMEOUT_S)
            draft.rename(template)
        finally:
            draft.unlink(missing_ok=True)
        return template

    def _write(self, template: Path, image: Path) -> None:
        """Copy the empty disk; what a process that was killed left half-written has no workspace and is replaced."""
        image.unlink(missing_ok=True)
        draft = image.with_name(f"{image.name}.part")
        with template.open("rb") as source, draft.open("wb") as target:
            os.fchmod(target.fileno(), 0o600)
            copy_sparse(source.fileno(), target.fileno(), os.fstat(source.fileno()).st_size)
        draft.rename(image)


def _unmount_unheld(folder: Path) -> bool:
    """Unmount the folder's disk unless a process holds it, whereby none can begin to; whether it was."""
    file = os.open(folder / IMAGE, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        loop_device.unmount(folder / MOUNT)
    except BlockingIOError:
        return False
    finally:
        os.close(file)
    return True
