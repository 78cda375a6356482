"""Transcripts written, broken and read."""

import asyncio
import json
import os
import stat
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.endpoint.reply import RawCall, Usage
from coordinator.errors import TranscriptError
from coordinator.session.call_events import ApprovalAnswered, ApprovalAsked, CallFinished
from coordinator.session.event_fields import CutInfo
from coordinator.session.events import ChildEvent, Event
from coordinator.session.redact import Redactor, without_shapes
from coordinator.session.session_events import Notice, SessionEnded
from coordinator.session.step_events import ModelReplied, StepStarted, TextDelta
from coordinator.session.transcript import Transcript, read_transcript, segment_path

EVENTS: list[Event] = [
    StepStarted(step=1),
    ModelReplied(
        step=1,
        text="I look.\u2028\x0c",
        calls=(RawCall(0, "a", "Read", '{"path": "x"}'), RawCall(1, None, "Grep", {"pattern": "y"})),
        finish_reason="tool_calls",
        usage=Usage(1, 2, 3),
        raw={"choices": [{"message": {"reasoning": "hm"}}]},
    ),
    CallFinished(
        step=1,
        index=0,
        call_id="a",
        tool="Read",
        status="partial",
        answer='{"text":"é"}',
        cut=CutInfo(total_bytes=2, shown_bytes=1, path="/spill/x"),
    ),
    SessionEnded(status="completed", stop_reason="stop", text="done", steps=1, calls=2, usage=Usage(1, 2, 3)),
]


def written(directory: Path, *events: Event, secrets: tuple[str, ...] = ()) -> Path:
    with Transcript.create(directory, "s", secrets=secrets) as transcript:
        for event in events:
            transcript(event)
    return transcript.path


def test_of_a_sub_agent_only_what_it_asks_is_kept(tmp_path: Path) -> None:
    asked = ApprovalAsked(step=3, index=0, tool="Bash", summary="make", reason="why", within_s=60)
    answered = ApprovalAnswered(step=3, index=0, tool="Bash", decision="allow")

    def did(event: Event) -> ChildEvent:
        return ChildEvent(step=1, index=0, child="s.1-1-0", description="look", event=event)

    told = [did(StepStarted(step=3)), did(did(asked)), did(TextDelta(step=3, text="x")), did(answered)]
    reading = read_transcript(written(tmp_path, *told))
    assert [entry.event for entry in reading.entries] == [told[1], told[3]]


def test_what_is_read_is_what_was_written(tmp_path: Path) -> None:
    reading = read_transcript(written(tmp_path, *EVENTS))
    assert [entry.event for entry in reading.entries] == EVENTS
    assert [entry.seq for entry in reading.entries] == [1, 2, 3, 4]
    assert (reading.faults, reading.torn_bytes) == ((), 0)


def test_a_line_carries_version_number_and_time(tmp_path: Path) -> None:
    path = tmp_path / "s.1.jsonl"
    with Transcript(path, now=lambda: datetime(2030, 1, 31, 12, tzinfo=UTC)) as transcript:
        transcript(StepStarted(step=7))
    assert path.read_bytes() == b'{"v":1,"seq":1,"at":"2030-01-31T12:00:00.000Z","type":"step_started","step":7}\n'


def test_text_that_was_only_shown_is_not_kept(tmp_path: Path) -> None:
    assert written(tmp_path, TextDelta(step=1, text="x")).read_bytes() == b""


def test_every_line_is_in_the_file_before_the_next_event(tmp_path: Path) -> None:
    with Transcript.create(tmp_path / "new", "s", 3) as transcript:
        assert transcript.path == segment_path(tmp_path / "new", "s", 3)
        for count, event in enumerate(EVENTS, start=1):
            transcript(event)
            assert transcript.path.read_bytes().count(b"\n") == count
            assert transcript.size_bytes == transcript.path.stat().st_size


def test_only_its_owner_may_read_it(tmp_path: Path) -> None:
    assert stat.S_IMODE(written(tmp_path).stat().st_mode) == 0o600


def test_a_generation_has_one_writer(tmp_path: Path) -> None:
    path = written(tmp_path, *EVENTS)
    before = path.read_bytes()
    with pytest.raises(TranscriptError, match="another process owns"):
        Transcript.create(tmp_path, "s")
    assert path.read_bytes() == before


def test_a_full_disk_leaves_whole_lines(tmp_path: Path) -> None:
    resource = pytest.importorskip("resource")
    path = tmp_path / "s.1.jsonl"
    child = os.fork()
    if child == 0:
        transcript = Transcript(path)
        transcript(Notice(text="fits"))
        resource.setrlimit(resource.RLIMIT_FSIZE, (transcript.size_bytes + 50,) * 2)
        try:
            transcript(Notice(text="x" * 1000))
        except TranscriptError:
            os._exit(7)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    reading = read_transcript(path)
    assert [entry.event for entry in reading.entries] == [Notice(text="fits")]
    assert reading.torn_bytes == 0


def test_a_directory_that_cannot_be_made_is_a_typed_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(TranscriptError, match="cannot be created"):
        Transcript.create(tmp_path / "file" / "x", "s")


async def test_a_slow_disk_holds_up_its_own_session_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    is_written, fsync = threading.Event(), os.fsync

    def slow(file: int) -> None:
        assert is_written.wait(60)
        fsync(file)

    transcript = Transcript.create(tmp_path, "s")
    transcript(Notice(text="first"))
    monkeypatch.setattr(os, "fsync", slow)
    syncing = asyncio.create_task(transcript.sync_aside())
    await asyncio.sleep(0.05)
    # The loop goes on, and so does the session's own transcript.
    transcript(Notice(text="second"))
    assert not syncing.done()
    is_written.set()
    await syncing
    # What came meanwhile is not taken for written.
    assert transcript._is_dirty
    await transcript.sync_aside()
    assert not transcript._is_dirty
    transcript.close()


async def test_closing_waits_for_a_sync_that_nobody_waits_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, synced, fsync = threading.Event(), list[int](), os.fsync

    def slow(file: int) -> None:
        begun.set()
        time.sleep(0.2)
        fsync(file)
        synced.append(file)

    transcript = Transcript.create(tmp_path, "s")
    transcript(Notice(text="first"))
    monkeypatch.setattr(os, "fsync", slow)
    syncing = asyncio.create_task(transcript.sync_aside())
    while not begun.is_set():
        await asyncio.sleep(0.001)
    syncing.cancel()
    await asyncio.sleep(0)
    transcript.close()
    assert len(synced) == 1


def test_closing_twice_is_fine(tmp_path: Path) -> None:
    transcript = Transcript.create(tmp_path, "s")
    transcript.sync()
    transcript.close()
    transcript.close()


OURS = ("key-of-this-process", 'quoted"and\nbroken of this process', "")
SECRETS = [
    ("OPENAI_API_KEY={}", "key-of-this-process"),
    ("see {} there", "key-of-this-process"),
    ("GITHUB_TOKEN={}", "abcdef123456"),
    ('export MY_SECRET_2="{}"', "abcdef123456"),
    ("authorization: Bearer {}", "abcdef.123456"),
    ("{}", "sk-proj-abcdefghijklmnop1234"),
    ("{}", "ghp_abcdefghijklmnop1234"),
    ("redis://{}@host:1/0", ":pa55word"),
    ("{}", "AKIAABCDEFGHIJKLMNOP"),
    ("Authorization: Basic {}", "dXNlcjpwYXNzd29yZA=="),
    ("> proxy-authorization: {}", "abcdef123456"),
    ("-H 'X-Api-Key: {}'", "abcdef123456"),
    ("PRIVATE-TOKEN: {}", "abcdef123456"),
    ("{}", "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N"),
    ("{}", "npm_abcdefghijklmnop1234"),
    ("see {} there", 'quoted"and\nbroken of this process'),
    ('{{"api_key": "{}"}}', "abcdefgh"),
    ("{}", "-----BEGIN OPENSSH PRIVATE KEY-----\nabc\n-----END OPENSSH PRIVATE KEY-----"),
]


@pytest.mark.parametrize(("around", "secret"), SECRETS)
@pytest.mark.parametrize("depth", [0, 1, 2])
def test_secrets_are_not_kept(tmp_path: Path, around: str, secret: str, depth: int) -> None:
    text = "before\n" + around.format(secret) + "\nafter"
    for _ in range(depth):
        secret = json.dumps(secret)[1:-1]
        text = json.dumps({"text": text})
    content = json.loads(written(tmp_path, Notice(text=text), secrets=OURS).read_text())["text"]
    assert secret not in content
    assert "[redacted]" in content
    assert "before" in content
    assert "after" in content


@pytest.mark.parametrize(
    "piece",
    [
        "A",
        "TOKEN_",
        "sk-",
        "eyJ",
        "eyJaaaaaaaa.",
        "authorization: a",
        "x-token: ",
        " sk-a",
        "bearer ",
        "://a:",
        '"api_key": "',
        "\\",
        "-----BEGIN PRIVATE KEY-----",
        "'",
    ],
)
@pytest.mark.parametrize("head", ["", '"api_key": "', "SECRET=", "://"])
def test_hostile_text_is_looked_through_in_no_time(head: str, piece: str) -> None:
    began = time.thread_time()
    Redactor().text(head + piece * (200_000 // len(piece)))
    assert time.thread_time() - began < 2


PIECES = st.sampled_from(
    [
        *(around.format(secret) for around, secret in SECRETS),
        *(
            "ghp_",
            "glpat-",
            "hf-",
            "github_pat_",
            "xoxb-",
            "AIza",
            "pypi-",
            "rk_live_",
            "dop_v1_",
            "ya29.",
            "eyJ",
            "sk-",
        ),
        *(
            "authorization: ",
            "x-token: ",
            "api-key: ",
            "://u:",
            "@",
            "'passwd': '",
            "MY_SECRET=",
            "\\n",
            "\u017f",
            "\u212a",
        ),
        *("\u0130", "\u0131", " ", "a1b2c3d4e5f6a7b8c9d0", "A1B2C3D4E5F6A7B8"),
    ]
)


@given(st.lists(PIECES | st.text(max_size=5), max_size=6), st.sampled_from([str, str.upper, str.title]))
def test_only_what_holds_no_secret_is_not_looked_through(pieces: list[str], written_as: Callable[[str], str]) -> None:
    text = written_as("".join(pieces))
    assert Redactor().text(text) == without_shapes(text)


def test_a_field_named_like_a_secret_is_not_kept(tmp_path: Path) -> None:
    raw = {"headers": {"Authorization": "hunter2", "x-api-key": "hunter2"}, "usage": {"total_tokens": 7}}
    path = written(tmp_path, ModelReplied(step=1, text="", finish_reason="stop", raw=raw))
    assert "hunter2" not in path.read_text()
    assert '"total_tokens":7' in path.read_text()


def test_innocent_text_is_kept_as_it_is(tmp_path: Path) -> None:
    text = "MAX_TOKENS=4096 task-of-the-risk-assessment def password(x): return token  # https://a.b/c:d@e\n    x = y\n"
    assert read_transcript(written(tmp_path, Notice(text=text))).entries[0].event == Notice(text=text)


def test_what_json_or_utf8_cannot_hold_does_not_stop_the_transcript(tmp_path: Path) -> None:
    raw: dict[str, Any] = {"logprob": float("-inf"), "half": "\ud83d"}
    path = written(tmp_path, ModelReplied(step=1, text="\ud83d", finish_reason="stop", raw=raw))
    event = read_transcript(path).entries[0].event
    assert event == ModelReplied(step=1, text="�", finish_reason="stop", raw={"logprob": None, "half": "�"})


def test_a_torn_last_line_is_tolerated(tmp_path: Path) -> None:
    path = written(tmp_path, *EVENTS)
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"v":1,"seq":5,"at"')
    reading = read_transcript(path)
    assert [entry.event for entry in reading.entries] == EVENTS
    assert (reading.faults, reading.valid_bytes, reading.torn_bytes) == ((), len(whole), 19)


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        (b"garbage", "Expecting value"),
        (b"\xff\xfe", "line 2"),
        (b"[1]", "not an object"),
        (b"[" * 100_000, "line 2"),
        (b'{"v":2,"seq":1,"at":"","type":"notice","text":"x"}', "version 2"),
        (b'{"v":1,"at":"","type":"notice","text":"x"}', "seq, at or type is missing"),
        (b'{"v":1,"seq":1,"at":"","type":"notice"}', "not a whole notice"),
        (b"", "line 2"),
    ],
)
def test_a_corrupt_line_is_reported_and_skipped(tmp_path: Path, line: bytes, fault: str) -> None:
    path = written(tmp_path, *EVENTS)
    first, rest = path.read_bytes().split(b"\n", 1)
    path.write_bytes(first + b"\n" + line + b"\n" + rest)
    reading = read_transcript(path)
    assert [entry.event for entry in reading.entries] == EVENTS
    assert len(reading.faults) == 1
    assert "line 2 is skipped" in reading.faults[0]
    assert fault in reading.faults[0]


def test_an_event_of_a_later_version_is_kept_as_it_stands(tmp_path: Path) -> None:
    path = tmp_path / "s.1.jsonl"
    path.write_bytes(
        b'{"v":1,"seq":1,"at":"t","type":"step_started","step":1,"later":true}\n'
        b'{"v":1,"seq":2,"at":"t","type":"of_tomorrow","x":1}\n'
    )
    reading = read_transcript(path)
    assert reading.entries[0].event == StepStarted(step=1)
    assert reading.entries[1].event is None
    assert reading.entries[1].fields == {"type": "of_tomorrow", "x": 1}
    assert reading.faults == ()


def test_nothing_is_read_behind_what_a_successor_accepted(tmp_path: Path) -> None:
    path = written(tmp_path, *EVENTS)
    first = path.read_bytes().index(b"\n") + 1
    assert [entry.event for entry in read_transcript(path, accepted_bytes=first).entries] == EVENTS[:1]


def test_a_missing_file_is_a_typed_error(tmp_path: Path) -> None:
    with pytest.raises(TranscriptError, match="cannot be read"):
        read_transcript(tmp_path / "none.1.jsonl")


@settings(max_examples=50, deadline=None)
@given(st.lists(st.text(), max_size=5), st.data())
def test_a_transcript_cut_anywhere_yields_its_whole_lines(texts: list[str], data: st.DataObject) -> None:
    events = [Notice(text="".join(char for char in text if not "\ud800" <= char <= "\udfff")) for text in texts]
    lines = [json.dumps({"v": 1, "seq": n, "at": "t", **event.model_dump()}) for n, event in enumerate(events, 1)]
    content = "".join(line + "\n" for line in lines).encode()
    length = data.draw(st.integers(0, len(content)))
    path = Path(f"/proc/self/fd/{os.memfd_create('transcript')}")
    try:
        path.write_bytes(content[:length])
        reading = read_transcript(path)
    finally:
        os.close(int(path.name))
    assert [entry.event for entry in reading.entries] == events[: content[:length].count(b"\n")]
    assert reading.faults == ()
    assert reading.valid_bytes + reading.torn_bytes == length
