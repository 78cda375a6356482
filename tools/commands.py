"""Commands: what is known of the programs that a text runs → how much harm it may do.

The known readers stand in `readers`, the programs that run another one in `wrappers`. Whatever is not known there
may do harm; whoever adds a program writes down which of its arguments keep it a reader.
"""

from dataclasses import dataclass, replace
from enum import IntEnum

from tools.readers import reads_only
from tools.shell import Script, SimpleCommand
from tools.wrappers import Unwrapped, unwrap

DESTRUCTIVE = {
    "rm": "deletes files",
    "unlink": "deletes files",
    "shred": "deletes files",
    "sudo": "asks for another user's rights",
    "su": "asks for another user's rights",
    "doas": "asks for another user's rights",
    "pkexec": "asks for another user's rights",
    "runuser": "asks for another user's rights",
    "eval": "hides what it runs",
    "mkfs": "deletes a file system",
    "shutdown": "ends the machine",
    "reboot": "ends the machine",
    "halt": "ends the machine",
    "poweroff": "ends the machine",
}
SHELLS = frozenset({"sh", "bash", "dash", "zsh", "ksh", "ash", "fish", "csh", "tcsh", "rbash", "mksh"})
DESTRUCTIVE_GIT = frozenset({"reset", "clean"})
_SYSTEM_FOLDERS = ("/bin/", "/usr/bin/")
_NESTING = 8


class Harm(IntEnum):
    """What a command may do, as far as its text tells."""

    NONE = 0
    """It only reads."""
    POSSIBLE = 1
    """It changes something, or nobody can tell."""
    CERTAIN = 2
    """It destroys, asks for more rights, or hides what it runs."""


@dataclass(frozen=True)
class Finding:
    """The harm of a text and what it rests on, in words."""

    harm: Harm
    why: str
    part: tuple[int, int] | None = None
    """Where in the text, in bytes of UTF-8, that stands."""


def judge(script: Script) -> Finding:
    """Return the worst that a command's text may do."""
    findings = [judge_command(command) for command in script.every_command]
    worst = max(findings, key=lambda finding: finding.harm, default=Finding(Harm.POSSIBLE, "it runs nothing known"))
    if worst.harm is not Harm.CERTAIN and script.not_plain is not None:
        fault = script.not_plain
        return Finding(Harm.POSSIBLE, fault.why, (fault.start_byte, fault.end_byte))
    return worst


def judge_command(command: SimpleCommand) -> Finding:
    """Return the worst that one simple command may do, whatever it runs in turn."""
    return replace(_judge_one(command), part=(command.start_byte, command.end_byte))


def hides_what_it_runs(program: str) -> bool:
    """Return whether a program runs a text that no word of its command shows."""
    return program in SHELLS or program in {"eval", "source", "."}


def runs_text(program: str, command: SimpleCommand) -> bool:
    """Return whether a command runs a text given as an argument or input."""
    words = command.arguments
    takes_text = any(
        word.text.startswith("-") and not word.text.startswith("--") and "c" in word.text for word in words
    )
    is_alone = not any(not word.may_be_option for word in words)
    return program == "eval" or (program in SHELLS and (takes_text or is_alone))


def _judge_one(command: SimpleCommand, nesting: int = 0) -> Finding:
    name = command.name
    if name is None:
        return Finding(Harm.POSSIBLE, "the name of a command is not certain")
    program = name.rpartition("/")[2]
    if program in DESTRUCTIVE:
        return Finding(Harm.CERTAIN, f"`{program}` {DESTRUCTIVE[program]}")
    if program.startswith("mkfs."):
        return Finding(Harm.CERTAIN, "`mkfs` deletes a file system")
    if program in SHELLS:
        return _judge_shell(program, command)
    certain = _certain_by_arguments(program, command)
    if certain:
        return Finding(Harm.CERTAIN, certain)
    if nesting == _NESTING:
        return Finding(Harm.POSSIBLE, "commands run commands too deeply")
    unwrapped = unwrap(program, command)
    if unwrapped is not None:
        return _judge_inner(program, unwrapped, nesting)
    if name != program and name.removesuffix(program) not in _SYSTEM_FOLDERS:
        return Finding(Harm.POSSIBLE, f"`{name}` is not a program of the system")
    if reads_only(program, command.arguments):
        return Finding(Harm.NONE, f"`{program}` only reads")
    return Finding(Harm.POSSIBLE, f"`{program}` is not known to only read with these arguments")


def _judge_inner(program: str, unwrapped: Unwrapped, nesting: int) -> Finding:
    # Where the inner command is a guess, all further guesses are among these already.
    deeper = nesting + 1 if unwrapped.is_certain or program == "find" else _NESTING
    findings = [_judge_one(inner, deeper) for inner in unwrapped.commands]
    if unwrapped.is_certain:
        findings.append(Finding(Harm.NONE, f"`{program}` only reads"))
    else:
        findings.append(Finding(Harm.POSSIBLE, f"`{program}` is used in a way that is not known to only read"))
    return max(findings, key=lambda finding: finding.harm)


def _judge_shell(program: str, command: SimpleCommand) -> Finding:
    """A shell that runs a script file may be looked into by a human; a text or its input hides what it runs."""
    if runs_text(program, command):
        return Finding(Harm.CERTAIN, f"`{program}` hides what it runs")
    return Finding(Harm.POSSIBLE, f"`{program}` runs a script")


def _certain_by_arguments(program: str, command: SimpleCommand) -> str:
    texts = [word.text for word in command.arguments if word.is_exact]
    if program == "git" and any(text in DESTRUCTIVE_GIT for text in _git_subcommand(texts)):
        return f"`git {_git_subcommand(texts)[0]}` throws work away"
    if program == "find" and "-delete" in texts:
        return "`find -delete` deletes files"
    return ""


def _git_subcommand(texts: list[str]) -> list[str]:
    """Return the subcommand behind git's own options, as a list of none or one."""
    with_value = {
        "-C",
        "-c",
        "--git-dir",
        "--work-tree",
        "--namespace",
        "--exec-path",
        "--super-prefix",
        "--config-env",
    }
    place = 0
    while place < len(texts) and texts[place].startswith("-"):
        place += 2 if texts[place] in with_value else 1
    return texts[place : place + 1]
