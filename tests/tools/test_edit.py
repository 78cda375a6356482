from collections.abc import Callable
from pathlib import Path

import pytest

from tools.base import ErrorCode, ToolFailure, ToolResult

pytestmark = pytest.mark.docker
Call = Callable[..., ToolResult]
Put = Callable[[str, str | bytes], Path]


def failure(call: Call, **arguments: object) -> ToolFailure:
    with pytest.raises(ToolFailure) as caught:
        call("Edit", path="a.txt", **arguments)
    return caught.value


def test_a_replacement_answers_with_its_diff(call: Call, put: Put, inside: str) -> None:
    path = put("a.txt", "one\ntwo\nthree\n")
    result = call("Edit", path="a.txt", old_string="two", new_string="2")
    assert path.read_text() == "one\n2\nthree\n"
    assert result.text == f"Edited {inside}/a.txt: 1 replacement.\n@@ -1,3 +1,3 @@\n one\n-two\n+2\n three\n"
    assert result.data == {"path": f"{inside}/a.txt", "replacements": 1}


def test_several_edits_are_made_on_the_original_text(call: Call, put: Put) -> None:
    path = put("a.txt", "a b\n")
    edits = [{"old_string": "a", "new_string": "b"}, {"old_string": "b", "new_string": "a"}]
    assert call("Edit", path="a.txt", edits=edits).data["replacements"] == 2
    assert path.read_text() == "b a\n"


def test_one_edit_that_fails_leaves_the_file_as_it_was(call: Call, put: Put) -> None:
    path = put("a.txt", "a b\n")
    edits = [{"old_string": "a", "new_string": "x"}, {"old_string": "nope", "new_string": "y"}]
    assert "edit 2" in failure(call, edits=edits).message
    assert path.read_text() == "a b\n"


def test_an_ambiguous_text_is_refused_with_the_count(call: Call, put: Put) -> None:
    put("a.txt", "aaa\n")
    refused = failure(call, old_string="aa", new_string="b")
    assert refused.code is ErrorCode.INVALID_PARAM
    assert "2 times" in refused.message


def test_a_text_with_lf_matches_a_crlf_file_which_stays_crlf(call: Call, put: Put) -> None:
    path = put("a.txt", b"one\r\ntwo\r\n")
    call("Edit", path="a.txt", old_string="one\ntwo", new_string="1\n2\n3")
    assert path.read_bytes() == b"1\r\n2\r\n3\r\n"


def test_bytes_that_are_not_utf8_stay_as_they_are(call: Call, put: Put) -> None:
    path = put("a.txt", b"caf\xe9 one\n")
    call("Edit", path="a.txt", old_string="one", new_string="two")
    assert path.read_bytes() == b"caf\xe9 two\n"


def test_mode_is_kept_and_a_missing_file_has_its_error(call: Call, put: Put) -> None:
    put("a.txt", "x\n").chmod(0o755)
    call("Edit", path="a.txt", old_string="x", new_string="")
    assert call("Bash", command="stat -c %a a.txt").text == "755"
    call("Bash", command="rm a.txt")
    assert failure(call, old_string="x", new_string="y").code is ErrorCode.NOT_FOUND


def test_a_text_that_is_not_there_is_told_what_is_near(call: Call, put: Put) -> None:
    put("a.txt", "def one():\n    return 1\n")
    refused = failure(call, old_string="def one():\n    return 2", new_string="x")
    assert refused.code is ErrorCode.INVALID_PARAM
    assert "line 2 is `    return 1`, not `    return 2`. Nothing was changed." in refused.message


def test_utf16_stays_utf16(call: Call, put: Put) -> None:
    path = put("a.txt", "\ufeffone\r\ntwo\r\n".encode("utf-16-le"))
    call("Edit", path="a.txt", old_string="two", new_string="zwölf\nmore")
    assert path.read_bytes() == "\ufeffone\r\nzwölf\r\nmore\r\n".encode("utf-16-le")


def test_letters_do_not_get_into_a_file_of_another_encoding(call: Call, put: Put) -> None:
    path = put("a.txt", b"caf\xe9 one\n")
    refused = failure(call, old_string="one", new_string="é")
    assert "not UTF-8" in refused.message
    assert path.read_bytes() == b"caf\xe9 one\n"


def test_of_a_hard_link_it_is_said_that_the_other_name_keeps_the_old_text(call: Call, put: Put) -> None:
    path = put("a.txt", "one\n")
    path.with_name("b.txt").hardlink_to(path)
    result = call("Edit", path="a.txt", old_string="one", new_string="two")
    assert result.text.endswith("\n[the file had one more name (hard links): what they name keeps the old text]")
    assert (path.read_text(), path.with_name("b.txt").read_text()) == ("two\n", "one\n")


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("missing", ErrorCode.NOT_FOUND),
        ("broken", ErrorCode.NOT_FOUND),
        (".", ErrorCode.IS_DIRECTORY),
        ("a.bin", ErrorCode.BINARY_FILE),
        ("fifo", ErrorCode.NOT_REGULAR_FILE),
        ("/dev/null", ErrorCode.NOT_REGULAR_FILE),
        ("loop", ErrorCode.INVALID_PARAM),
        ("closed", ErrorCode.ACCESS_DENIED),
        ("fixed", ErrorCode.ACCESS_DENIED),
        ("large", ErrorCode.LIMIT_REACHED),
        ("empty", ErrorCode.INVALID_PARAM),
        ("a\0b", ErrorCode.INVALID_PARAM),
    ],
)
def test_what_cannot_be_edited_has_its_own_error(call: Call, put: Put, path: str, code: ErrorCode) -> None:
    put("a.bin", b"\0\1")
    call(
        "Bash",
        command="mkfifo fifo; ln -s loop loop; ln -s nowhere broken; echo x > closed; chmod 0 closed; touch empty; "
        "echo x > fixed; chmod 444 fixed; truncate -s 100M large",
    )
    with pytest.raises(ToolFailure) as caught:
        call("Edit", path=path, old_string="x", new_string="y")
    assert caught.value.code is code
    assert call("Bash", command="cat fixed; ls -A | grep -c sandhog").text == "x\n0\n[exit code 1]"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b"one\ntwo", b"one\n2"),
        (b"one\r\ntwo\nthree\r\n", b"one\r\n2\nthree\r\n"),
        (b"\xef\xbb\xbftwo\r\n", b"\xef\xbb\xbf2\r\n"),
        (b"a\x0cb two \xe2\x80\xa8c", b"a\x0cb 2 \xe2\x80\xa8c"),
    ],
)
def test_all_that_is_not_edited_stays_byte_for_byte(call: Call, put: Put, before: bytes, after: bytes) -> None:
    path = put("a.txt", before)
    call("Edit", path="a.txt", old_string="two", new_string="2")
    assert path.read_bytes() == after
