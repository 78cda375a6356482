"""`sandhog worker`: a node, as a process of its own."""

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(add_completion=False)


@app.command()
def worker(
    redis_url: Annotated[
        str | None, typer.Option(help="The cluster's Redis, redis:// or rediss:// (SANDHOG_REDIS_URL).")
    ] = None,
    state_dir: Annotated[
        Path | None,
        typer.Option(help="The shared volume, at the same path as everywhere in the cluster (SANDHOG_STATE_DIR)."),
    ] = None,
    node: Annotated[
        str | None, typer.Option(help="The node's name, one of its kind in the cluster (SANDHOG_NODE).")
    ] = None,
    places: Annotated[
        int | None, typer.Option(min=1, help="Room for boxes (SANDHOG_PLACES).", show_default="8")
    ] = None,
    lanes: Annotated[
        int | None, typer.Option(min=1, help="Calls that run at once (SANDHOG_LANES).", show_default="4 a place")
    ] = None,
    labels: Annotated[
        str | None, typer.Option(help="What sessions may be pinned to: zone=a,gpu=no (SANDHOG_LABELS).")
    ] = None,
    tools: Annotated[
        list[Path] | None, typer.Option(help="File or directory of your own tools; may be repeated (SANDHOG_TOOLS).")
    ] = None,
) -> None:
    """Run a worker: it starts boxes on this machine's engine and runs the calls of sessions in them.

    All else stands in the settings (docs/settings.md). SIGTERM drains: calls that run get their answers, and
    its boxes are ended. It must reach the engine's socket, and nothing else of Sandhog needs to.
    """
    given = {
        "SANDHOG_REDIS_URL": redis_url,
        "SANDHOG_STATE_DIR": str(state_dir.expanduser().absolute()) if state_dir else None,
        "SANDHOG_NODE": node,
        "SANDHOG_PLACES": places,
        "SANDHOG_LANES": lanes,
        "SANDHOG_LABELS": labels,
        "SANDHOG_TOOLS": ":".join(str(path.expanduser().absolute()) for path in tools) if tools else None,
    }
    environment = {**os.environ, **{name: str(value) for name, value in given.items() if value is not None}}
    sys.stdout.flush()
    sys.stderr.flush()
    # In this process' place, so that signals reach the node itself. Safe path: a module in the working directory must
    # not be taken for one of ours.
    os.execve(sys.executable, [sys.executable, "-P", "-m", "worker", "run"], environment)
