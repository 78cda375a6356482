"""`sandhog export`: a session's conversation in the format of another program."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from coordinator.commands.completing import SessionId
from coordinator.commands.kept import directory_of
from coordinator.errors import ConfigError
from coordinator.session.exporting import ExportFormat, export
from coordinator.session.reading import read_session
from coordinator.settings import read_settings
from coordinator.visible import visible

app = typer.Typer(add_completion=False)


@app.command("export")
def export_session(
    session_id: SessionId,
    form: Annotated[ExportFormat, typer.Option("--format", help="How it is written.")] = ExportFormat.CHAT,
    out: Annotated[Path | None, typer.Option(help="File to write; standard output if left out.")] = None,
    as_sent: Annotated[
        bool, typer.Option("--as-sent", help="As the model had it last, older steps summarised.")
    ] = False,
) -> None:
    """Write a session's messages, calls and tools as chat-format JSON, for training or for another viewer."""
    reading = read_session(directory_of(read_settings().state_dir, session_id))
    for fault in reading.faults:
        print(f"sandhog: {visible(fault)}", file=sys.stderr)
    text = export(reading, form, as_sent=as_sent)
    if out is None:
        # On a terminal it must not be able to draw; in a pipe it must stay what it is.
        print(visible(text) if sys.stdout.isatty() else text, end="")
        sys.stdout.flush()
        return
    try:
        out.write_text(text, encoding="utf-8")
    except OSError as exc:
        raise ConfigError(f"--out {out}: it cannot be written: {exc}") from exc
