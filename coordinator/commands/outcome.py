"""How a session's outcome is shown at the end of a command, and its patch put into place."""

import subprocess
import sys
from pathlib import Path

import typer

from coordinator.commands.acting import keep_action
from coordinator.commands.terminal import is_terminal
from coordinator.session.result import SessionResult
from coordinator.visible import visible


def finish(result: SessionResult, *, as_json: bool, is_gone: bool = False) -> None:
    """Print the outcome and exit; `is_gone`: the directory was a temporary one, nothing can be applied to it."""
    if as_json:
        print(result.model_dump_json())
    else:
        _print_outcome(result, is_gone=is_gone)
    # Here, where a reader that has gone is an error like any other; at the interpreter's end it is a trace.
    sys.stdout.flush()
    raise typer.Exit(result.exit_code)


def _print_outcome(result: SessionResult, *, is_gone: bool) -> None:
    """Say where the work lies: the timeline showed everything else."""
    if result.patch:
        # On a terminal a patch must not be able to draw; in a pipe it must stay a patch.
        print(visible(result.patch) if sys.stdout.isatty() else result.patch, end="")
    if result.applied:
        print(f"The patch was applied to {result.workspace}.", file=sys.stderr)
    print(f"Transcript: {result.transcript}", file=sys.stderr)
    if not result.patch or result.applied or is_gone:
        return
    print(f"Nothing was changed in {result.workspace} ({result.workspace_reason}).", file=sys.stderr)
    print(f"To apply the patch:  sandhog apply {result.session_id}", file=sys.stderr)
    if is_terminal(sys.stdin, sys.stdout, sys.stderr) and typer.confirm("Apply it now?", default=False, err=True):
        apply_kept(Path(result.transcript).parent, Path(result.workspace))


def apply_kept(session_dir: Path, directory: Path) -> int:
    """Put a kept result into its directory; return the exit code. The node side's program does it, as on a node.

    Raises:
        TranscriptError: the audit log takes no line; nothing was done.
    """
    keep_action(session_dir.parent.parent, "apply", session=session_dir.name, detail=str(directory))
    argv = [sys.executable, "-P", "-m", "worker", "apply", str(session_dir), str(directory)]
    return subprocess.run(argv, check=False).returncode
