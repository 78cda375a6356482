"""Variables that a session brings along for its commands: file beside the session → **box_env** → box."""

import json
from pathlib import Path

from worker.contract.extras import ENV_FILE
from worker.contract.orders import BoxOrder
from worker.errors import BoxUnavailable


def box_environment(order: BoxOrder) -> dict[str, str]:
    """The values of the order's variables; read anew for each box, kept nowhere else.

    Raises:
        BoxUnavailable: they are not there.
    """
    names = order.extras.env_names
    if not names:
        return {}
    try:
        values = json.loads((Path(order.session_dir) / ENV_FILE).read_text(encoding="utf-8"))
        return {name: str(values[name]) for name in names}
    except (OSError, ValueError, KeyError, TypeError):
        # Not the error itself: a parser shows what it could not read.
        raise BoxUnavailable("the values of the session's variables cannot be read on this node") from None
