"""Single calls of a session are cancelled: sessions → **cancelling** → held, afar; the journal says why not."""

from pathlib import Path

from coordinator.cluster.wishes import Told, Wish
from coordinator.service.afar import Afar
from coordinator.service.entries import Entry
from coordinator.service.held import Held
from coordinator.service.journal import Journal
from coordinator.service.refusals import Code, Refused
from coordinator.service.volume import on_volume
from coordinator.session.cancelling import calls_cancelled
from coordinator.session.open_calls import parse


async def cancel_calls(entry: Entry, name: str, held: Held | None, afar: Afar) -> dict[str, bool]:
    """End calls that a person wants no more; the session goes on.

    Args:
        entry: The session.
        name: A call, as `3.0`, or all calls of a step, as `3`.
        held: What this process has of it; None where another one may have it.
        afar: Asks that one.

    Returns:
        Of each call that had no answer whether it may have begun; one that had not never will. Empty where whoever has
        the session has not said so yet.

    Raises:
        Refused: they had ended, or do not run; there are none; or nobody has the session.
    """
    wish = Wish(kind="cancel_calls", calls=name)
    told: Told | None = Told()
    if held is not None:
        await held.until_begun()
        told = await calls_cancelled(held.steps, wish)
    elif not entry.facts.has_ended:
        told = await afar.ask(entry, wish)
    if told is not None and not told.result:
        raise await on_volume(why_not, entry.directory, name)
    return {} if told is None else {call: bool(has_begun) for call, has_begun in told.result.items()}


def why_not(session_dir: Path, name: str) -> Refused:
    """Return why calls cannot be cancelled that nobody has open, as the session's events tell it."""
    step, index = parse(name)
    journal, made, answered = Journal(session_dir), 0, set[int]()
    while lines := journal.read():
        for line in lines:
            if line.fields.get("step") == step and line.type == "model_replied":
                made = len(line.fields.get("calls", ()))
            elif line.fields.get("step") == step and line.type == "call_finished":
                answered.add(int(line.fields["index"]))
    wanted = set(range(made)) if index is None else {index}
    what = f"call {name}" if index is not None else f"step {name} with calls"
    if not wanted or not wanted <= set(range(made)):
        return Refused(Code.NOT_FOUND, f"Session {session_dir.name} has no {what}.")
    what = f"Call {name}" if index is not None else f"Step {name}"
    if wanted <= answered:
        return Refused(Code.CONFLICT, f"{what} of session {session_dir.name} had ended.")
    words = f"{what} of session {session_dir.name} does not run now."
    return Refused(Code.CONFLICT, words, "It may wait for its box; ask again.", retry_after_s=2)
