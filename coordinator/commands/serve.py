"""`sandhog serve`: the HTTP API, and the sessions that are asked for over it."""

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(add_completion=False)


@app.command()
def serve(
    host: Annotated[str, typer.Option(help="Address to listen at.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 takes a free one.")] = 8470,
    tools: Annotated[
        list[Path] | None, typer.Option(help="File or directory of your own tools; may be repeated (SANDHOG_TOOLS).")
    ] = None,
    policy_file: Annotated[
        Path | None, typer.Option(help="A policy for all sessions, in TOML (SANDHOG_POLICY_FILE).")
    ] = None,
    max_sessions: Annotated[
        int | None,
        typer.Option(min=1, help="Sessions at once; further ones wait (SANDHOG_MAX_SESSIONS).", show_default="500"),
    ] = None,
    tls_cert: Annotated[
        Path | None, typer.Option(help="Serve HTTPS with this certificate, in PEM, those above it behind it.")
    ] = None,
    tls_key: Annotated[Path | None, typer.Option(help="The certificate's private key, in PEM.")] = None,
) -> None:
    """Serve the HTTP API, and run the sessions that are asked for.

    Who may ask is known by tokens: SANDHOG_API_TOKEN is the first one, `sandhog token create` makes further ones.
    Without any, one is made on loopback and shown once. The model's endpoint comes from OPENAI_BASE_URL and
    OPENAI_API_KEY. With SANDHOG_REDIS_URL sessions run on that cluster's workers, else on a Redis and a worker of
    this command's own. Directories that sessions may work on are named in SANDHOG_ROOTS.

    SIGTERM drains: no session begins any more, and those at work have SANDHOG_DRAIN_S (60) seconds to end. The rest is
    left for another server or the next start; what waits for a human or for its caller's calls is left without any
    wait. A second SIGTERM ends at once.
    """
    # FastAPI and all below it take a second to import, which the other commands need not wait for.
    from coordinator.commands.serving import Serving, run_server

    run_server(Serving(host, port, tuple(tools or ()), policy_file, max_sessions, tls_cert, tls_key))
