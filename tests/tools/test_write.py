from collections.abc import Callable
from pathlib import Path

import pytest

from tools.base import ErrorCode, ToolFailure, ToolResult

pytestmark = pytest.mark.docker
Call = Callable[..., ToolResult]
Put = Callable[[str, str | bytes], Path]


def test_a_new_file_is_made_with_its_parents(call: Call, inside: str) -> None:
    result = call("Write", path="x/y/a.txt", content="é\nb")
    assert result.text == f"Created {inside}/x/y/a.txt: 4 bytes, 2 lines."
    assert call("Bash", command="cat x/y/a.txt").text == "é\nb"


def test_an_existing_file_is_replaced_and_keeps_its_mode(call: Call, put: Put) -> None:
    path = put("a.sh", "old")
    path.chmod(0o755)
    result = call("Write", path="a.sh", content="")
    assert result.data["created"] is False
    assert call("Bash", command="stat -c '%a %s' a.sh").text == "755 0"


@pytest.mark.parametrize(
    ("path", "code"),
    [(".", ErrorCode.IS_DIRECTORY), ("/proc/x", ErrorCode.NOT_FOUND), ("/etc/x", ErrorCode.ACCESS_DENIED)],
)
def test_where_nothing_can_be_written_there_is_an_error(call: Call, path: str, code: ErrorCode) -> None:
    with pytest.raises(ToolFailure) as caught:
        call("Write", path=path, content="x")
    assert caught.value.code is code


def test_more_than_a_frame_is_refused_before_it_is_sent(call: Call) -> None:
    with pytest.raises(ToolFailure) as caught:
        call("Write", path="a.txt", content="x" * (16 * 1024 * 1024 + 1))
    assert caught.value.code is ErrorCode.INVALID_PARAM
