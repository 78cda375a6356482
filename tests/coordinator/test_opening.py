"""How a session's directory begins."""

from pathlib import Path

import pytest

from coordinator.endpoint.model import ModelSettings
from coordinator.errors import ConfigError
from coordinator.session.limits import Limits
from coordinator.session.opening import make_session_dir
from coordinator.session.request import SessionRequest
from coordinator.session.workspace_choice import Chosen
from worker.contract.orders import Policy, WorkspaceMode
from worker.contract.sources import GitSource


def test_a_request_whose_url_holds_a_password_is_kept_nowhere(tmp_path: Path) -> None:
    chosen = Chosen(Path("/nonexistent"), WorkspaceMode.COPY, "a test", Policy.BOXED, as_root=False)
    source = GitSource(url="https://bot:hunter2@git.example.org/r")
    request = SessionRequest("do it", chosen, "image", Limits(steps=9), source=source)
    with pytest.raises(ConfigError, match="name a credential of the node instead") as caught:
        make_session_dir(tmp_path / "sessions" / "s1", request, ModelSettings("m"), ())
    assert "hunter2" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []
