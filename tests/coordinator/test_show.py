"""What `sandhog show` and `sandhog export` make of a kept session."""

import io
import json
from pathlib import Path

import pytest

from coordinator.commands.kept import directory_of, session_named
from coordinator.commands.showing import Showing, raw_result
from coordinator.endpoint.reply import RawCall
from coordinator.errors import ConfigError
from coordinator.session.call_events import AnswerShortened, CallFinished, CallStarted
from coordinator.session.event_fields import CutInfo
from coordinator.session.events import Event
from coordinator.session.exporting import ExportFormat, export
from coordinator.session.history import validate
from coordinator.session.reading import read_session
from coordinator.session.session_events import SessionEnded, SessionStarted
from coordinator.session.step_events import (
    ContextCompacted,
    ModelReplied,
    ReplyTaken,
    StepStarted,
    ToolsShown,
    UserMessage,
)
from coordinator.session.transcript import Transcript

NAME = "20300131-120000-1a2b3c4d"
TOOLS = [{"type": "function", "function": {"name": "Bash", "parameters": {"type": "object"}}}]
STARTED = SessionStarted(
    session_id=NAME,
    prompt="mend \x1b[31mit",
    model="m",
    policy="boxed",
    workspace_mode="copy",
    workspace_reason="because",
    workspace="/p",
    image="box:1",
    max_steps=5,
    system="be good",
)


def call(step: int, index: int, answer: str, cut: CutInfo | None = None) -> list[Event]:
    finished = CallFinished(
        step=step, index=index, call_id=f"c{step}{index}", tool="Bash", status="success", answer=answer, cut=cut
    )
    return [CallStarted(step=step, index=index, call_id=f"c{step}{index}", tool="Bash", summary="seq"), finished]


def reply(step: int, text: str, *calls: str) -> list[Event]:
    raw = tuple(RawCall(at, f"c{step}{at}", "Bash", arguments) for at, arguments in enumerate(calls))
    replied = ModelReplied(step=step, text=text, calls=raw, finish_reason="tool_calls" if raw else "stop")
    ids = tuple(one.id or "" for one in raw)
    return [StepStarted(step=step), replied, ReplyTaken(call_ids=ids, text=None if raw else text, has_calls=bool(raw))]


def answer(text: str) -> str:
    return json.dumps({"status": "success", "text": text})


def keep(state_dir: Path, *events: Event) -> Path:
    session_dir = state_dir / "sessions" / NAME
    with Transcript.create(session_dir, NAME) as transcript:
        for event in events:
            transcript(event)
    return session_dir


@pytest.fixture
def session_dir(tmp_path: Path) -> Path:
    cut = CutInfo(total_bytes=3000, shown_bytes=100, path="/spill/1-1-1-1.txt")
    kept = keep(
        tmp_path,
        STARTED,
        ToolsShown(tools=TOOLS),
        *reply(1, "I look.", '{"command":"ls"}', '{"command":"seq"}'),
        *call(1, 0, answer("a\x07b")),
        *call(1, 1, answer("1\n" * 30), cut),
        *reply(2, "", '{"command":"```"}'),
        *call(2, 0, answer("all of it, and much")),
        AnswerShortened(
            step=2, index=0, cut=CutInfo(total_bytes=90, shown_bytes=3, path="/spill/x.txt"), answer=answer("all")
        ),
        ContextCompacted(step=3, tokens_before=9, tokens_after=1, counted_by="bytes", removed=4, summary="did things"),
        UserMessage(text="hurry", by="user"),
        *reply(3, "Done."),
        SessionEnded(status="completed", stop_reason="done", text="Done.", steps=3, calls=3),
    )
    (kept / "spill").mkdir()
    (kept / "spill" / "1-1-1-1.txt").write_text("1\n" * 3000)
    return kept


def shown(session_dir: Path, step: int | None = None) -> str:
    out = io.StringIO()
    Showing(out, session_dir, only_step=step).print(read_session(session_dir))
    return out.getvalue()


def test_a_session_is_shown_with_its_answers_shortened(session_dir: Path) -> None:
    text = shown(session_dir)
    for words in ("mend ␛[31mit", "I look.", "a␇b", "22 more lines: --step 1", "--raw 1.1", "› hurry", "Done."):
        assert words in text, words
    assert "completed · 3 steps · 3 calls" in text
    assert "The private copy was removed." in text
    assert "\x1b" not in text


def test_one_step_is_shown_whole(session_dir: Path) -> None:
    text = shown(session_dir, 1)
    assert text.count("      1\n") == 30
    assert "hurry" not in text


def test_what_was_removed_is_said(session_dir: Path) -> None:
    (session_dir / "spill" / "1-1-1-1.txt").unlink()
    assert "were removed meanwhile" in shown(session_dir)
    with pytest.raises(ConfigError, match="removed meanwhile"):
        raw_result(read_session(session_dir), session_dir, 1, 1)


def test_a_raw_result_is_the_one_before_it_was_cut(session_dir: Path) -> None:
    reading = read_session(session_dir)
    assert raw_result(reading, session_dir, 1, 1) == "1\n" * 3000
    assert raw_result(reading, session_dir, 1, 0) == "a\x07b"
    assert raw_result(reading, session_dir, 2, 0) == "all of it, and much"
    with pytest.raises(ConfigError, match=r"no answered call 9\.0"):
        raw_result(reading, session_dir, 9, 0)


@pytest.mark.parametrize("path", ["/spill/../../secret", "/etc/passwd"])
def test_no_transcript_leads_out_of_the_spill_directory(tmp_path: Path, path: str) -> None:
    cut = CutInfo(total_bytes=9, shown_bytes=1, path=path)
    kept = keep(tmp_path, STARTED, *reply(1, "", "{}"), *call(1, 0, answer("x"), cut))
    with pytest.raises(ConfigError, match="no file of the session's spill"):
        raw_result(read_session(kept), kept, 1, 0)


def test_an_export_is_a_list_that_a_strict_endpoint_takes(session_dir: Path) -> None:
    reading = read_session(session_dir)
    chat = json.loads(export(reading, ExportFormat.CHAT))
    validate(chat["messages"])
    assert chat["tools"] == TOOLS
    assert [message["role"] for message in chat["messages"]][:2] == ["system", "user"]
    assert [message["content"] for message in chat["messages"]][-3:] == [answer("all"), "hurry", "Done."]
    (line,) = export(reading, ExportFormat.OPENAI_JSONL).splitlines()
    assert json.loads(line)["messages"] == chat["messages"]
    as_sent = json.loads(export(reading, ExportFormat.CHAT, as_sent=True))["messages"]
    validate(as_sent)
    assert "did things" in as_sent[1]["content"]
    assert len(as_sent) < len(chat["messages"])


def test_fences_in_a_result_close_nothing(session_dir: Path) -> None:
    text = export(read_session(session_dir), ExportFormat.MARKDOWN)
    assert '````json\n{"command":"```"}\n````' in text


def test_an_unfinished_step_is_exported_as_one(tmp_path: Path) -> None:
    kept = keep(tmp_path, STARTED, *reply(1, "", "{}", "{}"), *call(1, 1, answer("x")))
    messages = json.loads(export(read_session(kept), ExportFormat.CHAT))["messages"]
    validate(messages)
    assert "before this call had an answer" in messages[-2]["content"]


def test_a_session_is_found_by_the_beginning_of_its_id(tmp_path: Path) -> None:
    names = ["20300131-120000-1a2b3c4d", "20300131-120000-2a2b3c4d", "20300201-120000-1a2b3c4d"]
    for name in names:
        (tmp_path / "sessions" / name).mkdir(parents=True)
    (tmp_path / "sessions" / "other").mkdir()
    assert session_named(tmp_path, "20300131-120000-1") == names[0]
    assert session_named(tmp_path, "last") == names[2]
    with pytest.raises(ConfigError, match="beginning of 2 sessions"):
        session_named(tmp_path, "20300131")
    for name in ("2031", "", "../sessions", "other"):
        with pytest.raises(ConfigError, match="no session"):
            session_named(tmp_path, name)
    child = tmp_path / "sessions" / names[0] / "children" / "1-3-0"
    child.mkdir(parents=True)
    assert directory_of(tmp_path, f"{names[0]}.1-3-0") == child
    for name in ("1-3-1", "..", "1-3-0/.."):
        with pytest.raises(ConfigError, match="no sub-agent"):
            directory_of(tmp_path, f"{names[0]}.{name}")
