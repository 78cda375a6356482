"""Files of an image, taken out by way of a container that is never started: image → **image files** → workspace."""

import logging
import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from http import HTTPStatus
from pathlib import Path

import docker

from sandbox.container import remove_container, translated
from sandbox.creation import LABEL, NAME_PREFIX
from sandbox.errors import EngineUnavailable, SandboxError
from sandbox.images import Images

log = logging.getLogger(__name__)

PIECE_BYTES = 1024 * 1024
TIMEOUT_S = 540.0
"""A container that was only created is taken for abandoned by others soon after that."""
SLACK_BYTES = 64 * 1024 * 1024
"""What headers and padding may be beside the files."""


class ImageFilesMissing(SandboxError):
    """The image has nothing at the path, or more than is taken."""


class ImageFiles:
    """Takes directories out of images. Thread-safe."""

    def __init__(self, images: Images, new_client: Callable[[float], docker.APIClient]) -> None:
        self._images = images
        self._new_client = new_client

    def copy_out(self, image: str, path: str, target: Path, most_bytes: int, principal: str = "") -> None:
        """Write a directory of an image as a tar archive to a new file. Nothing of the image is run.

        Args:
            image: The image's reference; pulled if need be.
            path: Absolute, in the image.
            target: The file.
            most_bytes: What its files may be together.
            principal: Whose login pulls the image.

        Raises:
            ImageFilesMissing: there is no such path, or it is larger.
            ImageMissing: the image is not there.
            EngineUnavailable: the engine failed.
            OSError: the file cannot be written.
        """
        with self._images.held(image, principal) as found:
            client = self._new_client(TIMEOUT_S)
            name = f"{NAME_PREFIX}files-{secrets.token_hex(6)}"
            try:
                with translated(f"container for the files of {image}"):
                    client.create_container(
                        found.id, command=["-"], name=name, network_disabled=True, labels={LABEL: "1"}
                    )
                self._write(client, name, image, path, target, most_bytes)
            finally:
                with suppress(EngineUnavailable):
                    remove_container(client, name)
                client.close()

    def _write(self, client: docker.APIClient, name: str, image: str, path: str, target: Path, most_bytes: int) -> None:
        deadline, left_bytes = time.monotonic() + TIMEOUT_S, most_bytes + SLACK_BYTES
        # Not the client's own method: the engine keeps the container busy until the response is closed.
        url = f"{client.base_url}/v{client.api_version}/containers/{name}/archive"
        with (
            target.open("xb") as file,
            translated(f"files of {image}"),
            client.get(url, params={"path": path.rstrip("/")}, stream=True, timeout=TIMEOUT_S) as response,
        ):
            if response.status_code == HTTPStatus.NOT_FOUND:
                raise ImageFilesMissing(f"the image {image} has nothing at {path}")
            response.raise_for_status()
            for piece in response.iter_content(PIECE_BYTES):
                left_bytes -= len(piece)
                if left_bytes < 0:
                    raise ImageFilesMissing(f"{path} of {image} is larger than {most_bytes // 1024**2} MiB")
                if time.monotonic() > deadline:
                    raise ImageFilesMissing(f"{path} of {image} was not copied within {TIMEOUT_S:.0f} s")
                file.write(piece)
