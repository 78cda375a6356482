"""Whether the disks have room for one more box: asked before anything of it is made."""

import os
from collections.abc import Iterable
from pathlib import Path

from sandbox.errors import NoRoom


def check_room(places: Iterable[Path], min_free_bytes: int) -> None:
    """Come back when every place that exists here has so much free; root's reserve does not count as free.

    Raises:
        NoRoom: the first that has not, with the numbers.
    """
    for place in places:
        try:
            status = os.statvfs(place)
        except OSError:
            # Not on this machine, such as the data of a remote engine: nothing can be said about it.
            continue
        free_bytes = status.f_bavail * status.f_frsize
        if free_bytes < min_free_bytes:
            raise NoRoom(str(place), free_bytes, min_free_bytes)
