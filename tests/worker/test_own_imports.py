"""What a child may still import once it is nobody: also from a place that only root gets to, and nothing else there."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from worker.own_imports import is_closed

CHILD = """
import ctypes, os, sys
from worker.own_imports import hold_import_paths
closed = sys.argv[1]
sys.path.insert(0, closed + "/lib")
import package
hold_import_paths()
os.setgroups([])
os.setresgid(2_000_000_001, 2_000_000_001, 2_000_000_001)
os.setresuid(2_000_000_001, 2_000_000_001, 2_000_000_001)
ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)
import package.late, late, encodings.idna
print(package.late.X, late.X)
for path in (closed + "/secret", closed + "/lib/late.py", sys.path[0] + "/../secret"):
    try:
        open(path).close()
    except PermissionError:
        print("denied")
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_late_imports_work_and_what_is_closed_stays_closed(state_dir: Path) -> None:
    closed = state_dir / "closed"
    (closed / "lib" / "package").mkdir(parents=True)
    (closed / "lib" / "package" / "__init__.py").touch()
    (closed / "lib" / "package" / "late.py").write_text("X = 1")
    (closed / "lib" / "late.py").write_text("X = 2")
    (closed / "secret").write_text("hush")
    state_dir.chmod(0o755)
    closed.chmod(0o700)
    ran = subprocess.run(
        [sys.executable, "-c", CHILD, str(closed)],
        env={"PYTHONPATH": str(Path.cwd()), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.stdout.splitlines() == ["1 2", "denied", "denied", "denied"], ran.stderr


def test_a_directory_is_closed_by_any_above_it(state_dir: Path) -> None:
    inner = state_dir / "a" / "b"
    inner.mkdir(parents=True)
    state_dir.chmod(0o755)
    assert not is_closed(str(inner))
    (state_dir / "a").chmod(0o700)
    assert is_closed(str(inner))
