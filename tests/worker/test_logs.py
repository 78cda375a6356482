import io
import json
import logging
from collections.abc import Iterator

import pytest

from worker.contract.logs import begin_logs

SECRET = 'pass"word-1'
log = logging.getLogger("a.part")


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def test_json_lines_have_the_fields_and_the_session_of_a_call() -> None:
    stream = io.StringIO()
    begin_logs("json", "info", [SECRET], stream)
    log.info("a call ended", extra={"call_id": "20300131-1:1:2:0:1", "took_s": 1.5, "error": "no\nend"})
    log.debug("not shown")
    (line,) = stream.getvalue().splitlines()
    told = json.loads(line)
    assert told["message"] == "a call ended"
    assert (told["level"], told["logger"], told["took_s"]) == ("info", "a.part", 1.5)
    assert (told["session_id"], told["call_id"]) == ("20300131-1", "20300131-1:1:2:0:1")
    assert told["error"] == "no\nend"


@pytest.mark.parametrize("form", ["text", "json"])
def test_no_secret_is_in_a_line_wherever_it_was_said(form: str) -> None:
    stream = io.StringIO()
    begin_logs("json" if form == "json" else "text", "info", [SECRET, "x"], stream)
    try:
        raise ValueError(f"{SECRET} in a trace, redis://user:hunter22@host")
    except ValueError:
        log.exception("failed with %s", SECRET, extra={"error": f"{SECRET} Bearer abcdefghij", "parts": [SECRET]})
    text = stream.getvalue()
    for said in (SECRET, json.dumps(SECRET)[1:-1], "hunter22", "abcdefghij"):
        assert said not in text
    assert "in a trace" in text
    assert "text" not in text, "a short value is not masked"


def test_a_text_line_stays_one_line_and_moves_no_cursor() -> None:
    stream = io.StringIO()
    begin_logs("text", "warning", (), stream)
    log.warning("said: %s", "a\n\x1b[2Jb", extra={"error": "c\r\n\x1b[1md", "session_id": "s"})
    (line,) = stream.getvalue().splitlines()
    assert "\x1b" not in line
    assert 'session_id="s"' in line
