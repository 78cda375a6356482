"""What a policy says of a command, and why: `sandhog explain`."""

from collections.abc import Iterator
from pathlib import Path

from coordinator.commands.marking import marked_lines
from coordinator.errors import ConfigError
from coordinator.visible import visible_line
from tools.permission import Part, Terms, decide, parts, repeatable
from tools.policy_file import PolicyFileError, load_policy_file
from tools.registry import Registry
from tools.rules import Rules
from tools.verdict import Verdict

WIDTH = 120
_GLYPHS = {"allow": "✓", "ask": "?", "deny": "✗"}


def rules_of(path: Path | None, known: Registry) -> Rules | None:
    """Return the rules of a policy file; None without one.

    Raises:
        ConfigError: it cannot be used; the message says what to write instead.
    """
    if path is None:
        return None
    try:
        return load_policy_file(path.expanduser(), known)
    except PolicyFileError as exc:
        raise ConfigError(str(exc)) from exc


def explain(command: str, terms: Terms) -> tuple[Verdict, list[str]]:
    """Return what happens to a command's text, and the same in lines for a person."""
    arguments = {"command": command}
    verdict = decide("Bash", arguments, terms)
    return verdict, list(_lines(command, verdict, parts("Bash", arguments, terms), terms))


def _lines(command: str, verdict: Verdict, found: tuple[Part, ...], terms: Terms) -> Iterator[str]:
    yield f"{verdict.decision.value}: {visible_line(verdict.reason, 4 * WIDTH)}"
    yield from marked_lines(command, verdict.part, WIDTH)
    if len(found) > 1 or (found and found[0].verdict.decision is not verdict.decision):
        yield "its commands:"
        for part in found:
            glyph = _GLYPHS[part.verdict.decision.value]
            yield f"  {glyph} {visible_line(part.text, WIDTH)}: {visible_line(part.verdict.reason, WIDTH)}"
    if verdict.decision.value == "ask":
        commands = repeatable("Bash", {"command": command}, terms)
        meant = "this very call only" if commands is None else "these very commands, wherever they come first"
        yield f"a yes for the whole session would mean {meant}"
