"""Transcripts as an owner leaves them that is killed, what is in them, and who says yes."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

from coordinator.session.approvals import Always, Decided
from coordinator.session.call_events import CallFinished, CallStarted
from coordinator.session.events import Event
from coordinator.session.result import SessionResult
from coordinator.session.session_events import SessionEnded
from worker.contract.approvals import ApprovalRequest


def content_of(result: SessionResult) -> bytes:
    return Path(result.transcript).read_bytes()


def begun_in(events: list[Event]) -> set[str]:
    """Steps and indexes of the calls that were started and not answered."""
    started = {f"{event.step}.{event.index}" for event in events if isinstance(event, CallStarted)}
    return started - {f"{event.step}.{event.index}" for event in events if isinstance(event, CallFinished)}


def check_whole(events: list[Event]) -> None:
    """Each call has one answer, and the session one end."""
    answered = [(event.step, event.index) for event in events if isinstance(event, CallFinished)]
    assert len(answered) == len(set(answered))
    started = {(event.step, event.index) for event in events if isinstance(event, CallStarted)}
    assert started <= set(answered)
    assert isinstance(events[-1], SessionEnded)


def age_lines(path: Path, age: timedelta) -> None:
    """Let a transcript be so old."""
    at = (datetime.now(UTC) - age).isoformat(timespec="milliseconds")
    lines = [{**json.loads(line), "at": at} for line in path.read_text().splitlines()]
    path.write_text("".join(f"{json.dumps(line, separators=(',', ':'))}\n" for line in lines))


def cut_before(path: Path, kind: str) -> None:
    """End a transcript before the first event of a kind."""
    lines = path.read_text().splitlines(keepends=True)
    at = next(number for number, line in enumerate(lines) if f'"type":"{kind}"' in line)
    path.write_text("".join(lines[:at]))


def cut_behind(session_dir: Path, kind: str) -> None:
    """End a transcript behind the first event of a kind."""
    (path,) = session_dir.glob("*.jsonl")
    lines = path.read_text().splitlines(keepends=True)
    at = next(number for number, line in enumerate(lines) if f'"type":"{kind}"' in line)
    path.write_text("".join(lines[: at + 1]))


class AlwaysForTheSession(Always):
    """A person who says `always`, once; who is asked again is a failure."""

    def __init__(self) -> None:
        self.asked = 0

    async def ask(self, request: ApprovalRequest) -> Decided | None:
        self.asked += 1
        return Decided(True, by="a person", is_lasting=True)
