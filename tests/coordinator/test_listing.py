"""What `sandhog ps`, `top`, `logs` and `cancel` say of sessions on the volume that no process has."""

import io
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from rich.console import Console

from coordinator.commands.cancel import _status
from coordinator.commands.listing import age, lines_of, sessions_of
from coordinator.commands.session_table import table_of
from coordinator.commands.watching import Watching
from coordinator.service.entries import Index
from coordinator.session.events import Event
from coordinator.session.session_events import SessionEnded, SessionStarted
from coordinator.session.step_events import ModelReplied, StepStarted
from coordinator.session.transcript import Transcript
from coordinator.settings import Settings

NOW = datetime(2030, 1, 31, 12, 0, tzinfo=UTC)
HOSTILE = "\x1b]52;c;AAAA\x07\x1b[2J‮ done\nrm -rf /"


def kept(state_dir: Path, session_id: str, *events: Event) -> Path:
    directory = state_dir / "sessions" / session_id
    with Transcript.create(directory, session_id) as transcript:
        for event in events:
            transcript(event)
    return directory


def started(session_id: str) -> SessionStarted:
    return SessionStarted(
        session_id=session_id,
        prompt="p",
        model=HOSTILE,
        policy="boxed",
        workspace_mode="copy",
        workspace_reason="",
        workspace="/w",
        image="i",
        max_steps=9,
    )


def replied() -> ModelReplied:
    return ModelReplied(step=1, text="so far", finish_reason="stop")


def ended() -> SessionEnded:
    return SessionEnded(status="completed", stop_reason="done", text=HOSTILE, steps=2, calls=3)


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(state_dir=tmp_path, redis_url=None)


OPEN, DONE = "20300131-110000-aaaaaaaa", "20300131-115900-bbbbbbbb"


@pytest.fixture
def two(settings: Settings) -> Settings:
    kept(settings.state_dir, OPEN, started(OPEN), StepStarted(step=1), replied())
    kept(settings.state_dir, DONE, started(DONE), ended())
    return settings


def test_a_session_that_nobody_has_was_left(two: Settings) -> None:
    rows = sessions_of(two, Index(two.state_dir), with_ended=True)
    assert [(view.session_id, state) for state, view in rows] == [(DONE, "completed"), (OPEN, "left")]
    assert [view.session_id for _, view in sessions_of(two, Index(two.state_dir), with_ended=False)] == [OPEN]


@pytest.mark.parametrize("width", [60, 80, 140])
def test_hostile_text_cannot_draw(two: Settings, width: int) -> None:
    rows = sessions_of(two, Index(two.state_dir), with_ended=True)
    out = io.StringIO()
    Console(file=out, width=width, no_color=True).print(table_of(rows, NOW, width))
    text = out.getvalue() + "\n".join(lines_of(rows, NOW))
    assert not {"\x1b", "\x07", "‮"} & set(text)
    assert all(len(line) <= width for line in out.getvalue().splitlines())
    assert len(lines_of(rows, NOW)) == 2
    assert all(len(line.split("\t")) == 9 for line in lines_of(rows, NOW))


def test_ids_are_whole_on_a_narrow_terminal(two: Settings) -> None:
    out = io.StringIO()
    Console(file=out, width=80).print(table_of(sessions_of(two, Index(two.state_dir), with_ended=True), NOW, 80))
    assert OPEN in out.getvalue()
    assert DONE in out.getvalue()


@pytest.mark.parametrize(
    ("seconds", "shown"), [(-5, "0s"), (7, "7s"), (59.9, "59s"), (720, "12m"), (11_100, "3h05"), (400_000, "4d")]
)
def test_ages(seconds: float, shown: str) -> None:
    assert age(NOW, NOW + timedelta(seconds=seconds)) == shown


def test_what_is_new_is_shown_once(settings: Settings) -> None:
    directory = settings.state_dir / "sessions" / OPEN
    out = io.StringIO()
    with Transcript.create(directory, OPEN) as transcript:
        transcript(started(OPEN))
        watching = Watching(directory, out, as_json=True)
        assert not watching.show_new()
        assert not watching.show_new()
        transcript(ended())
        assert watching.show_new()
    assert [json.loads(line)["type"] for line in out.getvalue().splitlines()] == ["session_started", "session_ended"]


def test_the_end_of_a_session_is_known(two: Settings) -> None:
    assert _status(two, DONE) == "completed"
    assert _status(two, OPEN) is None
