"""Background commands in real boxes: started, read by offset, ended, and what foreground commands leave running."""

from collections.abc import Callable

import pytest

from sandbox.box import Box
from sandbox.engine import DockerEngine
from sandbox.errors import RefusalCode
from sandbox.guest.background import MAX_KNOWN, RING_BYTES
from sandbox.requests import CallMark, RunAnswer
from sandbox.spec import BoxSpec, Limits
from tests.sandbox.asking import TICK, code_of, end_of, output_of, printed, started

pytestmark = pytest.mark.docker

Run = Callable[..., RunAnswer]
MIB = 1024 * 1024
FILL_PROCESS_TABLE = """exec python3 -c '
import subprocess, time
while True:
    try:
        subprocess.Popen(["sleep", "1000"])
    except OSError:
        time.sleep(0.01)
'"""


def test_what_ends_at_once_is_told_with_its_answer(run: Run, box: Box) -> None:
    # A busy machine may take longer than the guest waits for it; not every time.
    for _ in range(300):
        answer = run("echo quick; exit 4", background=True)
        assert answer.exit_code in {4, None}
        if answer.exit_code == 4:
            break
        end_of(box, str(answer.background_id), run)
    assert answer.exit_code == 4
    assert output_of(box, str(answer.background_id)).data == b"quick\n"


def test_what_cannot_start_is_refused(run: Run) -> None:
    assert code_of(lambda: run("true", background=True, cwd="/no/such/place")) is RefusalCode.NOT_FOUND


def test_the_same_call_starts_it_once(run: Run, box: Box, mark: Callable[..., CallMark]) -> None:
    given = mark()
    first = run("rm -f n up; echo x >> n; touch up; sleep 100", background=True, mark=given)
    again = run("rm -f n up; echo x >> n; touch up; sleep 100", background=True, mark=given)
    assert first.background_id == again.background_id
    run(TICK.format("up"))
    assert run("cat n").stdout.head == b"x\n"
    box.kill_background("s", str(first.background_id))


def test_the_cwd_of_the_session_is_its_own(run: Run, box: Box) -> None:
    run("mkdir -p sub")
    name = started(run, "cd sub; pwd")
    printed(box, name, run, b"/workspace/sub\n")
    assert run("pwd").stdout.head == b"/workspace\n"


def test_kill_lets_a_command_clean_up(run: Run, box: Box) -> None:
    name = started(run, "trap 'echo bye; exit 0' TERM; echo up; while :; do sleep 0.01; done")
    printed(box, name, run, b"up\n")
    state = box.kill_background("s", name)
    assert state.exit_code == 0
    assert output_of(box, name).data.endswith(b"bye\n")


def test_what_a_foreground_command_left_is_a_background_command(run: Run, box: Box) -> None:
    answer = run(f"rm -f go; ({TICK.format('go')}; echo later; echo err >&2; head -c 300000 /dev/zero) & echo now")
    assert (answer.stdout.head, answer.exit_code) == (b"now\n", 0)
    name = str(answer.background_id)
    assert output_of(box, name).state.is_running
    run("touch go")
    state = end_of(box, name, run)
    assert (state.exit_code, state.total_bytes) == (0, 300_010)
    assert output_of(box, name).data.replace(b"\0", b"") == b"later\nerr\n"


def test_an_unknown_name_and_another_sessions_are_refused(run: Run, box: Box) -> None:
    name = started(run, "sleep 100", session="theirs")
    for ask in (
        lambda: output_of(box, "bg0"),
        lambda: output_of(box, name),
        lambda: box.kill_background("s", name),
    ):
        assert code_of(ask) is RefusalCode.NOT_FOUND
    assert [one.background_id for one in box.backgrounds("theirs")] == [name]
    assert name in [one.background_id for one in box.backgrounds(None)]
    assert name not in [one.background_id for one in box.backgrounds("s")]
    assert box.backgrounds("theirs")[0].command == "sleep 100"
    box.kill_background("theirs", name)


def test_of_much_output_the_last_16_mib_are_kept_and_the_guest_stays_small(
    fresh_box: Callable[..., Box], shell: Callable[[Box], Run]
) -> None:
    box = fresh_box()
    count = 40 * MIB
    run = shell(box)
    name = started(run, f"seq -w 99999999 | head -c {count}")
    state = end_of(box, name, run)
    assert (state.total_bytes, state.first_byte) == (count, count - RING_BYTES)
    whole = b"".join(b"%08d\n" % n for n in range(1, count // 9 + 2))[:count]
    piece = output_of(box, name, 0)
    assert piece.start == count - RING_BYTES
    assert piece.data == whole[piece.start : piece.start + MIB]
    assert output_of(box, name, count - 9).data == whole[-9:]
    memory = run("for p in /proc/[0-9]*; do grep -q guest.pyc $p/cmdline && grep VmRSS $p/status; done").stdout.text()
    assert max(int(line.split()[1]) for line in memory.splitlines()) < 25_000


def test_an_image_without_places_for_temporary_files_will_do(
    fresh_box: Callable[..., Box], shell: Callable[[Box], Run]
) -> None:
    box = fresh_box(0)
    run = shell(box)
    assert run("rm -rf /var/tmp /tmp; ls -d /var/tmp /tmp").exit_code == 2
    printed(box, started(run, "echo kept"), run, b"kept\n")


def test_as_many_as_may_be_and_no_more(fresh_box: Callable[..., Box], shell: Callable[[Box], Run]) -> None:
    box = fresh_box()
    run = shell(box)
    for _ in range(MAX_KNOWN):
        run("sleep 100 &")
    assert code_of(lambda: run("sleep 100", background=True)) is RefusalCode.LIMIT
    one_more = run("(sleep 100; echo) & true")
    assert one_more.background_id is not None
    names = [one.background_id for one in box.backgrounds("s")]
    assert len(names) == MAX_KNOWN + 1
    box.kill_background("s", names[0])
    box.kill_background("s", names[1])
    assert started(run, "sleep 100") == f"bg{MAX_KNOWN + 2}"
    assert names[0] not in [one.background_id for one in box.backgrounds("s")]


def test_a_restarted_worker_finds_them(
    make_engine: Callable[..., DockerEngine], make_spec: Callable[..., BoxSpec], shell: Callable[[Box], Run]
) -> None:
    first = make_engine("adopting")
    box = first.start(make_spec(), "s", 1)
    name = started(shell(box), "echo kept; sleep 100")
    printed(box, name, shell(box), b"kept\n")
    first.close()
    [(_, adopted)] = make_engine("adopting", first._settings.records_dir).adopt()
    assert output_of(adopted, name).data == b"kept\n"
    assert adopted.kill_background("s", name).was_killed
    adopted.close()


def test_room_for_processes_is_made_at_their_cost(
    fresh_box: Callable[..., Box], shell: Callable[[Box], Run], until: Callable[..., None]
) -> None:
    box = fresh_box(limits=Limits(pids=60))
    run = shell(box)
    name = started(run, FILL_PROCESS_TABLE)
    until(lambda: run("echo next").killed_leftovers, "the table was full once")
    assert end_of(box, name, run).was_killed
