"""Names of directories for tasks, whatever their ids are."""

import hashlib
import re

MAX_CHARS = 120

_ODD = re.compile(r"[^A-Za-z0-9._-]")
_OURS = re.compile(r"(?i)(manifest|results|retried|predictions)[a-z0-9._-]*")


def directory_name(task_id: str) -> str:
    """Return a name that is a single, harmless part of a path: the id itself, where it is one.

    Any other id gets a part of its hash, so that two ids never share a directory but where their names differ in case
    alone.
    """
    plain = _ODD.sub("_", task_id)[:MAX_CHARS]
    if plain == task_id and not plain.startswith((".", "-")) and not _OURS.fullmatch(plain):
        return plain
    digest = hashlib.sha256(task_id.encode("utf-8", "surrogatepass")).hexdigest()[:10]
    return f"{plain.lstrip('.-') or 'task'}-{digest}"
