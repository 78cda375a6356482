"""File work in real boxes."""

import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandbox.box import Box
from sandbox.errors import GuestRefused, RefusalCode
from sandbox.guest.files import Window
from sandbox.requests import CallMark, RunAnswer
from tests.sandbox.asking import Files

Run = Callable[..., RunAnswer]
MakeMark = Callable[..., CallMark]


@pytest.fixture
def files(box: Box, run: Run, mark: MakeMark) -> Files:
    run("chmod -R u+rwx . ; rm -rf ./* ./.[a-z]*")
    return Files(box, mark)


docker = pytest.mark.docker


@given(st.lists(st.sampled_from([b"a\n", b"\n", b"long line\n", b"\r\n", b"\x0c", b"x"])), st.data())
def test_a_window_is_the_lines_asked_for(pieces: list[bytes], data: st.DataObject) -> None:
    content = b"".join(pieces)
    first, limit = data.draw(st.integers(1, 12)), data.draw(st.integers(1, 12))
    max_bytes, step = data.draw(st.integers(1, 40)), data.draw(st.integers(1, 30))
    window = Window(first, limit, max_bytes)
    for start in range(0, len(content), step):
        window.add(content[start : start + step])
    lines = [line + b"\n" for line in content.split(b"\n")]
    lines[-1] = lines[-1][:-1]
    if not lines[-1]:
        lines.pop()
    wanted = lines[first - 1 : first - 1 + limit]
    fitting: list[bytes] = []
    for line in wanted:
        if sum(map(len, fitting)) + len(line) > max_bytes:
            break
        fitting.append(line)
    text, is_cut = window.text()
    assert window.total_lines == len(lines)
    if wanted and not fitting:
        assert (text, is_cut) == (wanted[0][:max_bytes], True)
    else:
        assert (text, is_cut) == (b"".join(fitting), False)


@docker
def test_an_empty_file_has_no_lines(files: Files) -> None:
    files.write("f", b"")
    answer = files.read("f")
    assert (answer.text, answer.total_lines, answer.last_line, answer.partial) == (b"", 0, 0, False)


@docker
def test_text_beyond_the_limit_ends_before_the_line_and_a_longer_line_is_cut(files: Files) -> None:
    files.write("f", b"a" * 50 + b"\n" + b"b" * 100 + b"\n")
    answer = files.read("f", max_bytes=120)
    assert (answer.text, answer.last_line, answer.partial) == (b"a" * 50 + b"\n", 1, True)
    answer = files.read("f", offset=2, max_bytes=40)
    assert (answer.text, answer.line_cut, answer.last_line, answer.partial) == (b"b" * 40, True, 2, True)


@docker
def test_a_hundred_megabytes_are_read_in_bounded_memory(files: Files, run: Run) -> None:
    run("yes 0123456789 | head -c 100000000 > big")
    answer = files.read("big", offset=9_000_000, limit=2)
    assert answer.text == b"0123456789\n" * 2
    assert answer.total_lines == 9_090_910
    assert files.refusal(lambda: files.edit("big", ("0", "1"))) is RefusalCode.TOO_LARGE
    memory = run("for p in /proc/[0-9]*; do grep -qs guest.pyc $p/cmdline && grep VmHWM $p/status; done").stdout.text()
    assert max(int(line.split()[1]) for line in memory.splitlines()) < 60_000


@docker
def test_what_cannot_be_read_is_refused_each_by_its_own_code(files: Files, run: Run) -> None:
    run(
        "mkdir d; mkfifo p; ln -s l1 l2; ln -s l2 l1; ln -s nowhere broken; printf 'a\\0b' > bin; echo x > no; "
        "chmod 000 no; printf '\\377\\376a' > utf16; echo f > f; python3 -c "
        "'import socket; socket.socket(socket.AF_UNIX).bind(\"sock\")'"
    )
    expected = {
        "missing": RefusalCode.NOT_FOUND,
        "broken": RefusalCode.NOT_FOUND,
        "d": RefusalCode.IS_DIRECTORY,
        "f/x": RefusalCode.NOT_DIRECTORY,
        "p": RefusalCode.NOT_REGULAR,
        "sock": RefusalCode.NOT_REGULAR,
        "/dev/zero": RefusalCode.NOT_REGULAR,
        "l1": RefusalCode.SYMLINK_LOOP,
        "bin": RefusalCode.BINARY_FILE,
        "utf16": RefusalCode.BINARY_FILE,
        "a\0b": RefusalCode.INVALID_PATH,
        "": RefusalCode.INVALID_PATH,
        "\u2028/" * 20_000: RefusalCode.INVALID_PATH,
        "x" * 300: RefusalCode.INVALID_PATH,
        "no": RefusalCode.ACCESS_DENIED,
    }
    got = {path: files.refusal(lambda path=path: files.read(path)) for path in expected}  # type: ignore[misc]
    assert got == expected


@docker
def test_a_write_makes_parents_and_says_whether_the_file_is_new(files: Files, run: Run) -> None:
    answer = files.write("a/b/c.txt", b"one")
    assert (answer.created, answer.bytes, answer.path) == (True, 3, "/workspace/a/b/c.txt")
    assert not files.write("a/b/c.txt", b"two").created
    assert run("cat a/b/c.txt; stat -c %a a/b/c.txt; id -un; stat -c %U a/b").stdout.text().split() == [
        "two644",
        *run("id -un; id -un").stdout.text().split(),
    ]
    assert run("ls -A a/b").stdout.head == b"c.txt\n"


@docker
def test_a_write_keeps_the_mode_and_compares_what_was_seen(files: Files, run: Run) -> None:
    first = files.write("f", b"one").version
    run("chmod 755 f")
    second = files.write("f", b"two", first)
    assert run("stat -c %a f").stdout.head == b"755\n"
    assert files.refusal(lambda: files.write("f", b"three", first)) is RefusalCode.CONFLICT
    assert files.refusal(lambda: files.write("f", b"three", must_be_new=True)) is RefusalCode.EXISTS
    assert files.read("f").text == b"two"
    run("rm f")
    assert files.refusal(lambda: files.write("f", b"three", second.version)) is RefusalCode.CONFLICT


@docker
def test_where_no_file_can_be_written_it_is_refused_and_nothing_is_left(files: Files, run: Run) -> None:
    run("mkdir d ro; echo x > ro/f; mkfifo p; echo f > f; chmod 555 ro")
    assert files.refusal(lambda: files.write("d", b"")) is RefusalCode.IS_DIRECTORY
    assert files.refusal(lambda: files.write("p", b"")) is RefusalCode.NOT_REGULAR
    assert files.refusal(lambda: files.write("f/x", b"")) is RefusalCode.NOT_DIRECTORY
    assert files.refusal(lambda: files.write("ro/f", b"")) is RefusalCode.ACCESS_DENIED
    assert files.refusal(lambda: files.write("ro/new", b"")) is RefusalCode.ACCESS_DENIED
    assert files.refusal(lambda: files.write("/spill/new", b"")) is RefusalCode.ACCESS_DENIED
    assert run("ls -A ro d; cat ro/f").stdout.head == b"d:\n\nro:\nf\nx\n"


@docker
def test_a_large_file_goes_out_and_in_again(files: Files) -> None:
    content = random.Random(1).randbytes(4_000_000).replace(b"\0", b"\n")
    files.write("f", content)
    assert files.read("f", limit=10**6, max_bytes=8 * 1024 * 1024).text == content


@docker
def test_an_edit_keeps_bytes_newlines_and_mode(files: Files, run: Run) -> None:
    run("printf 'caf\\351 = 1\\r\\nnext\\r\\nlast' > f; chmod 750 f")
    files.edit("f", ("= 1\nnext", "= 2\nnext\nmore"))
    assert run("cat f").stdout.head == b"caf\xe9 = 2\r\nnext\r\nmore\r\nlast"
    assert run("stat -c %a f").stdout.head == b"750\n"


@docker
def test_file_work_has_the_agents_rights(files: Files, box: Box) -> None:
    if box.info.uid == 0:
        pytest.skip("root may read these")
    assert files.refusal(lambda: files.read("/etc/shadow")) is RefusalCode.ACCESS_DENIED
    assert files.refusal(lambda: files.write("/etc/x", b"")) is RefusalCode.ACCESS_DENIED
    assert files.refusal(lambda: files.read("/run/sandhog/guest.sock")) is RefusalCode.ACCESS_DENIED


@docker
def test_file_names_that_are_no_text_do_no_harm(files: Files, run: Run) -> None:
    run("printf hi > $(printf 'n\\377') ; ln -s $(printf 'n\\377') link")
    assert files.read("link").path == "/workspace/n\\xff"
    assert files.refusal(lambda: files.read("\ud800")) is RefusalCode.INVALID_PATH


@docker
def test_lines_that_no_file_has_are_refused_and_the_box_lives(files: Files) -> None:
    files.write("f", b"one\n")
    for fields in ({"offset": 0}, {"offset": 2**63}, {"offset": 10**30}, {"limit": 10**30}):
        assert files.refusal(lambda fields=fields: files.read("f", **fields)) is RefusalCode.INVALID_PARAM  # type: ignore[misc]
    assert files.read("f", offset=2**31).total_lines == 1


@docker
def test_a_file_that_is_mounted_by_itself_is_not_replaced(files: Files, run: Run, box: Box) -> None:
    if box.info.uid != 0:
        pytest.skip("only root comes as far as the rename")
    before = run("cat /etc/hosts").stdout.head
    with pytest.raises(GuestRefused, match="mounted by itself"):
        files.write("/etc/hosts", b"new\n")
    assert run("cat /etc/hosts; ls -A /etc | grep -c sandhog").stdout.head == before + b"0\n"
