"""The flags that name a repository to work on, in place of a directory."""

from pathlib import Path
from typing import Annotated

import typer

from coordinator.errors import ConfigError
from coordinator.session.workspace_choice import Chosen, Wanted
from worker.contract.orders import Policy, WorkspaceMode
from worker.contract.sources import GitSource

Repo = Annotated[str | None, typer.Option(help="URL of a repository to work on; the result is a patch.")]
Ref = Annotated[
    str | None, typer.Option(help="Its branch, tag or commit.", show_default="the repository's default branch")
]
Credential = Annotated[str | None, typer.Option(help="Name of one of the nodes' credentials for it.")]

NOWHERE = Path("/nonexistent")
"""In place of the directory of a workspace that is fetched."""


def chosen_repository(
    repo: str | None, ref: str | None, credential: str | None, wanted: Wanted, *, apply: bool
) -> tuple[Chosen, GitSource] | None:
    """Return what a session on a repository works on; None where no repository is named.

    Raises:
        ConfigError: other flags contradict it, or it is none that a node could fetch.
    """
    if repo is None:
        if ref is not None or credential is not None:
            raise ConfigError("--ref and --credential go with --repo.")
        return None
    if wanted.bind or wanted.as_root or apply or wanted.directory != Path().resolve():
        raise ConfigError(
            "--repo is fetched into a private copy: it goes with none of --workspace, --bind, --as-root and --apply."
        )
    chosen = Chosen(NOWHERE, WorkspaceMode.COPY, "a repository was named", wanted.policy or Policy.BOXED, as_root=False)
    source = GitSource(url=repo, ref=ref, credential=credential)
    try:
        source.check()
    except ValueError as exc:
        raise ConfigError(f"--repo, --ref: {exc}") from exc
    return chosen, source
