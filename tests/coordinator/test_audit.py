"""The audit log: lines, modes, and what becomes of a large one."""

import json
import os
import threading
from pathlib import Path

import pytest

from coordinator.audit import AuditLog
from coordinator.errors import TranscriptError


def test_each_action_is_one_line_that_only_its_owner_can_read(tmp_path: Path) -> None:
    audit = AuditLog(tmp_path)

    audit.write("cancel", actor="team-a", address="10.0.0.7", via="page", session="s", detail="two\nlines \ud800")
    audit.write("login_refused", actor="", address="10.0.0.8", via="page")

    first, second = (json.loads(line) for line in audit.path.read_text().splitlines())
    assert (first["actor"], first["action"], first["session"]) == ("team-a", "cancel", "s")
    assert first["detail"].startswith("two\nlines")
    assert second["action"] == "login_refused"
    assert audit.path.stat().st_mode & 0o777 == 0o600


def test_a_large_log_is_put_aside_and_nothing_is_lost(tmp_path: Path) -> None:
    def act(number: int) -> None:
        for turn in range(20):
            # Each as a process of its own would.
            AuditLog(tmp_path, max_bytes=2_000).write(
                "allow", actor=f"a{number}", address="", via="api", detail=str(turn)
            )

    threads = [threading.Thread(target=act, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    files = [path for path in tmp_path.iterdir() if path.name.startswith("audit.jsonl")]
    lines = [json.loads(line) for path in files for line in path.read_text().splitlines()]
    assert len(files) > 2
    assert {(line["actor"], line["detail"]) for line in lines} == {
        (f"a{n}", str(t)) for n in range(4) for t in range(20)
    }
    assert all(path.stat().st_size <= 2_000 for path in files)


def test_an_action_that_cannot_be_kept_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "audit.jsonl").mkdir()

    with pytest.raises(TranscriptError, match="cannot be written"):
        AuditLog(tmp_path).write("cancel", actor="a", address="", via="api")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act for others")
def test_what_root_begins_the_volumes_owner_can_go_on_with(tmp_path: Path) -> None:
    os.chown(tmp_path, 10_001, 10_001)

    AuditLog(tmp_path).write("cancel", actor="root@host", address="", via="terminal")

    for name in ("audit.jsonl", "audit.lock"):
        status = (tmp_path / name).stat()
        assert (status.st_uid, status.st_gid, status.st_mode & 0o777 & 0o600) == (10_001, 10_001, 0o600), name
