import pytest

from worker.versions import versions


def test_an_engine_that_is_silent_leaves_the_versions_of_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    # Refused before there is a socket: the client leaves one open that it could not connect.
    monkeypatch.setenv("DOCKER_HOST", "nothing://at-all")
    assert versions().keys() == {"sandhog", "python", "kernel"}
