"""Permission: may this call run? Asked before dispatch, and enforced by the worker with the same function.

A command's text is taken apart into its simple commands (`shell`); each is judged by the user's rules (`rules`), where
there are some, else by what is known of the program (`commands`); the severest verdict is the call's.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, assert_never

from tools.commands import Finding, Harm, judge, judge_command, runs_text
from tools.registry import Registry, builtin_registry
from tools.rules import Matched, Otherwise, Rules
from tools.sensitive import change_of_git
from tools.shell import Script, SimpleCommand, read_script
from tools.verdict import Decision, Verdict, severest
from tools.wrappers import runs_others, unwrap

_NESTING = 8


class Policy(StrEnum):
    """Who decides about a call that no rule of the user's is meant for."""

    GUARDED = "guarded"
    """Reading runs, known harm does not, a human decides about the rest."""
    BOXED = "boxed"
    """The box is the boundary: every known tool runs."""


@dataclass(frozen=True)
class Terms:
    """Under which terms a session's calls are decided."""

    policy: Policy
    rules: Rules | None = None
    """The user's own rules, asked first; None if there are none."""
    is_read_only: bool = False
    """Only what certainly reads runs, whatever else would allow more; nobody is asked."""
    tools: frozenset[str] | None = None
    """The tools that the session's principal may use; None is all."""


@dataclass(frozen=True)
class Part:
    """One simple command of a text with its own verdict."""

    text: str
    """The command as it was written."""
    words: tuple[str, ...] | None
    """Its words, if they alone tell what it does: all certain, nothing put into it, nothing around it unread."""
    verdict: Verdict


GUARDED = Terms(Policy.GUARDED)
BOXED = Terms(Policy.BOXED)


def decide(tool: str, arguments: Mapping[str, Any], terms: Terms, known: Registry | None = None) -> Verdict:
    """Return whether a call runs, and why; looks at nothing but its arguments.

    Args:
        tool: The tool's name.
        arguments: The call's arguments, as validated.
        terms: The session's terms.
        known: The session's tools; None means the built-in ones. A tool not among them is denied.
    """
    found = (known or builtin_registry()).get(tool)
    if found is None:
        return Verdict(Decision.DENY, f"there is no tool {tool}")
    if terms.tools is not None and tool not in terms.tools:
        return Verdict(Decision.DENY, f"{tool} is not among the tools that this session may use")
    match found.effect:
        case "reads":
            verdict = _decide_whole(tool, terms, Verdict(Decision.ALLOW, f"{tool} changes no files"))
        case "changes":
            warning = change_of_git(arguments)
            reason = f"{tool} changes files" + (f": {warning}" if warning else "")
            verdict = _decide_whole(tool, terms, Verdict(Decision.ASK, reason))
        case "acts_outside":
            by_both = Verdict(Decision.ASK, f"{tool} acts outside of the sandbox")
            verdict = _decide_whole(tool, terms, by_both, by_boxed=by_both)
        case "runs_commands":
            return _decide_command(tool, arguments.get("command"), terms)
        case other:
            assert_never(other)
    if terms.is_read_only and found.effect != "reads":
        does = "changes files" if found.effect == "changes" else "acts outside of the sandbox"
        return Verdict(Decision.DENY, f"the session only reads, and {tool} {does}")
    return verdict


def parts(tool: str, arguments: Mapping[str, Any], terms: Terms) -> tuple[Part, ...]:
    """Return the simple commands of a call's text, each with its own verdict; none for a call without a text."""
    command = arguments.get("command")
    if not isinstance(command, str):
        return ()
    script = read_script(command)
    raw = command.encode(errors="replace")
    return tuple(
        Part(
            text=raw[one.start_byte : one.end_byte].decode(errors="replace"),
            words=tuple(word.text for word in one.words) if _is_repeatable(script, one) else None,
            verdict=_in_characters(_judged(tool, one, terms), command),
        )
        for one in script.every_command
    )


def repeatable(tool: str, arguments: Mapping[str, Any], terms: Terms) -> frozenset[tuple[str, ...]] | None:
    """Return the commands of a call that a human must say yes to, as words that mean the same wherever they stand.

    None if there is one that its words alone do not describe, or none at all: then only the very same call is the same.
    """
    command = arguments.get("command")
    if not isinstance(command, str) or read_script(command).not_plain is not None:
        return None
    asked = [part.words for part in parts(tool, arguments, terms) if part.verdict.decision is not Decision.ALLOW]
    known = frozenset(words for words in asked if words is not None)
    return known if asked and None not in asked else None


def _is_repeatable(script: Script, command: SimpleCommand) -> bool:
    return script.not_plain is None and command.is_exact and not command.has_input


_ALLOWED_BY_BOX = Verdict(Decision.ALLOW, "the session is boxed")


def _decide_whole(tool: str, terms: Terms, by_guarded: Verdict, by_boxed: Verdict = _ALLOWED_BY_BOX) -> Verdict:
    """Decide about a tool that runs no command."""
    by_policy = by_boxed if terms.policy is Policy.BOXED else by_guarded
    if terms.rules is None:
        return by_policy
    matched = terms.rules.first_for(tool, None)
    return _by_rule(matched, tool) or _by_otherwise(terms, tool, by_policy)


def _decide_command(tool: str, command: object, terms: Terms) -> Verdict:
    if not isinstance(command, str):
        return Verdict(Decision.DENY, "there is no command to judge")
    if terms.rules is None and terms.policy is Policy.BOXED and not terms.is_read_only:
        return Verdict(Decision.ALLOW, "the session is boxed")
    script = read_script(command)
    verdicts = [_judged(tool, one, terms) for one in script.every_command]
    if script.not_plain is not None or not verdicts:
        # Before the others: of equal verdicts, that the text cannot be read is the better reason.
        verdicts.insert(0, _unread(tool, script, terms))
    verdict = severest(*verdicts)
    if terms.is_read_only and verdict.decision is not Decision.DENY:
        finding = judge(script)
        if finding.harm is not Harm.NONE:
            verdict = Verdict(Decision.DENY, f"the session only reads: {finding.why}", finding.part)
    return _in_characters(verdict, command)


def _judged(tool: str, command: SimpleCommand, terms: Terms) -> Verdict:
    part = (command.start_byte, command.end_byte)
    verdict = _by_policy(command, terms) if terms.rules is None else _ruled(tool, command, terms, terms.rules)
    return replace(verdict, part=part)


def _unread(tool: str, script: Script, terms: Terms) -> Verdict:
    """Decide about what no simple command of a text accounts for: no pattern is certain to be meant or not."""
    fault = script.not_plain
    why = fault.why if fault else "it runs nothing known"
    by_policy = Verdict(Decision.ASK, why) if terms.policy is Policy.GUARDED else _ALLOWED_BY_BOX
    verdict = by_policy
    if terms.rules is not None:
        verdict = _without_command(tool, terms, terms.rules, by_policy, why)
    return replace(verdict, part=(fault.start_byte, fault.end_byte) if fault else None)


def _without_command(tool: str, terms: Terms, rules: Rules, by_policy: Verdict, why: str) -> Verdict:
    matched = rules.first_for(tool, None, is_readable=False)
    verdict = _by_rule(matched, tool) or _by_otherwise(terms, why, by_policy)
    return severest(verdict, *_doubts(matched, why))


def _ruled(tool: str, command: SimpleCommand, terms: Terms, rules: Rules, nesting: int = 0) -> Verdict:
    """Decide by the user's rules about one simple command and what it runs in turn."""
    matched = rules.first_for(tool, command)
    shown = _shown(command)
    own = _by_rule(matched, shown)
    verdicts: list[Verdict] = list(_doubts(matched, shown))
    name = command.name
    program = name.rpartition("/")[2] if name else ""
    is_too_deep = nesting == _NESTING and runs_others(program)
    unwrapped = unwrap(program, command) if name and not is_too_deep else None
    inner = unwrapped.commands if unwrapped else ()
    if own is not None and matched.rule is not None and matched.rule.is_spelled_out:
        # A human wrote these very words, so that nothing in them is a surprise; but rules against what they run hold.
        below = [_by_rule(rules.first_for(tool, one), _shown(one)) for one in inner]
        return severest(own, *verdicts, *[one for one in below if one and one.decision is not Decision.ALLOW])
    is_wrapper = bool(inner) and program != "find"
    if not is_wrapper or (own is not None and own.decision is not Decision.ALLOW):
        # A rule that allows a wrapper says nothing of what it runs.
        verdicts.append(own or _by_otherwise(terms, shown, _by_policy(command, terms)))
    is_certain = unwrapped is None or unwrapped.is_certain or program == "find"
    if not is_certain or (own is None and runs_text(program, command)):
        verdicts.append(_without_command(tool, terms, rules, _by_policy(command, terms), f"{shown} is not certain"))
    if is_too_deep:
        verdicts.append(Verdict(Decision.ASK, "commands run commands too deeply"))
    # Of a guess, all further guesses are among these already.
    deeper = nesting + 1 if is_certain else _NESTING
    verdicts.extend(_ruled(tool, one, terms, rules, deeper) for one in inner)
    return severest(*verdicts)


def _by_rule(matched: Matched, shown: str) -> Verdict | None:
    if matched.rule is None:
        return None
    why = f": {matched.rule.why}" if matched.rule.why else ""
    return Verdict(matched.rule.decision, f"rule {matched.number} of the policy file is for {shown}{why}")


def _doubts(matched: Matched, shown: str) -> Iterable[Verdict]:
    if matched.doubt is not None:
        yield Verdict(Decision.ASK, f"rule {matched.doubt} of the policy file may be meant: {shown}")


def _by_otherwise(terms: Terms, shown: str, by_policy: Verdict) -> Verdict:
    otherwise = terms.rules.otherwise if terms.rules is not None else Otherwise.POLICY
    match otherwise:
        case Otherwise.POLICY:
            return by_policy
        case Otherwise.ASK:
            return Verdict(Decision.ASK, f"no rule of the policy file decides: {shown}")
        case Otherwise.DENY:
            return Verdict(Decision.DENY, f"no rule of the policy file allows it: {shown}")
        case other:
            assert_never(other)


def _by_policy(command: SimpleCommand, terms: Terms) -> Verdict:
    if terms.policy is Policy.BOXED:
        return _ALLOWED_BY_BOX
    return _by_finding(judge_command(command))


def _by_finding(finding: Finding) -> Verdict:
    match finding.harm:
        case Harm.NONE:
            return Verdict(Decision.ALLOW, finding.why, finding.part)
        case Harm.POSSIBLE:
            return Verdict(Decision.ASK, finding.why, finding.part)
        case Harm.CERTAIN:
            return Verdict(Decision.DENY, f"{finding.why}; the guarded policy refuses that", finding.part)
        case other:
            assert_never(other)


def _shown(command: SimpleCommand) -> str:
    words = [word.text + ("" if word.is_exact else "…") for word in command.words[:4]]
    return f"`{' '.join(words)}{' …' if len(command.words) > 4 else ''}`"


def _in_characters(verdict: Verdict, text: str) -> Verdict:
    """Return a verdict whose part counts characters of the text."""
    if verdict.part is None:
        return verdict
    raw = text.encode(errors="replace")
    start, end = (len(raw[:place].decode(errors="ignore")) for place in verdict.part)
    return replace(verdict, part=(start, end))
