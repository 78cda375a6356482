"""Whether the engine has a directory of ours at the same path: it is asked to mount something that was made just now.

A worker in a container, or beside an engine in a virtual machine, may see another directory under that name. Its boxes
would then get a directory that is not there, or another one.
"""

import secrets
import tempfile
from pathlib import Path

import docker
from docker.errors import APIError, ImageNotFound
from docker.types import Mount
from docker.utils import kwargs_from_env

from sandbox.container import translated
from sandbox.machine import UnsupportedEngine

TIMEOUT_S = 60
NOWHERE = "does not exist"
"""In the engine's words on a bind mount whose source it does not see."""


def check_shared(directory: Path) -> None:
    """Come back if the engine sees this directory under this path. Starts nothing.

    Raises:
        UnsupportedEngine: it does not; says what to do.
        EngineUnavailable: it does not answer.
        OSError: nothing can be made in the directory.
    """
    probe = Path(tempfile.mkdtemp(prefix=".seen-by-the-engine-", dir=directory))
    try:
        is_seen = _is_seen(str(probe))
    finally:
        probe.rmdir()
    if not is_seen:
        raise UnsupportedEngine(
            f"The Docker engine does not see {directory} as this worker does: what is made there is not at that path "
            "on the engine's host, and boxes are given parts of it. Mount the host's directory at the very same path "
            "into the worker's container, or name one that has the same path on both sides with SANDHOG_STATE_DIR."
        )


def _is_seen(path: str) -> bool:
    """Return whether the engine finds a directory; it looks at mounts before it looks for the image."""
    nobodys = f"sandhog-no-image:{secrets.token_hex(8)}"
    mounts = [Mount("/probe", path, type="bind", read_only=True)]
    with translated("a look at the engine's mounts"):
        client = docker.APIClient(version="auto", timeout=TIMEOUT_S, **kwargs_from_env())
        try:
            client.create_container(nobodys, host_config=client.create_host_config(mounts=mounts))
        except ImageNotFound:
            return True
        except APIError as error:
            words = str(error.explanation)
            if error.status_code == 400 and path in words and NOWHERE in words:
                return False
            raise
        finally:
            client.close()
    return True
