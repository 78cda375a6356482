"""The flags of a command that say what a box has beyond image and workspace."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from coordinator.errors import ConfigError
from coordinator.session.box_options import BoxOptions, inside, read_env, read_files, read_hosts
from worker.contract.extras import BoxExtras

AllowHost = Annotated[
    list[str] | None,
    typer.Option(help="HOST[:PORT] that commands may reach, *.HOST for all below it; may be repeated."),
]
Env = Annotated[
    list[str] | None,
    typer.Option(help="NAME from this environment, or NAME=VALUE, for commands in the box; may be repeated."),
]
EnvFile = Annotated[list[Path] | None, typer.Option(help="File with a NAME=VALUE a line; may be repeated.")]
PutFile = Annotated[
    list[str] | None, typer.Option("--file", help="SRC:DST puts a file into the workspace first; may be repeated.")
]
Dockerfile = Annotated[Path | None, typer.Option(help="Build the box's image from this file, in its directory.")]
Setup = Annotated[
    list[str] | None,
    typer.Option(help="Command that makes the image ready, as root and with network; kept; may be repeated."),
]
SetupNetwork = Annotated[
    list[str] | None,
    typer.Option(help="What --setup reaches: open, none, or HOST[:PORT], which may be repeated.", show_default="open"),
]
SetupFile = Annotated[
    list[str] | None, typer.Option(help="File of the workspace that --setup needs, as a lock file; may be repeated.")
]
SetupTimeout = Annotated[float, typer.Option(min=1, max=7200, help="Seconds for --dockerfile and --setup.")]


def box_options(
    *,
    allow_host: Sequence[str] | None = None,
    env: Sequence[str] | None = None,
    env_file: Sequence[Path] | None = None,
    put_file: Sequence[str] | None = None,
    dockerfile: Path | None = None,
    setup: Sequence[str] | None = None,
    setup_network: Sequence[str] | None = None,
    setup_file: Sequence[str] | None = None,
    setup_timeout_s: float = 900.0,
) -> BoxOptions:
    """What the flags ask for.

    Raises:
        ConfigError: one of them cannot be.
    """
    values = read_env(env or (), env_file or (), os.environ)
    files, sources = read_files(put_file or ())
    if not setup and (setup_network or setup_file):
        raise ConfigError("--setup-network and --setup-file say how --setup runs, and there is no --setup.")
    built = dockerfile.absolute() if dockerfile is not None else None
    if built is not None and not built.is_file():
        raise ConfigError(f"--dockerfile: {dockerfile} is no file.")
    extras = BoxExtras(
        allow_hosts=read_hosts(allow_host or (), "--allow-host"),
        env_names=tuple(values),
        files=files,
        dockerfile=str(built) if built else None,
        context=str(built.parent) if built else "",
        setup=tuple(setup or ()),
        setup_hosts=_setup_hosts(setup_network or ("open",)),
        setup_files=tuple(inside(text, "--setup-file") for text in setup_file or ()),
        setup_timeout_s=setup_timeout_s,
    )
    return BoxOptions(extras, values, sources)


def _setup_hosts(network: Sequence[str]) -> tuple[str, ...]:
    match tuple(network):
        case ("open",):
            return ("*",)
        case ("none",):
            return ()
        case hosts:
            return read_hosts(hosts, "--setup-network")
