"""`sandhog show`: what happened in a session, readable."""

import json
import re
import sys
from typing import Annotated

import typer

from coordinator.commands.completing import SessionId
from coordinator.commands.kept import directory_of
from coordinator.commands.showing import Showing, raw_result
from coordinator.errors import ConfigError
from coordinator.session.reading import SessionReading, read_session
from coordinator.settings import read_settings
from coordinator.visible import visible

app = typer.Typer(add_completion=False)

_CALL = re.compile(r"(?P<step>[0-9]{1,9})\.(?P<index>[0-9]{1,9})")


@app.command()
def show(
    session_id: SessionId,
    raw: Annotated[
        str | None, typer.Option("--raw", metavar="CALL", help="All of one call's result, such as 3.0, uncut.")
    ] = None,
    step: Annotated[int | None, typer.Option(min=1, help="Only this step, its answers whole.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The events, one JSON object a line.")] = False,
) -> None:
    """Print a session: prompt, steps, calls with their answers shortened, notices, and how it ended."""
    session_dir = directory_of(read_settings().state_dir, session_id)
    reading = read_session(session_dir)
    if raw is not None:
        found = _CALL.fullmatch(raw)
        if found is None:
            raise ConfigError(f"--raw {raw}: a call is its step and its place in the reply from 0, such as 3.0.")
        text = raw_result(reading, session_dir, int(found["step"]), int(found["index"]))
        print(visible(text) if sys.stdout.isatty() else text, end="" if text.endswith("\n") else "\n")
    elif as_json:
        _print_events(reading, step)
    else:
        Showing(sys.stdout, session_dir, only_step=step).print(reading)
    sys.stdout.flush()


def _print_events(reading: SessionReading, step: int | None) -> None:
    for fault in reading.faults:
        print(f"sandhog: {visible(fault)}", file=sys.stderr)
    for entry in reading.entries:
        if step is None or entry.fields.get("step") == step:
            text = json.dumps({"at": entry.at, "seq": entry.seq, **entry.fields}, ensure_ascii=False)
            print(visible(text) if sys.stdout.isatty() else text)
