"""Which failed starts of a box are worth another try."""

import docker.errors
import pytest
import requests

from sandbox.container import translated
from sandbox.errors import BoxLost, ControlNotEnforced, EngineUnavailable, LossReason, SandboxError
from worker.starter import is_passing


def refused(status: int) -> SandboxError:
    response = requests.Response()
    response.status_code = status
    with pytest.raises(EngineUnavailable) as caught, translated("start"):
        raise docker.errors.APIError("no", response)
    return caught.value


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (refused(500), True),
        # The container was removed by somebody.
        (refused(404), True),
        (refused(400), False),
        (BoxLost(LossReason.KILLED, "killed"), True),
        (BoxLost(LossReason.ENGINE, "the engine does not answer"), True),
        (BoxLost(LossReason.ENDED, "its first process ended"), False),
        (ControlNotEnforced("pids", "none"), False),
    ],
)
def test_trouble_of_the_engine_passes_and_a_refusal_does_not(error: SandboxError, expected: bool) -> None:
    assert is_passing(error) == expected
