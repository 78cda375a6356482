"""On what a session works: the user's own directory, or a private copy of it whose result is a patch.

The rules, in this order: what was asked for explicitly is done or refused, never changed silently; a directory that
root owns is never bound without `--as-root`, because commands would then run as root on the user's files; without a
terminal and without a policy nobody could approve anything, so the session works on a copy.
"""

from dataclasses import dataclass
from pathlib import Path

from coordinator.errors import ConfigError
from worker.contract.orders import Policy, WorkspaceMode
from worker.contract.sources import Source


@dataclass(frozen=True)
class Wanted:
    """What the user asked for; None where they said nothing."""

    directory: Path
    bind: bool = False
    copy: bool = False
    as_root: bool = False
    policy: Policy | None = None
    is_terminal: bool = False


@dataclass(frozen=True)
class Chosen:
    """What is done, and why."""

    directory: Path
    mode: WorkspaceMode
    reason: str
    policy: Policy
    as_root: bool


def choose(wanted: Wanted, *, owner_uid: int, own_uid: int) -> Chosen:
    """Return the workspace's mode and the policy that goes with it.

    Args:
        wanted: What the user asked for.
        owner_uid: Owner of the directory.
        own_uid: Effective user of this process.

    Raises:
        ConfigError: what was asked for contradicts itself or would be unsafe; the message says what to do.
    """
    if wanted.bind and wanted.copy:
        raise ConfigError("--bind and --copy exclude each other.")
    if wanted.copy and wanted.as_root:
        raise ConfigError("--as-root goes with a bound directory; a private copy has a user of its own.")
    if wanted.bind and owner_uid == 0 and not wanted.as_root:
        raise ConfigError(
            f"{wanted.directory} is owned by root, and commands in the box would run as root on it. Leave --bind out "
            "to work on a private copy (add --apply to have the result put back), or add --as-root to bind it anyway."
        )
    is_roots_by_wish = wanted.as_root and owner_uid == 0
    if (wanted.bind or wanted.as_root) and own_uid not in (0, owner_uid) and not is_roots_by_wish:
        raise ConfigError(
            f"{wanted.directory} is owned by another user (uid {owner_uid}). Leave --bind and --as-root out to work on "
            "a copy."
        )
    mode, reason = _mode(wanted, owner_uid, own_uid)
    policy = wanted.policy or (Policy.BOXED if mode is WorkspaceMode.COPY else Policy.GUARDED)
    return Chosen(wanted.directory, mode, reason, policy, wanted.as_root and mode is WorkspaceMode.BIND)


def _mode(wanted: Wanted, owner_uid: int, own_uid: int) -> tuple[WorkspaceMode, str]:
    if wanted.copy:
        return WorkspaceMode.COPY, "--copy was given"
    if wanted.bind or wanted.as_root:
        return WorkspaceMode.BIND, "--as-root was given" if wanted.as_root else "--bind was given"
    if owner_uid == 0:
        return WorkspaceMode.COPY, "the directory is owned by root; --as-root binds it"
    if own_uid not in (0, owner_uid):
        return WorkspaceMode.COPY, "the directory is owned by another user"
    if not wanted.is_terminal and wanted.policy is None:
        return WorkspaceMode.COPY, "there is no terminal to approve calls at; --bind or --policy changes that"
    return WorkspaceMode.BIND, "it is the user's own directory"


def checked(source: Source, field_name: str) -> Source:
    """Return a source that a node may be able to give.

    Raises:
        ConfigError: no node ever can; begins with the field's name.
    """
    try:
        source.check()
    except ValueError as exc:
        raise ConfigError(f"{field_name}: {exc}") from exc
    return source
