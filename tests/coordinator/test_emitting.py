"""Events on their way to the transcript and to those who watch."""

import asyncio
import os
from pathlib import Path

import pytest

from coordinator.errors import TranscriptError
from coordinator.session import emitting
from coordinator.session.emitting import Emitter
from coordinator.session.events import Event
from coordinator.session.session_events import Notice
from coordinator.session.transcript import Transcript, read_transcript


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


async def test_a_session_end_that_the_disk_does_not_take_is_kept_once_it_does(tmp_path: Path) -> None:
    shown: list[Event] = []
    transcript = Transcript(tmp_path / "s.1.jsonl")
    emit = Emitter(transcript, [shown.append])
    emit(Notice(text="kept"))
    kept, full = os.dup(transcript._file), os.open("/dev/full", os.O_WRONLY)
    os.dup2(full, transcript._file)
    ending = asyncio.create_task(emit.last([Notice(text="a note"), Notice(text="the end")]))
    await asyncio.sleep(0.1)
    assert not ending.done()
    os.dup2(kept, transcript._file)
    await ending
    transcript.close()
    for file in (kept, full):
        os.close(file)

    assert emit.is_whole
    texts = ["kept", "a note", "the end"]
    assert [event.text for event in shown if isinstance(event, Notice)] == texts
    entries = read_transcript(tmp_path / "s.1.jsonl").entries
    assert [(entry.seq, entry.fields["text"]) for entry in entries] == list(enumerate(texts, 1))


async def test_an_end_that_the_disk_never_takes_is_shown_and_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(emitting, "LAST_PAUSES_S", (0.01, 0.01))
    shown: list[Event] = []
    transcript = Transcript(tmp_path / "s.1.jsonl")
    emit = Emitter(transcript, [shown.append])
    full = os.open("/dev/full", os.O_WRONLY)
    os.dup2(full, transcript._file)
    os.close(full)
    with pytest.raises(TranscriptError, match="cannot be written"):
        await emit.last([Notice(text="a note"), Notice(text="the end")])
    assert not emit.is_whole
    assert [event.text for event in shown if isinstance(event, Notice)] == ["a note", "the end"]
