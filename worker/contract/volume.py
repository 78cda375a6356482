"""What tells one shared volume from another: coordinators and nodes that name the same one see each other's files."""

import os
import re
import secrets
from pathlib import Path

_ID = re.compile(r"[0-9a-f]{32}")


def volume_id(state_dir: Path) -> str:
    """Return the volume's id, 32 hexadecimal digits; whoever asks first makes it.

    Raises:
        OSError: the volume cannot be read, or takes nothing.
        ValueError: what lies in its place is no id.
    """
    place = state_dir / "volume"
    if not place.is_file():
        state_dir.mkdir(parents=True, exist_ok=True)
        draft = state_dir / f".volume.{os.getpid()}.{secrets.token_hex(4)}"
        draft.write_text(secrets.token_hex(16), encoding="ascii")
        try:
            # A link is made whole or not at all, and only by the first.
            os.link(draft, place)
        except FileExistsError:
            pass
        finally:
            draft.unlink()
    found = place.read_text(encoding="ascii").strip()
    if not _ID.fullmatch(found):
        raise ValueError(f"{place} holds no id of a volume: remove it, and a new one is made.")
    return found
