from pathlib import Path

import pytest

from worker.versions import versions


def test_an_engine_that_is_silent_leaves_the_versions_of_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none")
    assert versions().keys() == {"sandhog", "python", "kernel"}
