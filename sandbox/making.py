"""Images that are made here: built from a user's file, or kept of a box in which set-up commands ran.

They are named by what they were made of, carry a label, and are removed when nobody used them for long.
"""

import hashlib
import logging
import os
import stat
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import docker
from docker.utils.build import exclude_paths

from sandbox.box import Box
from sandbox.building import BuildClient, watched
from sandbox.container import translated
from sandbox.creation import NAME_PREFIX
from sandbox.errors import ImageMissing, SandboxError
from sandbox.images import MADE_OF_LABEL, MADE_REPOSITORY, Image

log = logging.getLogger(__name__)

MADE_LABEL = "sandhog.made"
MADE_BY_LABEL = "sandhog.made-by"
"""The session that it was made for first."""
TAIL_CHARS = 2000
MAX_CONTEXT_FILES = 100_000


class BuildFailed(SandboxError):
    """An image cannot be made; the message has the end of what was printed."""


def made_tag(digest: str) -> str:
    """The name of an image made of what has this digest (hex)."""
    return f"{MADE_REPOSITORY}:{digest[:32]}"


def context_digest(context: Path, dockerfile: Path) -> str:
    """Hash of all that a build sees: names, kinds, modes and content, without what `.dockerignore` leaves out.

    Raises:
        BuildFailed: it cannot be read, or is too large to be meant.
    """
    digest = hashlib.sha256()
    try:
        digest.update(_file_digest(dockerfile))
        for name in _context_names(context, dockerfile):
            path = context / name
            status = path.lstat()
            digest.update(f"{name}\0{status.st_mode:o}\0".encode("utf-8", "surrogateescape"))
            if stat.S_ISLNK(status.st_mode):
                digest.update(os.fsencode(path.readlink()) + b"\0")
            elif stat.S_ISREG(status.st_mode):
                digest.update(_file_digest(path))
    except OSError as error:
        raise BuildFailed(f"the context {context} of {dockerfile} cannot be read: {error}") from error
    return digest.hexdigest()


def _context_names(context: Path, dockerfile: Path) -> list[str]:
    ignored: list[str] = []
    if (context / ".dockerignore").is_file():
        lines = (context / ".dockerignore").read_text(encoding="utf-8", errors="replace").splitlines()
        ignored = [line.strip() for line in lines if line.strip() and not line.strip().startswith("#")]
    names = sorted(exclude_paths(str(context), ignored, dockerfile=dockerfile.name))
    if len(names) > MAX_CONTEXT_FILES:
        raise BuildFailed(
            f"{context} has more than {MAX_CONTEXT_FILES} files: put the file into a directory of its own"
        )
    return names


def _file_digest(path: Path) -> bytes:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").digest()


class Maker:
    """Makes and removes images. Thread-safe."""

    def __init__(
        self,
        client: docker.APIClient,
        new_client: Callable[[float], BuildClient],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._client = client
        self._new_client = new_client
        self._clock = clock

    def build(
        self,
        context: Path,
        dockerfile: Path,
        tag: str,
        session: str,
        timeout_s: float,
        go_on: Callable[[], None] = lambda: None,
    ) -> None:
        """Build the image of a Dockerfile under this name. What `go_on` raises, asked now and then, breaks it off.

        Raises:
            BuildFailed: it fails, or takes longer.
            EngineUnavailable.
        """
        printed = ""
        client = self._new_client(timeout_s)
        try:
            with watched(client, timeout_s, go_on), translated(f"build of {dockerfile}"):
                events = client.build(
                    path=str(context),
                    dockerfile=str(dockerfile),
                    tag=tag,
                    rm=True,
                    forcerm=True,
                    decode=True,
                    labels={MADE_LABEL: "build", MADE_BY_LABEL: session},
                )
                for event in events:
                    printed = (printed + str(event.get("stream", "")))[-TAIL_CHARS:]
                    if "error" in event:
                        raise BuildFailed(f"{dockerfile} cannot be built: {event['error']}\n{printed}"[:TAIL_CHARS])
        except TimeoutError:
            raise BuildFailed(f"{dockerfile} was not built within {timeout_s:g} s: {printed}") from None
        finally:
            client.close()
        log.info("an image was built", extra={"image": tag})

    def keep(self, box: Box, base: Image, tag: str, session: str, timeout_s: float) -> None:
        """Keep what a box became as an image that is otherwise like `base`, from which it was started.

        Raises:
            EngineUnavailable.
        """
        name = NAME_PREFIX + box.box_id
        client = self._new_client(timeout_s)
        try:
            with translated(f"keeping of {name}"):
                config = client.inspect_image(base.id)["Config"]  # type: ignore[no-untyped-call]
                labels = client.inspect_container(name)["Config"]["Labels"] or {}
                # The engine adds what the container has and this leaves out: its own labels would name a box.
                made = {MADE_LABEL: "setup", MADE_BY_LABEL: session, MADE_OF_LABEL: base.proven_as}
                labels = dict.fromkeys(labels, "") | (config.get("Labels") or {}) | made
                conf = {**config, "Labels": labels, "Entrypoint": config.get("Entrypoint") or []}
                conf.setdefault("StopSignal", "SIGTERM")
                repository, _, version = tag.partition(":")
                client.commit(name, repository=repository, tag=version, conf=conf)
        finally:
            client.close()
        log.info("an image was kept", extra={"image": tag})

    def used(self, tag: str) -> None:
        """Note that the image is used now: naming it again sets its time.

        Raises:
            EngineUnavailable.
        """
        repository, _, version = tag.partition(":")
        with translated(f"image {tag}"):
            self._client.tag(tag, repository, version, force=True)

    def trim(self, keep_s: float) -> list[str]:
        """Remove made images that nobody used for so long and no container uses; their names.

        Raises:
            EngineUnavailable.
        """
        return self.remove(self.unused(keep_s))

    def unused(self, for_s: float) -> list[str]:
        """Names of made images that were not used for so long.

        Raises:
            EngineUnavailable.
        """
        oldest = datetime.fromtimestamp(self._clock(), UTC) - timedelta(seconds=for_s)
        with translated("list of made images"):
            images = self._client.images(filters={"label": MADE_LABEL, "reference": MADE_REPOSITORY})
        names = [tag for image in images for tag in image.get("RepoTags") or () if tag.startswith(MADE_REPOSITORY)]
        unused = []
        for tag in names:
            # One may be gone by now.
            with suppress(ImageMissing), translated(f"image {tag}"):
                if _time_of(self._client.inspect_image(tag)) < oldest:  # type: ignore[no-untyped-call]
                    unused.append(tag)
        return unused

    def remove(self, tags: list[str]) -> list[str]:
        """Remove those of the images that no container uses; their names."""
        removed = []
        for tag in tags:
            try:
                with translated(f"removal of {tag}"):
                    self._client.remove_image(tag)
            except SandboxError as error:
                log.info("a made image was not removed", extra={"image": tag, "error": str(error)})
            else:
                removed.append(tag)
        return removed


def _time_of(image: dict[str, Any]) -> datetime:
    """When the image was last named; the zero time of the engine counts as now."""
    text = str(image.get("Metadata", {}).get("LastTagTime") or image.get("Created") or "")
    try:
        # The engine writes nanoseconds, and Python reads six digits.
        named = datetime.fromisoformat(text[:19] + "+00:00")
    except ValueError:
        return datetime.now(UTC)
    return named if named.year > 2000 else datetime.now(UTC)
