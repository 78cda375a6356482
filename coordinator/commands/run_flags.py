"""The flags of `sandhog run` and its kin: what each is called, and what its help says."""

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from coordinator.errors import ConfigError
from coordinator.session.keeping import BoxStay, Of
from worker.contract.orders import Policy

MOST_MINUTES = 12 * 60
"""A box that is kept takes up a place."""


class Approve(StrEnum):
    """Who answers when the policy asks."""

    ASK = "ask"
    ALWAYS = "always"
    NEVER = "never"
    WAIT = "wait"


PolicyFile = Annotated[
    Path | None, typer.Option("--policy-file", help="A policy of your own, in TOML (SANDHOG_POLICY_FILE).")
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout, everything else on stderr.")]
Image = Annotated[str | None, typer.Option(help="Image of the box (SANDHOG_IMAGE).", show_default="sandhog-box:latest")]
Prompt = Annotated[str, typer.Argument(help="What the agent is to do; - reads it from standard input.")]
Workspace = Annotated[Path, typer.Option(help="Directory to work on.")]
Copy = Annotated[bool, typer.Option("--copy", help="Work on a private copy; the result is a patch.")]
Bind = Annotated[bool, typer.Option("--bind", help="Work on the directory itself, also without a terminal.")]
AsRoot = Annotated[
    bool, typer.Option("--as-root", help="Bind a directory that root owns; commands run as root in the box.")
]
Apply = Annotated[bool, typer.Option("--apply", help="Put the patch of a private copy into the directory at the end.")]
Keep = Annotated[
    bool, typer.Option("--keep", help="Leave the private copy, its files alone, below the state directory.")
]
KeepBox = Annotated[
    float | None,
    typer.Option(
        min=0.01,
        max=MOST_MINUTES,
        metavar="MINUTES",
        help="Leave the box for so long when the model is done, for `sandhog shell`, `cp` and `port`; Ctrl-C ends it.",
    ),
]
KeepBoxOf = Annotated[Of, typer.Option(help="Whose box `--keep-box` leaves: unfinished is stopped or failed.")]
Profile = Annotated[
    str | None,
    typer.Option(help="Limits of the box: small, medium, large or your own (SANDHOG_PROFILE).", show_default="medium"),
]
Model = Annotated[str | None, typer.Option(help="Model name (SANDHOG_MODEL).", show_default="the endpoint's only one")]
PolicyName = Annotated[
    Policy | None, typer.Option(help="guarded asks for all but reading; boxed allows.", show_default="by workspace")
]
Answerer = Annotated[
    Approve | None,
    typer.Option(
        help="Who answers when the policy asks: you here, always yes, always no, or `sandhog approve`.",
        show_default="ask on a terminal",
    ),
]
MaxSteps = Annotated[int, typer.Option(min=1, help="Model replies at most.")]
MaxCalls = Annotated[int | None, typer.Option(min=1, help="Tool calls at most.")]
MaxTokensIn = Annotated[
    int | None, typer.Option(min=1, help="Tokens sent to the model at most, all requests together.")
]
MaxTokensOut = Annotated[int | None, typer.Option(min=1, help="Tokens made by the model at most.")]
MaxCost = Annotated[float | None, typer.Option(min=0.000001, help="US dollars at most; see SANDHOG_MODELS_FILE.")]
ContextTokens = Annotated[
    int | None, typer.Option(min=1000, help="Window of the model in tokens (SANDHOG_CONTEXT_TOKENS).")
]
ProjectInstructions = Annotated[
    bool, typer.Option("--project-instructions/--no-project-instructions", help="Give the model what AGENTS.md says.")
]
MaxTime = Annotated[float | None, typer.Option(min=0.001, help="Seconds at most; waiting for your yes does not count.")]
Pin = Annotated[list[str] | None, typer.Option(help="NAME=VALUE: a label that the node must have; may be repeated.")]
Tools = Annotated[
    list[Path] | None, typer.Option(help="File or directory of your own tools; may be repeated (SANDHOG_TOOLS).")
]
McpConfig = Annotated[
    Path | None, typer.Option(help="MCP servers, in the usual JSON form (SANDHOG_MCP_CONFIG); see docs/mcp.md.")
]


def stay_of(minutes: float | None, of: Of) -> BoxStay | None:
    """Return how long the session's box stays; None where it does not."""
    return None if minutes is None else BoxStay(minutes, of)


def pins_of(texts: Sequence[str]) -> dict[str, str]:
    """Return the labels that `--pin` asks for.

    Raises:
        ConfigError: one is no NAME=VALUE.
    """
    wrong = next((text for text in texts if not text.partition("=")[0] or "=" not in text), None)
    if wrong is not None:
        raise ConfigError(f"--pin: {wrong!r} is no NAME=VALUE, such as zone=a.")
    return dict((text.partition("=")[0], text.partition("=")[2]) for text in texts)
