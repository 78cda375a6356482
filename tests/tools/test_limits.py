"""What the model hears of its box's limits."""

from dataclasses import replace

import pytest

from sandbox.errors import BoxLost, LossReason
from sandbox.requests import Capture, RunAnswer
from tools.limits import limit_notes, lost_to_a_limit

FACTS = {"memory_max": str(2 << 30), "pids_max": "4096", "tmp_bytes": str(512 << 20)}
EMPTY = Capture(b"", b"", 0, 0, 0)
ANSWER = RunAnswer(
    exit_code=1, signal=None, timed_out=False, cancelled=False, oom_kills=0, stdout=EMPTY, stderr=EMPTY,
    duration_ms=1.0, cwd="/workspace", left_running=(), background_id=None, killed_leftovers=False, spill_complete=True,
)  # fmt: skip


def test_a_command_that_met_no_limit_has_no_note() -> None:
    assert limit_notes(ANSWER, FACTS) == []


def test_every_limit_is_told_with_its_size() -> None:
    met = replace(ANSWER, oom_kills=3, refused_tasks=7, full=("/tmp", "/workspace"))
    memory, tasks, tmp, workspace = limit_notes(met, FACTS)
    assert "killed 3 processes: the sandbox has 2 GiB of memory" in memory
    assert "7 times" in tasks
    assert "4096 processes and threads" in tasks
    assert tmp.startswith("[/tmp is full (512 MiB)")
    assert "/workspace has more room" in tmp
    assert workspace.startswith("[/workspace is full: ")


def test_a_guest_that_shows_no_limits_is_believed_nothing() -> None:
    met = replace(ANSWER, oom_kills=1, refused_tasks=1, full=("/tmp",))
    assert len(limit_notes(met, {})) == 3
    assert "a bounded amount" in limit_notes(met, {"memory_max": "max", "memory_total": "x kB"})[0]
    assert "512 MiB" in limit_notes(met, {"memory_total": f"{512 * 1024} kB"})[0]


@pytest.mark.parametrize(
    ("reason", "words"), [(LossReason.OOM, "it has 2 GiB"), (LossReason.DISK, "wrote 3 GiB"), (LossReason.KILLED, None)]
)
def test_a_box_lost_to_a_limit_is_told_with_it(reason: LossReason, words: str | None) -> None:
    told = lost_to_a_limit(BoxLost(reason, "/workspace: wrote 3 GiB"), lambda: FACTS)
    assert (told is None) if words is None else (told is not None and words in told)
