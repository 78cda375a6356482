"""File work on every engine."""

import codecs
import hashlib
import threading
from dataclasses import replace

import pytest

from sandbox.box import Box
from sandbox.errors import RefusalCode
from tests.sandbox.asking import Files, Run


def test_lines_are_given_with_their_numbers_and_the_files_version(files: Files, here: str) -> None:
    content = b"".join(b"line %d\n" % n for n in range(1, 101))
    written = files.write("f", content)
    answer = files.read("f", offset=10, limit=5)
    assert answer.path == f"{here}/f"
    assert answer.text == b"".join(b"line %d\n" % n for n in range(10, 15))
    assert (answer.first_line, answer.last_line, answer.total_lines) == (10, 14, 100)
    assert answer.partial
    assert answer.version == written.version
    assert answer.version.sha256 == hashlib.sha256(content).hexdigest()
    assert not files.read("f", offset=96).partial
    beyond = files.read("f", offset=200)
    assert (beyond.text, beyond.first_line, beyond.last_line, beyond.partial) == (b"", 200, 199, False)


def test_only_lf_ends_a_line(files: Files) -> None:
    files.write("f", "a\x0cb\u2028c\rd\n\ne".encode())
    answer = files.read("f", offset=1, limit=1)
    assert answer.text.decode() == "a\x0cb\u2028c\rd\n"
    assert answer.total_lines == 3


def test_one_file_has_one_canonical_path(files: Files, run: Run, here: str) -> None:
    run("mkdir x; echo hi > a.txt; ln -s a.txt link; ln -s . here")
    paths = {files.read(path).path for path in ("a.txt", "./a.txt", "x/../a.txt", "link", "here/link", f"{here}/a.txt")}
    assert paths == {f"{here}/a.txt"}


def test_stat_tells_the_kind(files: Files, run: Run, box: Box, here: str) -> None:
    run("mkdir d; mkfifo p; echo hi > f")
    kinds = {path: box.stat("s", path).kind for path in ("d", "p", "f", "/dev/null", "nothing")}
    assert kinds == {"d": "directory", "p": "fifo", "f": "file", "/dev/null": "device", "nothing": "missing"}
    answer = box.stat("s", "f")
    assert answer.path == f"{here}/f"
    assert answer.version == replace(files.read("f").version, sha256="")


def test_relative_paths_follow_the_sessions_cwd(files: Files, run: Run) -> None:
    run("mkdir -p sub && echo inner > sub/f && cd sub")
    assert files.read("f").text == b"inner\n"


def test_a_write_through_a_link_writes_its_target(files: Files, run: Run, here: str) -> None:
    run("mkdir d; ln -s d/target link")
    assert files.write("link", b"hi").path == f"{here}/d/target"
    assert run("readlink link; cat d/target").stdout.head == b"d/target\nhi"


def test_an_edit_answers_with_a_diff_and_the_new_version(files: Files, run: Run) -> None:
    files.write("f", b"one\ntwo\nthree\n")
    answer = files.edit("f", ("two", "2"))
    assert answer.diff == "@@ -1,3 +1,3 @@\n one\n-two\n+2\n three\n"
    assert answer.replacements == 1
    assert answer.version == files.read("f").version
    again = files.edit("f", ("three", "3"), expected=answer.version)
    assert files.read("f").version == again.version
    assert files.read("f").text == b"one\n2\n3\n"


def test_one_edit_that_fails_fails_all(files: Files) -> None:
    files.write("f", b"aaa b")
    assert files.refusal(lambda: files.edit("f", ("b", "c"), ("aa", "x"))) is RefusalCode.NOT_UNIQUE
    assert files.refusal(lambda: files.edit("f", ("b", "c"), ("zz", "x"))) is RefusalCode.NO_MATCH
    assert files.read("f").text == b"aaa b"


def test_a_change_with_the_same_size_and_time_is_a_conflict(files: Files, run: Run) -> None:
    files.write("f", b"one\n")
    seen = files.read("f").version
    run("touch -r f stamp; printf 'two\\n' > f; touch -r stamp f")
    assert files.refusal(lambda: files.edit("f", ("t", "x"), expected=seen)) is RefusalCode.CONFLICT
    assert files.read("f").text == b"two\n"


def test_of_many_edits_at_once_each_is_made_or_refused(files: Files) -> None:
    files.write("f", b"".join(b"<%d>\n" % n for n in range(20)))
    made: list[int] = []

    def edit(number: int) -> None:
        files.edit("f", (f"<{number}>", f"[{number}]"))
        made.append(number)

    threads = [threading.Thread(target=edit, args=(number,)) for number in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(made) == list(range(20))
    assert files.read("f").text == b"".join(b"[%d]\n" % n for n in range(20))


def test_utf16_is_shown_as_text_and_stays_what_it_is(files: Files) -> None:
    for encoding, mark in (("utf-16-le", codecs.BOM_UTF16_LE), ("utf-16-be", codecs.BOM_UTF16_BE)):
        files.write("f", mark + "eins\r\nzw\u00f6lf \U0001f600\r\n".encode(encoding))
        answer = files.read("f")
        assert (answer.text.decode(), answer.total_lines) == ("eins\r\nzw\u00f6lf \U0001f600\r\n", 2)
        assert answer.encoding == encoding
        files.edit("f", ("zw\u00f6lf", "drei\n\u20ac"), expected=answer.version)
        after = "eins\r\ndrei\r\n\u20ac \U0001f600\r\n".encode(encoding)
        assert files.read("f").version.sha256 == hashlib.sha256(mark + after).hexdigest()


def test_a_utf8_mark_stays_before_the_first_line(files: Files, run: Run) -> None:
    files.write("f", b"\xef\xbb\xbfone\n")
    assert files.read("f").encoding == "utf-8-sig"
    assert files.edit("f", ("one", "two")).diff == "@@ -1,1 +1,1 @@\n-one\n+two\n"
    assert run("cat f").stdout.head == b"\xef\xbb\xbftwo\n"


def test_of_a_file_with_several_names_one_gets_the_new_text_and_the_others_are_told(files: Files, run: Run) -> None:
    run("echo old > f; ln f g; ln f h")
    assert files.edit("f", ("old", "new")).other_names == 2
    assert run("cat f g h").stdout.head == b"new\nold\nold\n"
    assert files.write("g", b"newer\n").other_names == 1
    assert files.edit("h", ("old", "newest")).other_names == 0
    assert run("cat f g h; ls -A").stdout.head == b"new\nnewer\nnewest\nf\ng\nh\n"


def test_a_file_that_may_not_be_written_stays_though_its_directory_may(files: Files, run: Run) -> None:
    if run("id -u").stdout.head == b"0\n" and run("echo x > r; chmod 444 r; echo y >> r").exit_code == 0:
        pytest.skip("this root may write anything")
    run("echo old > f; chmod 444 f")
    assert files.refusal(lambda: files.edit("f", ("old", "new"))) is RefusalCode.ACCESS_DENIED
    assert files.refusal(lambda: files.write("f", b"new\n")) is RefusalCode.ACCESS_DENIED
    assert run("cat f; ls -A | grep -c tmp").stdout.head == b"old\n0\n"


def test_a_program_that_runs_can_be_replaced(files: Files, run: Run) -> None:
    run("cp $(command -v sleep) prog", timeout_ms=30_000)
    run("./prog 60", background=True)
    assert not files.write("prog", b"new\n").created
    assert run("cat prog").stdout.head == b"new\n"


def test_a_draft_that_a_killed_box_left_is_not_in_the_way(files: Files, run: Run) -> None:
    run("echo old > f; for n in 1 2 3; do for p in $(seq 1 40); do echo > .sandhog-$p-$n.tmp; done; done")
    files.edit("f", ("old", "new"))
    assert run("cat f").stdout.head == b"new\n"
