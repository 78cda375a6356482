"""Images on the engine: pulled once when missing, and removed again, the longest unused first, when they are too many.

Only images that were pulled here are ever removed; what a person built or pulled stays.
"""

import json
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import docker
from docker.auth import resolve_repository_name
from docker.utils import parse_repository_tag

from sandbox.container import translated
from sandbox.errors import EngineUnavailable, ImageMissing, SandboxError

log = logging.getLogger(__name__)

MADE_REPOSITORY = "sandhog-made"
"""Of all images that are made here."""
MADE_OF_LABEL = "sandhog.made-of"
"""The image that set-up began with, whose limits are proven."""
SEEN_S, TOLD_S = 2.0, 600.0
"""So long a name is taken to mean the same image, where only a box that stands ready is looked for; the longer time
while the engine tells of every change."""
MOST_SEEN = 1000
PROGRESS_S = 2.0
"""How often a pull says how far it is."""


@dataclass(frozen=True)
class RegistryLogin:
    """Who pulls from one registry. Goes to the engine with a pull, never into a box or a log."""

    username: str
    password: str = field(repr=False)
    principals: frozenset[str] | None = None
    """Whose sessions pull with it; None is everybody's."""


@dataclass(frozen=True)
class ImageSettings:
    """How images are had and kept."""

    may_pull: bool = True
    """Whether an image that is missing is pulled."""
    pull_timeout_s: float = 900.0
    """For a whole pull."""
    silence_s: float = 120.0
    """A pull that says nothing for so long is given up."""
    logins: Mapping[str, Sequence[RegistryLogin]] = field(default_factory=dict, repr=False)
    """By the registry's host, with its port if it has one; `docker.io` is Docker's own."""
    budget_bytes: int | None = None
    """What pulled images may take together; None sets no bound."""


@dataclass(frozen=True)
class Image:
    """An image that is on the engine."""

    id: str
    """Digest of its configuration."""
    env: Mapping[str, str]
    proven_as: str = ""
    """The image whose proof holds for this one too: itself, or what its set-up began with."""


class PullClient(docker.APIClient):
    """A client whose timeout holds for pulls too: the library reads a pull's events without any."""

    def _set_request_timeout(self, kwargs: dict[str, Any]) -> dict[str, Any]:
        return {**kwargs, "timeout": self.timeout}


class Images:
    """Finds, pulls and removes images. Thread-safe."""

    def __init__(
        self,
        client: docker.APIClient,
        new_client: Callable[[float], PullClient],
        settings: ImageSettings,
        book: Path,
        on_progress: Callable[[str, str], None] = lambda ref, words: None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`new_client` makes a client with a timeout in seconds; `book` is the file that remembers what was pulled.

        `on_progress` is told the image and how far its pull is, from the thread that pulls.
        """
        self._client = client
        self._new_client = new_client
        self._settings = settings
        self._book = book
        self._on_progress = on_progress
        self._clock = clock
        self._lock = threading.Lock()
        self._pulls: dict[str, Future[None]] = {}
        self._pinned: Counter[str] = Counter()
        self._seen: dict[str, tuple[float, Image]] = {}
        self._changes = 0
        """How often names may have got another meaning."""
        self._is_told = False

    def hear(self, is_told: bool) -> None:
        """Note whether the engine tells of changes from now on (see `heard`); what it did not tell is not known."""
        self._is_told = is_told
        self.heard()

    def heard(self) -> None:
        """Note that a name may mean another image from now on."""
        self._changes += 1
        self._seen.clear()

    def find(self, ref: str) -> Image | None:
        """The image when it is on the engine.

        Raises:
            EngineUnavailable.
        """
        changes = self._changes
        image = self._ask(ref)
        # What changed while it was asked for may have been asked for too early.
        if image is not None and changes == self._changes:
            if len(self._seen) > MOST_SEEN:
                self._seen.clear()
            self._seen[ref] = (time.monotonic(), image)
        return image

    def _ask(self, ref: str) -> Image | None:
        try:
            with translated(f"image {ref}"):
                found: dict[str, Any] = self._client.inspect_image(ref)  # type: ignore[no-untyped-call]
        except ImageMissing:
            return None
        config = found.get("Config") or {}
        # Only names that we give: anybody may label an image.
        is_made = any(tag.startswith(f"{MADE_REPOSITORY}:") for tag in found.get("RepoTags") or ())
        made_of = (config.get("Labels") or {}).get(MADE_OF_LABEL) if is_made else None
        return Image(found["Id"], _parse_env(config.get("Env") or []), made_of or found["Id"])

    def names(self, most: int = 200) -> tuple[str, ...]:
        """References of the images on the engine, as many as may be told.

        Raises:
            EngineUnavailable.
        """
        with translated("images"):
            found: list[dict[str, Any]] = self._client.images()
        return tuple(
            sorted({tag for one in found for tag in one.get("RepoTags") or () if tag != "<none>:<none>"})[:most]
        )

    def seen_lately(self, ref: str) -> Image | None:
        """As `find`, but what was found a moment ago is not asked for again.

        Raises:
            EngineUnavailable.
        """
        known = self._seen.get(ref)
        if known is None or time.monotonic() - known[0] > (TOLD_S if self._is_told else SEEN_S):
            return self.find(ref)
        return known[1]

    def may_use(self, image: Image, principal: str) -> bool:
        """Whether the principal may: one that was pulled with a login is for those who showed that they have one."""
        principals = self._read_book().get(image.id, {}).get("principals")
        return principals is None or principal in principals

    @contextmanager
    def held(self, ref: str, principal: str = "") -> Iterator[Image]:
        """The image, pulled if need be, and not removed from here while it is held.

        `principal`: whose login pulls it. An image that is here by the login of others is asked for anew.

        Raises:
            ImageMissing: it is not there, or not the principal's to use, and cannot be pulled.
            EngineUnavailable.
        """
        image = self.seen_lately(ref) if self._is_told else self.find(ref)
        if image is None or not self.may_use(image, principal):
            self._pull_once(ref, principal)
            image = self.find(ref)
            if image is not None and not self.may_use(image, principal):
                # Waited for somebody else's pull.
                self._pull_once(ref, principal)
        if image is None:
            raise ImageMissing(f"image {ref} was pulled and is gone again")
        self._pinned[image.id] += 1
        try:
            self._note_use(image.id)
            yield image
        finally:
            self._pinned[image.id] -= 1

    def count(self, ref: str) -> None:
        """Count an image that was made here among those that the budget bounds.

        Raises:
            EngineUnavailable.
        """
        image = self.find(ref)
        if image is not None:
            entry = {"ref": ref, "used": self._clock()}
            self._change_book(lambda book: book.update({image.id: entry}))

    def trim(self) -> list[str]:
        """Remove pulled images over the budget, the longest unused first; none that a container uses.

        Raises:
            EngineUnavailable.
        """
        if self._settings.budget_bytes is None:
            return []
        pulled = self._pulled_sizes()
        total = sum(size for _, size in pulled.values())
        with translated("list of containers"):
            in_use = {container["ImageID"] for container in self._client.containers(all=True)}
        removed = []
        for image_id, (ref, size) in pulled.items():
            if total <= self._settings.budget_bytes:
                break
            if image_id in in_use or self._pinned[image_id] > 0:
                continue
            try:
                with translated(f"removal of image {ref}"):
                    self._client.remove_image(ref)
            except EngineUnavailable as error:
                log.warning("an image was not removed", extra={"image": ref, "error": str(error)})
                continue
            log.info("an image was removed", extra={"image": ref, "size_bytes": size})
            self._change_book(lambda book, gone=image_id: book.pop(gone, None))  # type: ignore[misc]
            total -= size
            removed.append(ref)
        return removed

    def _pulled_sizes(self) -> dict[str, tuple[str, int]]:
        """Reference and bytes of each pulled image that is still there, the longest unused first."""
        pulled = {}
        for image_id, entry in sorted(self._read_book().items(), key=lambda item: float(item[1]["used"])):
            try:
                with translated(f"image {entry['ref']}"):
                    found = self._client.inspect_image(image_id)  # type: ignore[no-untyped-call]
            except ImageMissing:
                self._change_book(lambda book, gone=image_id: book.pop(gone, None))  # type: ignore[misc]
                continue
            pulled[image_id] = (str(entry["ref"]), int(found["Size"]))
        return pulled

    def _pull_once(self, ref: str, principal: str) -> None:
        """Pull, or wait for the pull of the same image that is under way."""
        if not self._settings.may_pull or ref.startswith("sha256:"):
            raise ImageMissing(f"image {ref} is not on this engine")
        with self._lock:
            under_way = self._pulls.get(ref)
            mine: Future[None] = under_way or Future()
            self._pulls[ref] = mine
        if under_way is not None:
            try:
                under_way.result(self._settings.pull_timeout_s)
            except TimeoutError:
                raise ImageMissing(f"image {ref} is still being pulled") from None
            return
        try:
            self._pull(ref, principal)
        except BaseException as error:
            mine.set_exception(error if isinstance(error, SandboxError) else ImageMissing(f"{ref}: {error}"))
            raise
        else:
            mine.set_result(None)
        finally:
            with self._lock:
                self._pulls.pop(ref, None)

    def _login(self, ref: str, principal: str) -> RegistryLogin | None:
        """The principal's own login at the image's registry, else everybody's."""
        logins = self._settings.logins.get(resolve_repository_name(ref)[0], ())
        own = (login for login in logins if login.principals is not None and principal in login.principals)
        return next(own, next((login for login in logins if login.principals is None), None))

    def _pull(self, ref: str, principal: str) -> None:
        repository, tag = parse_repository_tag(ref)
        login = self._login(ref, principal)
        auth = {"username": login.username, "password": login.password} if login else None
        log.info("an image is pulled", extra={"image": ref})
        # A connection of its own: closing it in the middle ends the pull on the engine too.
        client = self._new_client(self._settings.silence_s)
        try:
            with translated(f"pull of {ref}"):
                events = client.pull(repository, tag=tag or "latest", stream=True, decode=True, auth_config=auth)
                self._follow(ref, events)
        except (EngineUnavailable, ImageMissing) as error:
            raise ImageMissing(f"image {ref} is not on this engine and could not be pulled: {error}") from error
        finally:
            client.close()
        image = self.find(ref)
        if image is not None:
            self._note_pull(image, ref, login)
        log.info("an image was pulled", extra={"image": ref})

    def _note_pull(self, image: Image, ref: str, login: RegistryLogin | None) -> None:
        may = None if login is None or login.principals is None else login.principals

        def note(book: dict[str, dict[str, Any]]) -> None:
            known = book.get(image.id, {})
            entry: dict[str, Any] = {"ref": ref, "used": self._clock()}
            if may is not None and (not known or "principals" in known):
                entry["principals"] = sorted(may.union(known.get("principals", ())))
            book[image.id] = entry

        self._change_book(note)

    def _follow(self, ref: str, events: Iterator[dict[str, Any]]) -> None:
        """Read a pull's events to the end.

        Raises:
            ImageMissing: the engine gave up, or it takes too long.
        """
        began = time.monotonic()
        said = began - PROGRESS_S
        layers: dict[str, tuple[int, int]] = {}
        for event in events:
            if "error" in event:
                raise ImageMissing(str(event["error"])[:1000])
            _take_event(layers, event)
            now = time.monotonic()
            if now - began > self._settings.pull_timeout_s:
                raise ImageMissing(f"not done within {self._settings.pull_timeout_s:g} s ({_words(layers)})")
            if now - said >= PROGRESS_S:
                said = now
                words = _words(layers)
                log.info("pull goes on", extra={"image": ref, "progress": words})
                self._on_progress(ref, words)

    def _note_use(self, image_id: str) -> None:
        if self._settings.budget_bytes is not None and image_id in self._read_book():
            self._change_book(lambda book: book.setdefault(image_id, {}).update(used=self._clock()))

    def _read_book(self) -> dict[str, dict[str, Any]]:
        try:
            book = json.loads(self._book.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return {key: entry for key, entry in book.items() if isinstance(entry, dict) and {"ref", "used"} <= set(entry)}

    def _change_book(self, change: Callable[[dict[str, dict[str, Any]]], Any]) -> None:
        with self._lock:
            book = self._read_book()
            change(book)
            draft = self._book.with_name(self._book.name + ".tmp")
            # A book that cannot be written means only that an image stays.
            with suppress(OSError):
                draft.write_text(json.dumps(book), encoding="utf-8")
                draft.replace(self._book)


def _take_event(layers: dict[str, tuple[int, int]], event: dict[str, Any]) -> None:
    detail, layer, status = event.get("progressDetail") or {}, event.get("id"), event.get("status")
    if not isinstance(layer, str):
        return
    if status == "Downloading" and detail.get("total"):
        layers[layer] = (int(detail.get("current", 0)), int(detail["total"]))
    elif status in ("Download complete", "Pull complete") and layer in layers:
        layers[layer] = (layers[layer][1],) * 2


def _words(layers: dict[str, tuple[int, int]]) -> str:
    mib = 1024 * 1024
    done = sum(current for current, _ in layers.values())
    total = sum(size for _, size in layers.values())
    return f"{done // mib} of {total // mib} MiB known so far"


def _parse_env(lines: list[str]) -> dict[str, str]:
    return dict(line.split("=", 1) for line in lines if "=" in line)
