"""How long and how much is kept of sessions, and that nobody at work loses anything."""

import fcntl
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from coordinator.commands.kept import session_named
from coordinator.commands.showing import removal_words
from coordinator.embedded import dead_runs
from coordinator.errors import ConfigError
from worker.collecting import collect
from worker.contract import removals
from worker.contract.removals import REMOVALS, Kind, Removal, note, removals_of
from worker.settings import NodeSettings

DAY_S = 86_400.0
ALMOST_MIB = 1024 * 1024 - 16 * 1024
"""With its directory a file of this size takes less than a mebibyte on disk."""
SANDHOG = str(Path(sys.executable).with_name("sandhog"))


def settings(state_dir: Path, **changes: float) -> NodeSettings:
    return NodeSettings.model_validate({"redis_url": "", "state_dir": state_dir, **changes})


def session(state_dir: Path, name: str, age_days: float, spill_bytes: int = 10) -> Path:
    session_dir = state_dir / "sessions" / name
    for part in ("work", "base", "spill"):
        (session_dir / part).mkdir(parents=True)
        (session_dir / part / "file").write_bytes(b"x" * spill_bytes)
    (session_dir / "patch.diff").write_text("patch")
    transcript = session_dir / f"{name}.1.jsonl"
    transcript.write_text("{}\n")
    at = time.time() - age_days * DAY_S
    os.utime(transcript, (at, at))
    return session_dir


def told(found: list[Removal]) -> list[tuple[str, Kind]]:
    return [(one.session, one.kind) for one in found]


def test_each_kind_has_its_time(tmp_path: Path) -> None:
    for name, age_days in (("now", 0.1), ("day", 2), ("week", 8), ("month", 31)):
        session(tmp_path, name, age_days)
    planned = collect(settings(tmp_path), is_trial=True)
    assert (tmp_path / "sessions" / "month").is_dir()
    assert removals_of(tmp_path, "month") == []

    removed = collect(settings(tmp_path), is_trial=False)

    assert told(planned) == told(removed)
    assert told(removed) == [
        ("month", Kind.SESSION),
        ("week", Kind.COPY),
        ("day", Kind.COPY),
        ("week", Kind.SPILL),
    ]
    left = {path.name: sorted(one.name for one in path.iterdir()) for path in (tmp_path / "sessions").iterdir()}
    assert left == {
        "now": ["base", "now.1.jsonl", "patch.diff", "spill", "work"],
        "day": ["day.1.jsonl", "patch.diff", "spill"],
        "week": ["patch.diff", "week.1.jsonl"],
    }
    assert all(one.size_bytes > 0 for one in removed)
    assert [one.kind for one in removals_of(tmp_path, "week")] == [Kind.COPY, Kind.SPILL]


def test_a_copy_that_nobody_made_a_session_of_goes_within_the_hour(tmp_path: Path) -> None:
    hour_ago = time.time() - 3_700
    for name, more in (("late", ()), ("kept", ("late.1.jsonl",)), ("queued", ("record.json",)), ("fresh", ())):
        session_dir = tmp_path / "sessions" / name
        for part in ("work", "base", "spill"):
            (session_dir / part).mkdir(parents=True)
        for beside in more:
            (session_dir / beside).write_text("{}\n")
        if name != "fresh":
            os.utime(session_dir, (hour_ago, hour_ago))

    (removal,) = collect(settings(tmp_path), is_trial=False)

    assert (removal.session, removal.kind) == ("late", Kind.SESSION)
    assert "never begun" in removal.why
    assert sorted(path.name for path in (tmp_path / "sessions").iterdir()) == ["fresh", "kept", "queued"]


def test_beyond_a_size_the_oldest_goes_first(tmp_path: Path) -> None:
    for number in range(4):
        session(tmp_path, f"s{number}", age_days=0.9 - number / 10, spill_bytes=ALMOST_MIB)

    assert told(collect(settings(tmp_path, keep_spill_mib=2), is_trial=False)) == [
        ("s0", Kind.SPILL),
        ("s1", Kind.SPILL),
    ]
    assert collect(settings(tmp_path, keep_spill_mib=3), is_trial=False) == []
    assert told(collect(settings(tmp_path, keep_copies_mib=7), is_trial=False)) == [("s0", Kind.COPY)]
    assert len(collect(settings(tmp_path, keep_transcripts_mib=0), is_trial=False)) == 4
    assert list((tmp_path / "sessions").iterdir()) == []


def test_who_is_at_work_keeps_all(tmp_path: Path) -> None:
    written = session(tmp_path, "written", age_days=100)
    session(tmp_path, "boxed", age_days=100)
    records = tmp_path / "nodes" / "n1" / "boxes"
    records.mkdir(parents=True)
    (records / "b.json").write_text('{"session": "boxed"}')
    with (written / "written.1.jsonl").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)

        assert collect(settings(tmp_path, keep_transcripts_mib=0), is_trial=False) == []

    (records / "b.json").unlink()
    assert sorted(told(collect(settings(tmp_path), is_trial=False))) == [
        ("boxed", Kind.SESSION),
        ("written", Kind.SESSION),
    ]


def test_what_was_left_half_removed_is_finished(tmp_path: Path) -> None:
    trash = tmp_path / "sessions" / "old.trash" / "a" / "b"
    trash.mkdir(parents=True)

    assert collect(settings(tmp_path), is_trial=False) == []

    assert list((tmp_path / "sessions").iterdir()) == []


def test_what_was_removed_is_told(tmp_path: Path) -> None:
    session(tmp_path, "20300101-000000-00000001", age_days=40)
    collect(settings(tmp_path), is_trial=False)

    with pytest.raises(ConfigError, match=r"Session 20300101-000000-00000001 was removed at .*older than 30 days"):
        session_named(tmp_path, "20300101")
    words = removal_words(removals_of(tmp_path, "20300101-000000-00000001")[0])
    assert "session, " in words
    assert "keep_transcripts: older than 30 days" in words


def test_the_list_of_removals_stays_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(removals, "MOST_BYTES", 2_000)
    for number in range(100):
        note(tmp_path, Removal(session=f"s{number}", kind=Kind.SPILL, size_bytes=1, why="old", at="then"))

    assert (tmp_path / removals.NAME).stat().st_size < 2_200
    assert removals_of(tmp_path, "s99") != []
    assert removals_of(tmp_path, "s0") == []


def test_the_command_removes_sessions_and_what_dead_commands_left(tmp_path: Path) -> None:
    session(tmp_path, "old", age_days=40)
    run = tmp_path / "runs" / "1-dead"
    run.mkdir(parents=True)
    (run / "owner.json").write_text('{"pid": 999999999, "started": 1}')
    assert dead_runs(tmp_path / "runs") == [run]

    def gc(*flags: str) -> list[Removal]:
        environment = {**os.environ, "SANDHOG_CONFIG": "", "SANDHOG_STATE_DIR": str(tmp_path)}
        environment.pop("SANDHOG_REDIS_URL", None)
        done = subprocess.run(
            [SANDHOG, "gc", "--json", *flags], capture_output=True, text=True, check=False, env=environment
        )
        assert done.returncode == 0, done.stderr
        return REMOVALS.validate_json(done.stdout)

    planned = gc("--dry-run")
    assert run.is_dir()

    assert told(planned) == told(gc()) == [("1-dead", Kind.RUN), ("old", Kind.SESSION)]
    assert not run.exists()
    assert list((tmp_path / "sessions").iterdir()) == []
