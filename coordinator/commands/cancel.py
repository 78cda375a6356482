"""`sandhog cancel`: ends sessions that other processes run, or calls of one."""

import time
from typing import Annotated

import typer

from coordinator.commands.acting import keep_action
from coordinator.commands.completing import session_ids as known
from coordinator.commands.elsewhere import ask_cancel, ask_cancel_calls
from coordinator.commands.kept import directory_of
from coordinator.session.open_calls import parse
from coordinator.session.reading import read_session
from coordinator.session.session_events import SessionEnded
from coordinator.settings import Settings, read_settings

app = typer.Typer(add_completion=False)

POLL_S = 0.2


@app.command()
def cancel(
    session_ids: Annotated[
        list[str], typer.Argument(metavar="ID...", help="Sessions; beginnings are enough.", autocompletion=known)
    ],
    wait_s: Annotated[float, typer.Option("--wait", min=0, help="Seconds to wait for their end.")] = 15.0,
    call: Annotated[
        str | None, typer.Option(metavar="STEP.INDEX", help="Only this call of the one session: 3.0 is step 3's first.")
    ] = None,
    step: Annotated[
        int | None, typer.Option(min=0, help="Only the calls of this step of the one session that have not ended.")
    ] = None,
) -> None:
    """Ask whoever runs these sessions to cancel them, and say what became of each.

    A cancelled session answers every call, keeps its transcript and can be resumed. With --call or --step the session
    goes on: the model is told that a person cancelled them. Exit codes: 0 all have ended, 1 one is not run by any
    process, had ended already where calls were named, or did not end within the time.
    """
    settings = read_settings()
    names = [directory_of(settings.state_dir, name).name for name in session_ids]
    if call is not None or step is not None:
        if len(names) > 1 or (call is not None and step is not None):
            raise typer.BadParameter("--call and --step are for one session, and exclude each other")
        raise typer.Exit(0 if _calls_cancelled(settings, names[0], str(step) if call is None else call) else 1)
    has_all_ended = True
    for name in names:
        words, has_ended = _cancelled(settings, name, wait_s)
        print(f"{name} {words}")
        has_all_ended &= has_ended
    raise typer.Exit(0 if has_all_ended else 1)


def _calls_cancelled(settings: Settings, session: str, name: str) -> bool:
    """Cancel calls and say what became of each; return whether there were any."""
    try:
        parse(name)
    except ValueError as exc:
        raise typer.BadParameter(str(exc)) from exc
    keep_action(settings.state_dir, "cancel", session=session, detail=f"call {name}" if "." in name else f"step {name}")
    found = ask_cancel_calls(settings, session, name)
    for call, has_begun in (found or {}).items():
        print(f"{session} call {call} {'is being ended' if has_begun else 'never begins'}")
    if not found:
        # Here, for it brings all of the server's modules along, which no other cancel needs.
        from coordinator.service.cancelling import why_not

        print(why_not(directory_of(settings.state_dir, session), name).message)
    return bool(found)


def _cancelled(settings: Settings, session: str, wait_s: float) -> tuple[str, bool]:
    status = _status(settings, session)
    if status is not None:
        return f"had ended: {status}", True
    keep_action(settings.state_dir, "cancel", session=session)
    if not ask_cancel(settings, session):
        return f"is run by no process; `sandhog resume {session}` goes on with it", False
    deadline = time.monotonic() + wait_s
    while (status := _status(settings, session)) is None and time.monotonic() < deadline:
        time.sleep(POLL_S)
    return (status, True) if status else ("is asked to end; it has not yet", False)


def _status(settings: Settings, session: str) -> str | None:
    """Return how a session ended; None while it has not."""
    entries = read_session(directory_of(settings.state_dir, session)).entries
    last = entries[-1].event if entries else None
    return last.status if isinstance(last, SessionEnded) else None
