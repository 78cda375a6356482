"""Fetches what sessions work on, and holds it while it is copied: order → **held** → the order with a directory."""

import hashlib
import logging
import os
import re
import secrets
import stat
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from pydantic import SecretStr

from sandbox.image_files import ImageFilesMissing
from worker.beneath import remove_tree
from worker.contract.orders import BoxOrder, WorkspaceMode
from worker.contract.sources import (
    ARCHIVE_FILE,
    ArchiveSource,
    EmptySource,
    GitSource,
    ImageSource,
    LocalSource,
    Source,
)
from worker.errors import SourceUnfit, WorkspaceRefused
from worker.own_disk import IMAGE
from worker.sources.confined import run_confined
from worker.sources.jobs import Bounds, GitJob, Said, UnpackJob
from worker.sources.remotes import Remote, Remotes

log = logging.getLogger(__name__)

LOOK_S = 0.5
MAX_SUBMODULES = 50
MAX_NESTING = 3
_KEPT = re.compile(r"[0-9a-f]{32}")
_COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")


class Copies(Protocol):
    """Takes files out of an image."""

    def copy_out(self, image: str, path: str, target: Path, most_bytes: int, principal: str = "") -> None:
        """Write a directory of an image as a tar archive to a file.

        Raises:
            SandboxError: the image or the path is not there, or it is larger.
            OSError: the file cannot be written.
        """


@dataclass(frozen=True)
class SourceSettings:
    """What a node fetches, and from where."""

    directory: Path
    """Where it is put meanwhile: every user of the machine can reach it, only this node lists it."""
    remotes: Remotes = field(default_factory=Remotes)
    roots: tuple[Path, ...] = ()
    """Directories below which local sources may lie."""
    bounds: Bounds = field(default_factory=Bounds)
    keep_bytes: int = 8 * 1024**3
    """What commits that were fetched may take while nobody needs them."""


class Sources:
    """Fetches sources for the sessions of this node. Thread-safe; each commit is fetched once at a time."""

    def __init__(self, settings: SourceSettings, images: Copies | None = None) -> None:
        self._settings = settings
        self._images = images
        self._guard = threading.Lock()
        self._fetching: dict[str, threading.Lock] = {}
        self._users: Counter[str] = Counter()
        self._cancelled: set[str] = set()
        self._active: set[str] = set()

    def sweep(self) -> None:
        """Remove what an earlier life of this node was fetching; commits that it had fetched stay.

        Raises:
            OSError: something cannot be removed.
        """
        directory = self._settings.directory
        for path in list(directory.iterdir()) if directory.is_dir() else ():
            if not _KEPT.fullmatch(path.name):
                remove_tree(path.with_name(path.name.removesuffix(".trash")))

    @contextmanager
    def held(self, order: BoxOrder) -> Iterator[BoxOrder]:
        """Yield the order with the directory that its copy is made from; one without a source as it is.

        Raises:
            WorkspaceRefused: it cannot be had; says why.
        """
        source, session_dir = order.source, Path(order.session_dir)
        if source is None:
            yield order
            return
        if order.workspace_mode is not WorkspaceMode.COPY:
            raise WorkspaceRefused("A workspace that is fetched is a private copy; it cannot be bound.")
        if _is_copied(session_dir):
            _forget_archive(session_dir)
            # The copy is made: what set-up looks at are the files as they were then.
            yield order.model_copy(update={"workspace": str(session_dir / "base")})
            return
        with self._wanted(order.session), self._directory(order, source) as directory:
            yield order.model_copy(update={"workspace": str(directory)})
        if _is_copied(session_dir):
            _forget_archive(session_dir)

    def cancel(self, session: str) -> None:
        """Break off what is being fetched for a session, if anything is."""
        with self._guard:
            if session in self._active:
                self._cancelled.add(session)

    def close(self) -> None:
        """Break off everything."""
        with self._guard:
            self._cancelled |= self._active

    @contextmanager
    def _wanted(self, session: str) -> Iterator[None]:
        with self._guard:
            self._active.add(session)
        try:
            yield
        finally:
            with self._guard:
                self._active.discard(session)
                self._cancelled.discard(session)

    def _check(self, session: str) -> Callable[[], None]:
        def check() -> None:
            with self._guard:
                is_cancelled = session in self._cancelled
            if is_cancelled:
                raise WorkspaceRefused("The session ended while its workspace was being fetched.")

        return check

    @contextmanager
    def _directory(self, order: BoxOrder, source: Source) -> Iterator[Path]:
        try:
            source.check()
        except ValueError as exc:
            raise SourceUnfit(str(exc)) from exc
        match source:
            case LocalSource():
                yield self._local(source)
            case GitSource():
                with self._commit(order, source) as tree:
                    yield tree
            case EmptySource():
                with self._scratch() as scratch:
                    yield _made(scratch / "tree")
            case ArchiveSource():
                with self._scratch() as scratch:
                    yield self._unpacked(order, Path(order.session_dir) / ARCHIVE_FILE, source.shown, scratch)
            case ImageSource():
                with self._scratch() as scratch:
                    yield self._copied_out(order, source, scratch)

    def _local(self, source: LocalSource) -> Path:
        try:
            path = Path(source.path).resolve(strict=True)
        except (OSError, RuntimeError) as exc:
            raise WorkspaceRefused(f"{source.path} is no directory of this node.") from exc
        if not any(path.is_relative_to(root.resolve()) for root in self._settings.roots):
            raise WorkspaceRefused(f"{source.path} lies below none of this node's SANDHOG_WORKSPACE_ROOTS.")
        return path

    def _unpacked(self, order: BoxOrder, archive: Path, name: str, scratch: Path, *, keeps_links: bool = False) -> Path:
        try:
            descriptor = os.open(archive, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError as exc:
            raise WorkspaceRefused(f"The archive {name} is not there: {exc.strerror}.") from exc
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise WorkspaceRefused(f"The archive {name} is no file.")
            job = UnpackJob(
                directory=str(scratch),
                bounds=self._settings.bounds,
                has_own_user=os.geteuid() == 0,
                descriptor=descriptor,
                keeps_links=keeps_links,
            )
            said = run_confined(job, passed_fds=[descriptor], check=self._check(order.session))
        finally:
            os.close(descriptor)
        if said.error is not None:
            raise _failure(said, f"The archive {name} is not unpacked: {said.error}.")
        return scratch / "tree"

    def _copied_out(self, order: BoxOrder, source: ImageSource, scratch: Path) -> Path:
        if self._images is None:
            raise WorkspaceRefused("This node takes no files out of images.")
        parts = source.path.split("/")
        archive = scratch / "image.tar"
        most_bytes = self._settings.bounds.total_bytes
        try:
            self._images.copy_out(order.image, source.path, archive, most_bytes, order.principal)
        except OSError as exc:
            raise WorkspaceRefused(f"{source.shown} cannot be copied out: {exc.strerror}.") from exc
        except ImageFilesMissing as exc:
            raise SourceUnfit(str(exc)) from exc
        unpacked = _made(scratch / "unpacked")
        tree = self._unpacked(order, archive, source.shown, unpacked, keeps_links=True)
        archive.unlink()
        # The engine names everything below the directory's own name.
        inner = tree / parts[-1] if parts[-1] else tree / parts[-2]
        if not inner.is_dir() or inner.is_symlink():
            raise SourceUnfit(f"{source.path} is no directory of the image {order.image}.")
        return inner

    @contextmanager
    def _commit(self, order: BoxOrder, source: GitSource) -> Iterator[Path]:
        """Yield the tree of a commit, fetched now unless it was before."""
        ref = source.ref if source.ref is not None else "HEAD"
        remote = self._settings.remotes.remote(source.url, source.credential)
        if not _COMMIT.fullmatch(ref):
            # What a branch names may be another commit the next time.
            with self._scratch() as scratch:
                yield self._fetched(order, source, remote, ref, scratch)
            return
        named = f"{remote.url}\0{ref}\0{source.credential}\0{source.submodules}"
        key = hashlib.sha256(named.encode()).hexdigest()[:32]
        kept = self._settings.directory / key
        with self._pinned(key):
            with self._one_at_a_time(key, order.session):
                if not kept.exists():
                    with self._scratch() as scratch:
                        self._fetched(order, source, remote, ref, scratch).rename(kept)
                    self._trim()
            os.utime(kept)
            yield kept

    def _fetched(self, order: BoxOrder, source: GitSource, remote: Remote, ref: str, scratch: Path) -> Path:
        said = self._fetch(order.session, remote, ref, scratch)
        tree = scratch / "tree"
        if source.submodules:
            self._add_submodules(order, source, remote, said, tree, scratch, 1)
        log.info("a commit was fetched", extra={"session_id": order.session, "commit": said.commit})
        return tree

    def _fetch(self, session: str, remote: Remote, ref: str, directory: Path) -> Said:
        job = GitJob(
            directory=str(directory),
            bounds=self._settings.bounds,
            has_own_user=os.geteuid() == 0,
            url=remote.url,
            ref=ref,
            scheme=remote.scheme,
            resolve=remote.resolve,
            ssh=remote.ssh,
            ssh_key=SecretStr(remote.ssh_key),
            known_hosts=remote.known_hosts,
            ca=remote.ca,
            header=SecretStr(remote.header),
        )
        said = run_confined(job, check=self._check(session))
        if said.error is not None:
            raise _failure(said, f"{ref} of {remote.url} cannot be fetched: {said.error}.")
        return said

    def _add_submodules(
        self, order: BoxOrder, source: GitSource, above: Remote, said: Said, tree: Path, scratch: Path, depth: int
    ) -> None:
        """Fetch the submodules of a tree by the same rules, each into its place."""
        if depth > MAX_NESTING or len(said.submodules) > MAX_SUBMODULES:
            raise WorkspaceRefused(f"{source.url} has more submodules than are fetched.")
        for path, url, commit in said.submodules:
            if not url:
                raise SourceUnfit(f"The submodule {path!r} of {above.url} has no address in .gitmodules.")
            remotes, whole = self._settings.remotes, _absolute(url, above.url)
            # It may lie on a host that the credential is not for, and be public.
            remote = remotes.remote(whole, remotes.credential_for(whole, source.credential))
            inner = _made(scratch / f"submodule-{secrets.token_hex(6)}")
            found = self._fetch(order.session, remote, commit, inner)
            self._add_submodules(order, source, remote, found, inner / "tree", scratch, depth + 1)
            remove_tree(inner / "tree" / ".git")
            place = _place_of(tree, path)
            place.rmdir()
            (inner / "tree").rename(place)

    @contextmanager
    def _scratch(self) -> Iterator[Path]:
        for missing in (self._settings.directory.parent, self._settings.directory):
            missing.mkdir(mode=0o711, parents=True, exist_ok=True)
        scratch = _made(self._settings.directory / f"new-{secrets.token_hex(8)}")
        try:
            yield scratch
        finally:
            with suppress(OSError):
                remove_tree(scratch)

    @contextmanager
    def _pinned(self, key: str) -> Iterator[None]:
        """Keep a commit from being removed, here or by `_trim`."""
        with self._guard:
            self._users[key] += 1
        try:
            yield
        finally:
            with self._guard:
                self._users[key] -= 1
                if self._users[key] == 0:
                    del self._users[key]
                    self._fetching.pop(key, None)

    @contextmanager
    def _one_at_a_time(self, key: str, session: str) -> Iterator[None]:
        with self._guard:
            lock = self._fetching.setdefault(key, threading.Lock())
        while not lock.acquire(timeout=LOOK_S):
            self._check(session)()
        try:
            yield
        finally:
            lock.release()

    def _trim(self) -> None:
        """Remove the longest unused commits while all together are too large."""
        kept = [path for path in self._settings.directory.iterdir() if _KEPT.fullmatch(path.name)]
        sizes = {path: _size_bytes(path) for path in kept}
        for path in sorted(kept, key=lambda one: one.stat().st_mtime):
            if sum(sizes.values()) <= self._settings.keep_bytes:
                return
            with self._guard:
                if path.name in self._users:
                    continue
                aside = path.with_name(f"old-{secrets.token_hex(8)}")
                path.rename(aside)
            del sizes[path]
            with suppress(OSError):
                remove_tree(aside)


def _is_copied(session_dir: Path) -> bool:
    return (session_dir / "base").exists() and ((session_dir / IMAGE).exists() or (session_dir / "work").exists())


def _forget_archive(session_dir: Path) -> None:
    """Remove what nobody asks for any more; the session's directory may be kept for long."""
    with suppress(OSError):
        (session_dir / ARCHIVE_FILE).unlink()


def _failure(said: Said, words: str) -> WorkspaceRefused:
    return SourceUnfit(words) if said.is_own_fault else WorkspaceRefused(words)


def _made(path: Path) -> Path:
    path.mkdir(mode=0o755)
    return path


def _place_of(tree: Path, path: str) -> Path:
    """Return where a submodule goes: an empty directory that git made for it, reached through no link."""
    current = tree
    for part in path.split("/"):
        if part in ("", ".", "..") or current.is_symlink():
            raise WorkspaceRefused(f"The submodule {path!r} lies at no place of the repository.")
        current = current / part
    if current.is_symlink() or not current.is_dir():
        raise WorkspaceRefused(f"The submodule {path!r} lies at no place of the repository.")
    return current


def _absolute(url: str, above: str) -> str:
    """Return a submodule's URL, which may be relative to that of its repository."""
    if not url.startswith(("./", "../")):
        return url
    base: Sequence[str] = above.rstrip("/").split("/")
    for part in url.split("/"):
        if part == "..":
            base = base[:-1]
        elif part not in ("", "."):
            base = [*base, part]
    return "/".join(base)


def _size_bytes(path: Path) -> int:
    total = 0
    for directory, _, names in os.walk(path):
        for name in names:
            with suppress(OSError):
                total += os.lstat(Path(directory) / name).st_size
    return total
