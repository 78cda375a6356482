"""A node that cannot have boxes on its machine refuses to start, and says what to do."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.docker
@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("unshare") is None, reason="needs mounts of its own")
def test_a_volume_that_is_another_one_for_the_engine(redis_url: str, tmp_path: Path) -> None:
    # As in a container that has something else mounted there.
    elsewhere = 'mount -t tmpfs none "$SANDHOG_STATE_DIR" && exec "$@"'
    argv = ["unshare", "--mount", "sh", "-c", elsewhere, "sh", sys.executable, "-m", "worker", "run"]
    environment = {"PATH": os.environ["PATH"], "SANDHOG_STATE_DIR": str(tmp_path), "SANDHOG_REDIS_URL": redis_url}

    done = subprocess.run(argv, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120)

    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith(f"sandhog worker: The Docker engine does not see {tmp_path} as this worker does")
    assert "SANDHOG_STATE_DIR" in done.stderr
    assert done.stderr.count("\n") == 1
