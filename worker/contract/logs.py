"""How every process of an installation logs: records → **logs** → stderr, as text or JSON, secrets masked.

A record's fields (`extra=`) come along, and the session's id with a call's. What a field says may be anybody's: it is
written so that it stays in its line and moves no cursor.
"""

import json
import logging
import re
import sys
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Literal, TextIO

LogForm = Literal["text", "json"]
LogLevel = Literal["debug", "info", "warning", "error"]

MASK = "********"
MIN_SECRET_CHARS = 6
MAX_FIELD_CHARS = 4_000
_SHAPES = re.compile(r"(?<=://)[^\s/:@\"']*:[^\s/@\"']+(?=@)|(?<=bearer )[A-Za-z0-9._~+/=-]{8,}", re.IGNORECASE)
_OWN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "color_message"}


class Masked(logging.Formatter):
    """Formats records; none of the secrets is ever in a line.

    Args:
        form: Text for people, JSON for machines: one object a line.
        secrets: Values that are masked; short ones are left, they would be found in innocent words.
    """

    def __init__(self, form: LogForm, secrets: Iterable[str] = ()) -> None:
        super().__init__()
        self._form = form
        told = {secret for secret in secrets if len(secret) >= MIN_SECRET_CHARS}
        # In a line of JSON, a quote or a backslash is written otherwise.
        known = sorted(told | {json.dumps(secret)[1:-1] for secret in told}, key=len, reverse=True)
        self._known = re.compile("|".join(map(re.escape, known))) if known else None

    def format(self, record: logging.LogRecord) -> str:
        """Return the record's line."""
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        fields = {name: value for name, value in vars(record).items() if name not in _OWN}
        call_id = fields.get("call_id")
        if isinstance(call_id, str) and ":" in call_id:
            fields.setdefault("session_id", call_id.partition(":")[0])
        shown = {name: self._value(value) for name, value in fields.items()}
        message = self._masked(record.getMessage())
        trace = self._masked(self.formatException(record.exc_info)) if record.exc_info else ""
        if self._form == "json":
            line = {"at": at, "level": record.levelname.lower(), "logger": record.name, "message": message, **shown}
            return json.dumps({**line, "trace": trace} if trace else line)
        words = "".join(f" {name}={json.dumps(value)}" for name, value in shown.items())
        return f"{at} {record.levelname} {record.name} {_on_one_line(message)}{words}" + (f"\n{trace}" if trace else "")

    def _value(self, value: object) -> object:
        if isinstance(value, bool | int | float) or value is None:
            return value
        return self._masked(value if isinstance(value, str) else str(value))[:MAX_FIELD_CHARS]

    def _masked(self, text: str) -> str:
        if self._known is not None:
            text = self._known.sub(MASK, text)
        return _SHAPES.sub(MASK, text)


def begin_logs(form: LogForm, level: LogLevel, secrets: Iterable[str] = (), stream: TextIO | None = None) -> None:
    """Let this process log so from now on, in place of how it logged before."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(Masked(form, secrets))
    root = logging.getLogger()
    for old in root.handlers[:]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(level.upper())


def _on_one_line(text: str) -> str:
    return "".join(one if one.isprintable() else json.dumps(one)[1:-1] for one in text)
