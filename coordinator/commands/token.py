"""`sandhog token`: who may use the HTTP API, and what they may have at most."""

import json
import tomllib
from pathlib import Path
from typing import Annotated

import typer
from pydantic import ValidationError

from coordinator.commands.acting import keep_action
from coordinator.errors import ConfigError
from coordinator.service.principals import Allowance
from coordinator.service.tokens import Tokens
from coordinator.settings import read_settings

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    help="Make, list and revoke the tokens of the HTTP API. They lie hashed in SANDHOG_STATE_DIR; a change counts from "
    "the next request on.",
)


@app.command()
def create(
    name: Annotated[str, typer.Argument(help="The principal: who sessions made with the token act for.")],
    ceiling_file: Annotated[
        Path | None,
        typer.Option(help="TOML or JSON: the most that the principal's sessions may have; see docs/http-api.md."),
    ] = None,
    operator: Annotated[
        bool, typer.Option("--operator", help="The principal sees and steers all principals' sessions.")
    ] = False,
) -> None:
    """Make a token and print it: it is shown this once."""
    allowance = read_allowance(ceiling_file) if ceiling_file is not None else None
    if operator:
        allowance = (allowance or Allowance()).model_copy(update={"is_operator": True})
    state_dir = read_settings().state_dir
    keep_action(state_dir, "token_create", detail=f"{name}, an operator" if operator else name)
    print(Tokens(state_dir).create(name, allowance))


@app.command(name="list")
def show() -> None:
    """List principals with their tokens' ids, never the tokens."""
    for principal in Tokens(read_settings().state_dir).principals():
        ids = ", ".join(f"{one.id} of {one.created_at:%Y-%m-%d %H:%M}" for one in principal.tokens) or "no token"
        given = principal.allowance.model_dump(mode="json", exclude_defaults=True)
        print(f"{principal.name}: {ids}" + (f"; {json.dumps(given, sort_keys=True)}" if given else ""))


@app.command()
def revoke(what: Annotated[str, typer.Argument(help="A token's id, or a principal for all of its tokens.")]) -> None:
    """Take tokens back, at once. Sessions that run go on; `sandhog serve` lets nobody to them with that token."""
    state_dir = read_settings().state_dir
    keep_action(state_dir, "token_revoke", detail=what)
    count = Tokens(state_dir).revoke(what)
    if count == 0:
        raise ConfigError(f"There is no token {what!r} and no principal of that name that has one.")
    print(f"{count} revoked")


def read_allowance(path: Path) -> Allowance:
    """Return what a ceiling file says.

    Raises:
        ConfigError: it cannot be read, or says what is not known.
    """
    try:
        text = path.read_text(encoding="utf-8")
        fields = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
        return Allowance.model_validate(fields)
    except ValidationError as exc:
        faults = "; ".join(f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in exc.errors())
        raise ConfigError(f"{path}: {faults}") from exc
    except (OSError, ValueError) as exc:
        raise ConfigError(f"{path} cannot be read: {exc}") from exc
