"""Proves of a chaos run: nothing twice, one answer a call, answers that agree with the files, nothing left over."""

import json
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from coordinator.errors import SandhogError
from coordinator.session.call_events import CallFinished
from coordinator.session.history import validate
from coordinator.session.reading import read_session, segments
from coordinator.session.rebuild import Rebuilt, rebuild
from coordinator.session.session_events import SessionEnded, SessionPlaced, SessionResumed, SessionStarted
from coordinator.session.step_events import ModelReplied, ReplyTaken
from coordinator.session.transcript import Entry
from tests.chaos.causes import CAUSES, ENDS, Done, is_explained
from tests.chaos.claims import Call
from tests.chaos.harms import COMMAND_HARMS, harm_in
from worker.contract.orders import WorkspaceMode
from worker.contract.places import COPY_DIR

TOKEN = re.compile(r"echo (t[0-9]+) >> log")
NOT_RUN = ("did not run", "Not run", "before this call ran", "before it could", "there is no box")
"""What the answer of a call says that certainly left no line."""
UNKNOWN_CODES = tuple(CAUSES)
"""Errors of calls that may have left a line, unless the answer says that they did not run."""
HARM_CODES: Mapping[str, str] = {"command_timed_out": "TIMEOUT", "command_out_of_memory": "LIMIT_REACHED"}
"""How a command ends that hurt itself, by the kind; it may have left a line, and has run in any case."""
BY_ITSELF = "ended by itself"
NO_SPACE = "no space"
"""A command that says that its disk was full: it may have left a line, and has run in any case."""
ANSWER_KINDS = ("success", "did not run", NO_SPACE, BY_ITSELF, *UNKNOWN_CODES)
READING_CODES = ("NOT_FOUND",)
"""Errors of calls that only read, besides: there is no log yet."""
UNANSWERED = "unanswered"
NO_ANSWER = ": 0 answers"
CUT_OFF = "cut off by a full disk"


@dataclass
class Verdict:
    """What was checked, and what was wrong."""

    sessions: Counter[str] = field(default_factory=Counter)
    """Sessions by how they ended."""
    calls: Counter[str] = field(default_factory=Counter)
    """Answered calls: `success`, `did not run`, or the code of an unknown outcome."""
    resumed: int = 0
    """How often a session went on with another coordinator."""
    violations: list[str] = field(default_factory=list)

    @property
    def unknown(self) -> int:
        """Calls that may have run."""
        return sum(count for kind, count in self.calls.items() if kind in UNKNOWN_CODES)

    @property
    def checked(self) -> int:
        """All answered calls."""
        return self.calls.total()

    def demand_few_unknown(self, most: float) -> None:
        """Find it wrong where a larger share of the calls than `most` may have run."""
        if self.unknown > most * self.checked:
            self.violations.append(f"{self.unknown} of {self.checked} calls may have run: more than {most:.1%}")


@dataclass(frozen=True)
class Asked:
    """A call that the model asked for, and its one answer."""

    place: str
    key: Call
    token: str
    """"" for a call that leaves no line."""
    kind: str
    """As in `Verdict.calls`."""
    answer: str
    at: float = 0.0
    """When the answer was written, in seconds since the epoch."""
    harm: str = ""
    """What the command did to itself."""
    waited_s: float = 0.0
    """From dispatch to the answer."""


@dataclass(frozen=True)
class Known:
    """What the harness knows of a run."""

    projects: Path
    """The directory of the projects; a session's prompt names its own."""
    cut_off: Collection[str] = ()
    """Sessions that a full volume ended: their last answers and their end may have had no room."""
    faults: Sequence[Done] = ()
    """All that were done."""
    owners: Mapping[str, Collection[str]] = field(default_factory=dict)
    """The coordinators that a session was with, by its id."""
    claimed: Collection[Call] = ()
    """Calls whose claims were left in Redis."""


def check_sessions(state_dir: Path, known: Known) -> Verdict:
    """Check every session below `state_dir`, the shared volume, against its project's log and the run's faults."""
    verdict = Verdict()
    found: dict[str, str] = {}
    for session_dir in sorted((state_dir / "sessions").iterdir()):
        if not session_dir.is_dir():
            continue
        try:
            project = _check_session(session_dir, known, verdict)
        except SandhogError as exc:
            verdict.violations.append(f"{session_dir.name}: {exc}")
            continue
        if project in found:
            verdict.violations.append(f"{project}: two sessions, {found[project]} and {session_dir.name}")
        found[project] = session_dir.name
    for log in sorted(known.projects.glob("*/log")):
        if log.parent.name not in found:
            verdict.violations.append(f"{log.parent.name}: a log without a session")
    return verdict


def _check_session(session_dir: Path, known: Known, verdict: Verdict) -> str:
    """Check one session; return its project."""
    name = session_dir.name
    if not segments(session_dir):
        # Its coordinator died, or the disk was full, before its first event.
        verdict.sessions["never began"] += 1
        return f"no project of {name}"
    reading = read_session(session_dir)
    events = [entry.event for entry in reading.entries if entry.event is not None]
    started = next((event for event in events if isinstance(event, SessionStarted)), None)
    if started is None:
        verdict.sessions["never began"] += 1
        return f"no project of {name}"
    verdict.violations += [f"{name}: {fault}" for fault in reading.faults]
    verdict.resumed += sum(isinstance(event, SessionResumed) for event in events)
    rebuilt = rebuild(reading.entries)
    whom = {started.prompt, *known.owners.get(name, ())}
    whom |= {event.node for event in events if isinstance(event, SessionPlaced)}
    is_cut_off = name in known.cut_off and rebuilt.ended is None
    if is_cut_off:
        verdict.sessions[CUT_OFF] += 1
    else:
        _check_history(name, rebuilt, verdict)
        _check_end(name, [one for one in reading.entries if one.event is not None], whom, known.faults, verdict)
    is_copy = started.workspace_mode == WorkspaceMode.COPY.value
    log = (session_dir / COPY_DIR if is_copy else known.projects / started.prompt) / "log"
    wrong: list[str] = []
    calls = asked_calls(name, reading.entries, wrong)
    verdict.violations += check_unknown(calls, whom, known.faults)
    verdict.violations += check_claims(calls, known.claimed)
    verdict.violations += [one for one in wrong if not (is_cut_off and one.endswith(NO_ANSWER))]
    verdict.calls.update(call.kind for call in calls)
    verdict.violations += check_log(name, calls, log.read_text() if log.exists() else "")
    return started.prompt


def _check_history(name: str, rebuilt: Rebuilt, verdict: Verdict) -> None:
    try:
        validate(rebuilt.history.messages)
    except SandhogError as exc:
        verdict.violations.append(f"{name}: {exc}")


def _check_end(
    name: str, entries: Sequence[Entry], whom: Collection[str], faults: Sequence[Done], verdict: Verdict
) -> None:
    ends = [(entry.event, entry.at) for entry in entries if isinstance(entry.event, SessionEnded)]
    verdict.sessions[ends[-1][0].status if ends else "no end"] += 1
    if len(ends) != 1 or entries[-1].event is not ends[0][0]:
        verdict.violations.append(f"{name}: {len(ends)} ends, and the last event is {type(entries[-1].event).__name__}")
        return
    ((end, at),) = ends
    causes = ENDS.get(end.stop_reason.split(":")[0], ())
    if end.status not in ("completed", "cancelled") and not is_explained(causes, _seconds(at), whom, faults):
        verdict.violations.append(f"{name}: ended as {end.status}: {end.stop_reason}")


def _seconds(at: str) -> float:
    return datetime.fromisoformat(at).timestamp()


def asked_calls(name: str, entries: Sequence[Entry], violations: list[str]) -> list[Asked]:
    """Return all calls of a session in the model's order; calls without exactly one answer are violations."""
    answers: dict[tuple[int, int], list[tuple[CallFinished, str]]] = {}
    for entry in entries:
        if isinstance(entry.event, CallFinished):
            answers.setdefault((entry.event.step, entry.event.index), []).append((entry.event, entry.at))
    calls = []
    for reply in _taken([entry.event for entry in entries]):
        for index, call in enumerate(reply.calls):
            got, key = answers.pop((reply.step, index), []), (name, reply.step, index)
            place = f"{name} step {reply.step} call {index}"
            arguments = call.arguments if isinstance(call.arguments, str) else json.dumps(call.arguments)
            found, harm = TOKEN.search(arguments), harm_in(arguments)
            token = found[1] if found else ""
            if len(got) != 1:
                violations.append(f"{place}: {len(got)} answers" if got else f"{place}{NO_ANSWER}")
                calls.append(Asked(place, key, token, UNANSWERED, ""))
                continue
            ((answer, written),) = got
            at, waited_s = _seconds(written), answer.time_ms / 1000
            calls.append(Asked(place, key, token, _kind(answer, harm), answer.answer, at, harm, waited_s))
    violations += [f"{name} step {step} call {index}: an answer to no call" for step, index in answers]
    return calls


def _taken(events: Sequence[Any]) -> list[ModelReplied]:
    """Return the replies that the session went on with; the model is asked anew where its coordinator died before."""
    replies, last = [], None
    for event in events:
        if isinstance(event, ModelReplied):
            last = event
        elif isinstance(event, ReplyTaken) and last is not None:
            replies.append(last)
            last = None
    return replies


def _kind(answer: CallFinished, harm: str) -> str:
    if answer.status != "error":
        return NO_SPACE if "No space left" in answer.answer else "success"
    # "May have run", whatever the reason says besides.
    if answer.error_code != "OUTCOME_UNKNOWN" and any(words in answer.answer for words in NOT_RUN):
        return "did not run"
    return BY_ITSELF if harm and answer.error_code == HARM_CODES.get(harm) else str(answer.error_code)


def check_unknown(calls: Sequence[Asked], whom: Collection[str], faults: Sequence[Done]) -> list[str]:
    """Return which of a session's calls may have run without a fault that explains it; `whom` as in `is_explained`."""
    return [
        f"{call.place}: {call.kind} without a fault before it: {call.answer[:300]}"
        for call in calls
        if call.kind in UNKNOWN_CODES and not is_explained(CAUSES[call.kind], call.at, whom, faults, call.waited_s)
    ]


def check_claims(calls: Sequence[Asked], claimed: Collection[Call]) -> list[str]:
    """Return which calls a worker had started that were said not to have run."""
    return [
        f"{call.place}: said not to have run, and was claimed: {call.answer[:300]}"
        for call in calls
        if call.kind == "did not run" and call.key in claimed
    ]


def check_log(name: str, calls: Sequence[Asked], log: str) -> list[str]:
    """Return what is wrong between a session's answers and the lines of its project's log."""
    lines = log.split("\n")
    wrong = [f"{name}: the log ends in {lines[-1]!r}"] if lines.pop() else []
    found = Counter(lines)
    tokens = {call.token for call in calls}
    wrong += [f"{name}: {line} stands in the log {count} times" for line, count in found.items() if count > 1]
    wrong += [f"{name}: {line!r} in the log is no call's" for line in found if line not in tokens]
    for call in calls:
        if call.kind == UNANSWERED:
            continue
        if call.kind not in ANSWER_KINDS and (call.token or call.kind not in READING_CODES):
            wrong.append(f"{call.place}: {call.kind}: {call.answer[:300]}")
        if not call.token:
            continue
        there = found[call.token]
        said = (f"said {call.token}", COMMAND_HARMS[call.harm].says if call.harm else "")
        if call.kind == "success" and (not there or not all(words in call.answer for words in said)):
            wrong.append(f"{call.place}: answered as success with {there} lines: {call.answer[:300]}")
        elif call.kind == "did not run" and there:
            wrong.append(f"{call.place}: said not to have run, and has its line: {call.answer[:300]}")
    # One call of a session's chain at a time, in the model's order.
    order = {call.token: number for number, call in enumerate(calls)}
    numbers = [order[line] for line in lines if line in order]
    if numbers != sorted(numbers):
        wrong.append(f"{name}: the lines are not in the model's order")
    return wrong


EXPIRING = ("claim", "reply", "lanes", "lanes_over", "errands", "grant", "breaker:session", "owned")
"""What a part that was killed leaves in Redis to expire by itself: nobody knows that it is done with.

The sessions that a coordinator owned when it was killed, too, where they had ended and all others ended soon after it.
"""


def redis_leftovers(ttls: Mapping[str, int], nodes: Sequence[str]) -> list[str]:
    """Return those of Redis' keys that nobody owns any more once all parts have ended.

    Args:
        ttls: Seconds to live by key, -1 for ever.
        nodes: The nodes, whose descriptions expire.
    """
    node_keys = {f"sandhog:{kind}:{node}" for kind in ("node", "breaker:node") for node in nodes}
    expiring = tuple(f"sandhog:{kind}:" for kind in EXPIRING)
    return sorted(
        name
        for name, ttl in ttls.items()
        # Who was killed last is taken off the list by the next coordinator.
        if not name.startswith(("sandhog:nodes", "sandhog:coordinators"))
        and not ((name in node_keys or name.startswith(expiring)) and ttl >= 0)
    )


def summary(verdict: Verdict) -> Mapping[str, Any]:
    """Return the counts as JSON."""
    return {
        "sessions": dict(verdict.sessions),
        "calls": dict(verdict.calls),
        "resumed": verdict.resumed,
        "violations": verdict.violations,
    }
