"""Events on their way to the transcript and to those who watch."""

import os
from pathlib import Path

import pytest

from coordinator.errors import TranscriptError
from coordinator.session.emitting import Emitter
from coordinator.session.events import Event
from coordinator.session.session_events import Notice
from coordinator.session.transcript import Transcript


def test_what_cannot_be_kept_is_shown_all_the_same_and_the_record_is_whole_no_more(tmp_path: Path) -> None:
    shown: list[Event] = []
    transcript = Transcript(tmp_path / "s.1.jsonl")
    emit = Emitter(transcript, [shown.append])
    emit(Notice(text="kept"))
    assert emit.is_whole

    full = os.open("/dev/full", os.O_WRONLY)
    os.dup2(full, transcript._file)
    os.close(full)
    with pytest.raises(TranscriptError, match="cannot be written"):
        emit(Notice(text="lost"))
    emit(Notice(text="after"))

    assert not emit.is_whole
    assert [event.text for event in shown if isinstance(event, Notice)] == ["kept", "lost", "after"]
    with pytest.raises(TranscriptError):
        transcript.close()
