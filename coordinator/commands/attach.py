"""`sandhog attach`: watch a session that another process runs, and answer what it asks."""

import asyncio
import sys
from pathlib import Path

import typer

from coordinator.commands.completing import SessionId
from coordinator.commands.kept import directory_of
from coordinator.commands.terminal import TerminalApprover, is_terminal
from coordinator.commands.typed_lines import TypedLines
from coordinator.errors import ConfigError
from coordinator.settings import Settings, read_settings

app = typer.Typer(add_completion=False)

POLL_S = 0.3


@app.command()
def attach(
    session_id: SessionId,
) -> None:
    """Watch a session live and answer its questions from here; Ctrl-C leaves it running."""
    settings = read_settings()
    session_dir = directory_of(settings.state_dir, session_id)
    try:
        asyncio.run(_attached(settings, session_dir))
    except KeyboardInterrupt:
        print(
            f"\nsandhog: detached; {session_dir.name} goes on. To end it: sandhog cancel {session_dir.name}",
            file=sys.stderr,
        )
        raise typer.Exit(130) from None


async def _attached(settings: Settings, session_dir: Path) -> None:
    # What reads the volume takes a while to import, which the other commands need not wait for.
    from coordinator.commands.answering import Answer, give, waiting
    from coordinator.commands.watching import Watching

    watching = Watching(session_dir, sys.stderr)
    approver = TerminalApprover(watching.timeline, asyncio.Event(), TypedLines(sys.stdin), sys.stderr)
    can_answer = is_terminal(sys.stdin, sys.stderr)
    asked: set[str] = set()
    while not watching.show_new():
        session = session_dir.name
        found = await asyncio.to_thread(waiting, settings.redis_url, settings.state_dir, session) if can_answer else []
        for request in found:
            if request.name in asked:
                continue
            asked.add(request.name)
            decided = await approver.ask(request)
            if decided is None:
                continue
            answer = Answer(decided.is_allowed, decided.note, decided.is_lasting)
            try:
                await asyncio.to_thread(give, settings.redis_url, settings.state_dir, session, request.name, answer)
            except ConfigError as exc:
                # Somebody else was faster, or the time was over.
                print(f"sandhog: {exc}", file=sys.stderr)
        await asyncio.sleep(POLL_S)
