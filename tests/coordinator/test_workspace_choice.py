"""The whole table of what a session works on, and what is refused."""

import itertools
from pathlib import Path

import pytest

from coordinator.errors import ConfigError
from coordinator.session.workspace_choice import Wanted, choose
from worker.contract.orders import Policy, WorkspaceMode

BIND, COPY = WorkspaceMode.BIND, WorkspaceMode.COPY
GUARDED, BOXED = Policy.GUARDED, Policy.BOXED
HERE = Path("/home/me/project")
ME, OTHER, ROOT = 1000, 1001, 0


def wanted(flags: str = "", policy: Policy | None = None, terminal: bool = True) -> Wanted:
    given = flags.split()
    return Wanted(
        HERE,
        bind="bind" in given,
        copy="copy" in given,
        as_root="as_root" in given,
        policy=policy,
        is_terminal=terminal,
    )


@pytest.mark.parametrize(
    ("owner", "own", "terminal", "policy", "mode", "chosen_policy", "reason"),
    [
        # The user's own directory.
        (ME, ME, True, None, BIND, GUARDED, "user's own"),
        (ME, ME, True, BOXED, BIND, BOXED, "user's own"),
        (ME, ME, True, GUARDED, BIND, GUARDED, "user's own"),
        (ME, ME, False, None, COPY, BOXED, "no terminal"),
        (ME, ME, False, BOXED, BIND, BOXED, "user's own"),
        (ME, ME, False, GUARDED, BIND, GUARDED, "user's own"),
        # Root works on somebody's directory: commands run as that user.
        (ME, ROOT, True, None, BIND, GUARDED, "user's own"),
        (ME, ROOT, False, None, COPY, BOXED, "no terminal"),
        # A directory of root.
        (ROOT, ROOT, True, None, COPY, BOXED, "owned by root"),
        (ROOT, ROOT, True, GUARDED, COPY, GUARDED, "owned by root"),
        (ROOT, ROOT, False, BOXED, COPY, BOXED, "owned by root"),
        (ROOT, ME, True, None, COPY, BOXED, "owned by root"),
        # Somebody else's.
        (OTHER, ME, True, None, COPY, BOXED, "another user"),
        (OTHER, ME, False, GUARDED, COPY, GUARDED, "another user"),
    ],
)
def test_without_a_wish_the_owner_and_the_terminal_decide(
    owner: int, own: int, terminal: bool, policy: Policy | None, mode: WorkspaceMode, chosen_policy: Policy, reason: str
) -> None:
    chosen = choose(wanted(policy=policy, terminal=terminal), owner_uid=owner, own_uid=own)

    assert (chosen.directory, chosen.mode, chosen.policy, chosen.as_root) == (HERE, mode, chosen_policy, False)
    assert reason in chosen.reason


@pytest.mark.parametrize(
    ("flags", "owner", "own", "mode", "chosen_policy", "as_root"),
    [
        ("copy", ME, ME, COPY, BOXED, False),
        ("copy", ROOT, ROOT, COPY, BOXED, False),
        ("copy", OTHER, ME, COPY, BOXED, False),
        ("bind", ME, ME, BIND, GUARDED, False),
        ("bind", ME, ROOT, BIND, GUARDED, False),
        ("as_root", ROOT, ROOT, BIND, GUARDED, True),
        ("as_root", ROOT, ME, BIND, GUARDED, True),
        ("bind as_root", ROOT, ROOT, BIND, GUARDED, True),
        ("bind as_root", ROOT, ME, BIND, GUARDED, True),
    ],
)
@pytest.mark.parametrize("terminal", [True, False])
def test_a_wish_is_done_as_it_was_said(
    flags: str, owner: int, own: int, mode: WorkspaceMode, chosen_policy: Policy, as_root: bool, terminal: bool
) -> None:
    chosen = choose(wanted(flags, terminal=terminal), owner_uid=owner, own_uid=own)

    assert (chosen.mode, chosen.policy, chosen.as_root) == (mode, chosen_policy, as_root)
    assert f"--{flags.split()[-1].replace('_', '-')} was given" == chosen.reason


@pytest.mark.parametrize(
    ("flags", "owner", "own", "words"),
    [
        ("bind copy", ME, ME, "exclude each other"),
        ("copy as_root", ROOT, ROOT, "--as-root goes with a bound directory"),
        ("bind", ROOT, ROOT, "add --as-root to bind it anyway"),
        ("bind", ROOT, ME, "owned by root"),
        ("bind", OTHER, ME, "another user (uid 1001)"),
        ("as_root", OTHER, ME, "another user (uid 1001)"),
        ("bind as_root", OTHER, ME, "another user (uid 1001)"),
    ],
)
def test_what_is_unsafe_or_contradicts_itself_is_refused(flags: str, owner: int, own: int, words: str) -> None:
    with pytest.raises(ConfigError) as refused:
        choose(wanted(flags), owner_uid=owner, own_uid=own)

    assert words in str(refused.value)


@pytest.mark.parametrize("policy", list(Policy))
@pytest.mark.parametrize("flags", ["", "copy", "bind"])
def test_a_policy_that_was_given_is_never_changed(policy: Policy, flags: str) -> None:
    assert choose(wanted(flags, policy), owner_uid=ME, own_uid=ME).policy is policy


def test_nothing_binds_a_directory_of_root_or_runs_as_root_without_as_root() -> None:
    switches = [("", "bind"), ("", "copy"), (None, *Policy), (True, False)]
    for bind, copy, policy, terminal in itertools.product(*switches):
        for owner, own in itertools.product([ROOT, ME, OTHER], [ROOT, ME]):
            wish = wanted(f"{bind} {copy}", policy if isinstance(policy, Policy) else None, bool(terminal))
            try:
                chosen = choose(wish, owner_uid=owner, own_uid=own)
            except ConfigError:
                continue
            assert not chosen.as_root
            assert chosen.mode is COPY or (owner != ROOT and own in (ROOT, owner))
