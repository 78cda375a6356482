"""`sandhog approve`: answers what a session asks about a call."""

from typing import Annotated

import typer

from coordinator.commands.answering import Answer, give, shown, waiting
from coordinator.commands.completing import waiting_calls, waiting_sessions
from coordinator.errors import ConfigError
from coordinator.settings import read_settings

app = typer.Typer(add_completion=False)


@app.command()
def approve(
    session_id: Annotated[
        str | None, typer.Argument(help="The session that asks.", autocompletion=waiting_sessions)
    ] = None,
    call: Annotated[
        str | None, typer.Argument(help="The call it asks about, such as 3.0.", autocompletion=waiting_calls)
    ] = None,
    allow: Annotated[bool | None, typer.Option("--allow/--deny", help="Yes, or no.")] = None,
    always: Annotated[bool, typer.Option("--always", help="With --allow: for the whole session.")] = False,
    note: Annotated[str, typer.Option(help="With --deny: said to the model.")] = "",
) -> None:
    """Answer what a session asks about a call; without a call, list what waits for an answer."""
    settings = read_settings()
    if session_id is None or call is None:
        for request in waiting(settings.redis_url, settings.state_dir, session_id):
            print("\n".join(shown(request)))
        return
    if allow is None:
        raise ConfigError("Say --allow or --deny.")
    print(give(settings.redis_url, settings.state_dir, session_id, call, Answer(allow, note, always and allow)))
