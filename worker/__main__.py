"""`python -m worker`: what is done on a node itself, as a process of its own."""

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from worker.apply import apply_result
from worker.contract.findings import FINDINGS
from worker.contract.logs import begin_logs
from worker.contract.removals import REMOVALS
from worker.contract.setting_rows import ROWS, rows_of
from worker.contract.settings_file import SettingsWrong, read
from worker.contract.unasked import import_less
from worker.errors import NodeMisconfigured, WorkerError
from worker.settings import NodeSettings

cli = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    # A pretty trace would show the values of local variables, passwords among them.
    pretty_exceptions_enable=False,
    help="Node-side commands of Sandhog.",
)


@cli.command()
def run() -> None:
    """Run a node; its settings are `SANDHOG_*` variables and the settings file."""
    import_less()
    # All that a node is made of takes a second to import, which the small commands need not wait for.
    from worker.wiring import run_node

    try:
        settings = read(NodeSettings)
        begin_logs(settings.log, settings.log_level, settings.secret_values)
        run_node(settings)
    except (NodeMisconfigured, SettingsWrong) as exc:
        print(f"sandhog worker: {exc}", file=sys.stderr)
        raise typer.Exit(2) from exc


@cli.command()
def config(bare: Annotated[bool, typer.Option(help="only what there is, at its defaults")] = False) -> None:
    """Print a node's settings as JSON, secrets masked."""
    try:
        rows = rows_of(NodeSettings, None if bare else read(NodeSettings), os.environ)
    except SettingsWrong as exc:
        print(f"sandhog worker: {exc}", file=sys.stderr)
        raise typer.Exit(2) from exc
    print(ROWS.dump_json(rows).decode())


@cli.command()
def doctor(image: Annotated[str, typer.Option(help="image of the box that is tried")]) -> None:
    """Look at this machine, and print what is found as JSON."""
    from worker.doctor import look

    try:
        settings = read(NodeSettings)
    except SettingsWrong as exc:
        print(f"sandhog worker: {exc}", file=sys.stderr)
        raise typer.Exit(2) from exc
    print(FINDINGS.dump_json(list(look(settings, image))).decode())


@cli.command()
def gc(dry_run: Annotated[bool, typer.Option(help="only say what would go")] = False) -> None:
    """Remove what is kept no longer from the volume; print it as JSON."""
    import redis

    from worker.collecting import collect

    try:
        settings = read(NodeSettings)
        begin_logs(settings.log, settings.log_level, settings.secret_values)
        removed = collect(settings, is_trial=dry_run)
    except SettingsWrong as exc:
        print(f"sandhog worker: {exc}", file=sys.stderr)
        raise typer.Exit(2) from exc
    except redis.RedisError as exc:
        print(f"sandhog worker: Redis must say who lives, and does not answer: {exc}", file=sys.stderr)
        raise typer.Exit(1) from exc
    print(REMOVALS.dump_json(removed).decode())


@cli.command()
def apply(session_dir: Path, directory: Annotated[Path, typer.Argument(help="where the copy was made from")]) -> None:
    """Put the kept result of a session into a directory: all of it, or nothing where something changed since."""
    try:
        applied = apply_result(session_dir, directory)
    except WorkerError as exc:
        print(f"sandhog: {exc}", file=sys.stderr)
        raise typer.Exit(1) from exc
    for path in applied.conflicts:
        print(f"conflict: {path}", file=sys.stderr)
    if applied.conflicts:
        print("Nothing was applied: these files changed since the session began.", file=sys.stderr)
        raise typer.Exit(1)
    for path in applied.applied:
        print(path)


@cli.command()
def pack(path: str, session: Annotated[Path | None, typer.Option(help="an ended session's directory")] = None) -> None:
    """Write a tar of a file or directory to standard output."""
    from worker.trees import pack as pack_path
    from worker.trees import pack_kept

    with _told():
        if session is None:
            pack_path(Path(path), sys.stdout.buffer)
        else:
            pack_kept(session, path, sys.stdout.buffer)


@cli.command()
def unpack(
    path: str, name: str, session: Annotated[Path | None, typer.Option(help="an ended session's directory")] = None
) -> None:
    """Read a tar of one file or directory from standard input: into a directory under a name, or as a new one."""
    from worker.trees import unpack as unpack_path
    from worker.trees import unpack_kept

    with _told():
        if session is None:
            unpack_path(sys.stdin.buffer, Path(path), name)
        else:
            unpack_kept(sys.stdin.buffer, session, path, name)


@contextlib.contextmanager
def _told() -> Iterator[None]:
    """End with what went wrong as one line."""
    try:
        yield
    except WorkerError as exc:
        print(exc, file=sys.stderr)
        raise typer.Exit(1) from exc


if __name__ == "__main__":
    cli()
