"""The optimistic lock: what a session has seen, against a plain model, and who may replace a file, on a real Redis."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import pytest
import redis
from hypothesis import given, settings
from hypothesis import strategies as st

from sandbox.requests import ReadAnswer, StatAnswer, Version
from tests.orders import box_order, call_order
from tools.base import ErrorCode, ToolFailure, ToolResult
from worker.contract import keys, metadata
from worker.contract.metadata import FileSeen, Lines, SeenVersion
from worker.contract.orders import BoxOrder, CallKey, CallOrder, WorkspaceMode
from worker.gates.lock import CallFiles, ReadMetadata, place_of

LINES = 30
PATH = "/workspace/a.txt"
OLD = Version(dev=1, ino=2, size=3, mtime_ns=1_800_000_000_123_456_789, ctime_ns=5, sha256="a" * 64)
NEW = Version(dev=1, ino=2, size=3, mtime_ns=1_800_000_000_123_456_789, ctime_ns=5, sha256="b" * 64)

ranges = st.tuples(st.integers(1, LINES), st.integers(0, LINES)).map(lambda one: (one[0], min(LINES, sum(one))))


def seen_version(version: Version) -> SeenVersion:
    return SeenVersion(**version.__dict__)


def key(step: int = 1, index: int = 0, session: str = "s1") -> CallKey:
    return CallKey(session=session, generation=1, step=step, index=index)


def numbers(lines: tuple[Lines, ...] | list[Lines]) -> set[int]:
    return {number for first, last in lines for number in range(first, last + 1)}


class TestCoverage:
    @settings(deadline=None)
    @given(st.lists(st.tuples(st.integers(1, 4), st.lists(ranges, max_size=3)), max_size=12))
    def test_what_is_missing_is_what_no_call_showed(self, calls: list[tuple[int, list[Lines]]]) -> None:
        record, shown = metadata.shown(None, seen_version(OLD), key(), [], LINES), set[int]()
        for index, (step, lines) in enumerate(sorted(calls, key=lambda call: call[0])):
            record = metadata.shown(record, seen_version(OLD), key(step, index), lines, LINES)
            shown |= numbers(lines)
            assert numbers(record.missing()) == set(range(1, LINES + 1)) - shown
        assert metadata.decode(f"12 {metadata.encode(record)}") == record

    @settings(deadline=None)
    @given(st.lists(ranges, min_size=1, max_size=4), ranges, st.lists(ranges, max_size=4))
    def test_a_cut_takes_back_only_what_its_own_call_showed(
        self, own: list[Lines], other: Lines, left: list[Lines]
    ) -> None:
        record = metadata.shown(None, seen_version(OLD), key(1, 0), own, LINES)
        record = metadata.shown(record, seen_version(OLD), key(1, 1), [other], LINES)
        record = metadata.narrowed(record, key(1, 0), left) or record
        expected = (numbers(own) & numbers(left)) | numbers([other])
        assert numbers(record.missing()) == set(range(1, LINES + 1)) - expected

    @settings(deadline=None)
    @given(st.lists(ranges))
    def test_joined_ranges_are_apart_and_in_order(self, lines: list[Lines]) -> None:
        joined = metadata.joined(lines)
        assert numbers(joined) == numbers(lines)
        assert all(before[1] + 1 < after[0] for before, after in pairwise(joined))

    def test_another_version_starts_over(self) -> None:
        record = metadata.shown(None, seen_version(OLD), key(), [(1, LINES)], LINES)
        assert record.missing() == ()
        record = metadata.shown(record, seen_version(NEW), key(2), [(1, 1)], LINES)
        assert record.missing() == ((2, LINES),)

    def test_an_empty_file_is_seen_by_any_read(self) -> None:
        assert metadata.shown(None, seen_version(OLD), key(), [(1, 0)], 0).missing() == ()

    def test_what_the_session_made_is_known_to_it_and_no_cut_takes_it_back(self) -> None:
        record = metadata.made(seen_version(OLD))
        assert record.missing() == ()
        assert metadata.narrowed(record, key(), []) is None

    def test_it_is_bounded(self) -> None:
        record = None
        for number in range(1, 4 * metadata.MAX_RANGES, 2):
            record = metadata.shown(record, seen_version(OLD), key(number), [(number, number)], 10_000)
        assert record is not None
        assert len(record.ranges) <= metadata.MAX_RANGES
        assert len(metadata.encode(record)) < 2_000


@pytest.fixture
def seen(redis_client: redis.Redis) -> ReadMetadata:
    return ReadMetadata(redis_client, wait_s=0.1)


def box(session: str = "s1", workspace: str = "/project", mode: WorkspaceMode = WorkspaceMode.BIND) -> BoxOrder:
    return box_order(session, workspace=workspace, workspace_mode=mode)


def files(seen: ReadMetadata, call: CallKey | None = None, where: BoxOrder | None = None) -> CallFiles:
    return CallFiles(seen, order(call or key(), where))


def order(call: CallKey, where: BoxOrder | None = None) -> CallOrder:
    return call_order("Edit", key=call, box=where or box(call.session))


def read(version: Version = OLD, first: int = 1, last: int = LINES, total: int = LINES) -> ReadAnswer:
    return ReadAnswer(PATH, version, b"", first, last, total, partial=False, line_cut=False)


def found(kind: str = "file") -> StatAnswer:
    return StatAnswer(PATH, kind, 3, None if kind == "missing" else OLD)


def refusal(own: CallFiles, *, whole: bool, kind: str = "file") -> ToolFailure:
    with pytest.raises(ToolFailure) as caught, own.changing(found(kind), whole=whole, join=False):
        pytest.fail("it was allowed")
    return caught.value


class TestChanging:
    @pytest.mark.parametrize("whole", [False, True])
    def test_what_was_never_read_is_refused_with_what_to_do(self, seen: ReadMetadata, whole: bool) -> None:
        files(seen, key(session="s2")).shown(read(), LINES)
        failure = refusal(files(seen), whole=whole)
        assert failure.code is ErrorCode.CONFLICT
        assert "was not read in this session. Nothing was changed: Read " in failure.message

    def test_any_read_licenses_an_edit_of_the_version_it_saw(self, seen: ReadMetadata) -> None:
        files(seen).shown(read(last=1), 1)
        with files(seen, key(2)).changing(found(), whole=False, join=False) as change:
            assert change.expected == OLD
            assert change.path == PATH
            assert not change.must_be_new

    def test_a_whole_replace_needs_every_line_and_says_which_are_missing(self, seen: ReadMetadata) -> None:
        files(seen).shown(read(), 10)
        files(seen, key(2)).shown(read(first=13), 20)
        assert "has 30 lines, of which these were not shown: 11-12, 21-30." in refusal(files(seen), whole=True).message
        files(seen, key(3)).shown(read(first=11), 12)
        files(seen, key(3, 1)).shown(read(first=21), 30)
        with files(seen).changing(found(), whole=True, join=False) as change:
            assert change.expected == OLD

    def test_a_version_of_ones_own_counts_as_seen(self, seen: ReadMetadata) -> None:
        files(seen).shown(read(last=1), 1)
        with files(seen).changing(found(), whole=False, join=False) as change:
            change.done(PATH, NEW)
        with files(seen, key(2)).changing(found(), whole=True, join=False) as change:
            assert change.expected == NEW

    def test_a_missing_file_may_be_made_but_not_edited(self, seen: ReadMetadata) -> None:
        assert refusal(files(seen), whole=False, kind="missing").code is ErrorCode.NOT_FOUND
        with files(seen).changing(found("missing"), whole=True, join=False) as change:
            assert change.must_be_new
            assert change.expected is None

    def test_what_a_budget_cut_away_was_not_shown(self, seen: ReadMetadata) -> None:
        call = key()
        files(seen, call).shown(read(), LINES)
        text = "".join(f"{number:>6}\tline {number}\n" for number in range(1, LINES + 1))
        cut = text[:30] + "\n[… left out …]\n" + text[-25:]
        before = ToolResult(status="success", text=text, data={"path": PATH})

        seen.narrow(order(call), before, before.with_text(cut))

        assert "not shown: 3-29." in refusal(files(seen), whole=True).message

    def test_a_join_checks_nothing_and_notes_what_was_made(self, seen: ReadMetadata, redis_client: redis.Redis) -> None:
        place = keys.path_lock(place_of(box(), PATH))
        redis_client.set(place, str(key()))
        with files(seen).changing(found(), whole=True, join=True) as change:
            assert change.expected is None
            change.done(PATH, NEW)
        assert not redis_client.exists(place), "the lock of the node's earlier life is let go"
        with files(seen, key(2)).changing(found(), whole=True, join=False) as change:
            assert change.expected == NEW


class TestHolding:
    def test_one_at_a_time_holds_a_file_of_two_boxes_on_one_directory(self, redis_client: redis.Redis) -> None:
        seen = ReadMetadata(redis_client)
        inside, most, guard = 0, 0, threading.Lock()

        def work(number: int) -> None:
            nonlocal inside, most
            own = files(seen, key(session=f"s{number}"))
            own.shown(read(), LINES)
            for _ in range(5):
                with own.changing(found(), whole=False, join=False):
                    with guard:
                        inside += 1
                        most = max(most, inside)
                    redis_client.ping()
                    with guard:
                        inside -= 1

        with ThreadPoolExecutor(8) as threads:
            list(threads.map(work, range(8)))
        assert most == 1
        assert redis_client.keys(keys.path_lock("*")) == []

    def test_who_waits_too_long_is_told_to_try_again(self, seen: ReadMetadata) -> None:
        files(seen).shown(read(), LINES)
        files(seen, key(session="s2")).shown(read(), LINES)
        with files(seen).changing(found(), whole=False, join=False):
            failure = refusal(files(seen, key(session="s2")), whole=False)
        assert failure.code is ErrorCode.CONFLICT
        assert "Try again" in failure.message

    def test_nobody_lets_go_of_what_another_holds(self, seen: ReadMetadata, redis_client: redis.Redis) -> None:
        with seen.held("p", "mine"):
            seen.let_go("p", "theirs")
            assert redis_client.get(keys.path_lock("p")) == b"mine"
            assert 0 < int(redis_client.pttl(keys.path_lock("p"))) <= 180_000
        assert not redis_client.exists(keys.path_lock("p"))

    def test_what_an_earlier_step_of_the_same_session_left_holds_up_nobody(
        self, seen: ReadMetadata, redis_client: redis.Redis
    ) -> None:
        lock = keys.path_lock("p")
        held = "s1:2:10:0:1"
        for token, is_taken in (
            ("s1:2:10:1:1", False),
            ("s1:2:9:0:1", False),
            ("s1:1:11:0:1", False),
            ("s2:2:11:0:1", False),
            ("1:2:11:0:1", False),
            ("other", False),
            ("s1:2:11:0:1", True),
            ("s1:3:1:0:1", True),
        ):
            redis_client.set(lock, held)
            if is_taken:
                with seen.held("p", token):
                    # The end of the earlier one, should it still come, lets go of nothing.
                    seen.let_go("p", held)
                    assert redis_client.get(lock) == token.encode()
                assert not redis_client.exists(lock)
            else:
                with pytest.raises(ToolFailure), seen.held("p", token):
                    raise AssertionError("it was held")
                assert redis_client.get(lock) == held.encode()

    def test_a_failure_inside_lets_go(self, seen: ReadMetadata, redis_client: redis.Redis) -> None:
        with pytest.raises(ToolFailure), seen.held("p", "mine"):
            raise ToolFailure(ErrorCode.CONFLICT, "changed")
        assert not redis_client.exists(keys.path_lock("p"))

    def test_a_place_is_a_path_on_the_host(self, tmp_path: Path) -> None:
        (tmp_path / "sub").mkdir()
        (tmp_path / "link").symlink_to(tmp_path / "sub")
        outer, inner = box("s1", str(tmp_path)), box("s2", str(tmp_path / "sub"))
        linked = box("s3", str(tmp_path / "link"))
        copies = [box(name, str(tmp_path), WorkspaceMode.COPY) for name in ("s4", "s5")]

        assert (
            place_of(outer, "/workspace/sub/a") == place_of(inner, "/workspace/a") == place_of(linked, "/workspace/a")
        )
        assert len({place_of(one, "/workspace/sub/a") for one in (outer, *copies)}) == 3
        assert place_of(outer, "/tmp/a") != place_of(inner, "/tmp/a")
        assert place_of(outer, "/workspace/\udcff")


class TestRedis:
    def test_calls_at_once_add_up(self, seen: ReadMetadata) -> None:
        def show(number: int) -> None:
            files(seen, key(1, number)).shown(read(first=number), number)

        with ThreadPoolExecutor(8) as threads:
            list(threads.map(show, range(1, LINES + 1)))
        record = seen.load("s1", PATH)
        assert record is not None
        assert record.missing() == ()

    def test_the_file_longest_unused_is_forgotten(
        self, seen: ReadMetadata, redis_client: redis.Redis, until: Callable[..., None]
    ) -> None:
        record = metadata.made(seen_version(OLD))
        for number in range(metadata.MAX_FILES):
            seen.update("s1", f"/workspace/{number}", lambda _: record)
        seen.update("s1", "/workspace/0", lambda _: metadata.made(seen_version(NEW)))
        seen.update("s1", "/workspace/new", lambda _: record)
        assert redis_client.hlen(keys.seen("s1")) == metadata.MAX_FILES
        assert seen.load("s1", "/workspace/1") is None
        assert seen.load("s1", "/workspace/0") is not None
        assert seen.load("s1", "/workspace/new") is not None

    def test_it_expires_with_its_session(self, seen: ReadMetadata, redis_client: redis.Redis) -> None:
        files(seen).shown(read(), LINES)
        assert 0 < int(redis_client.ttl(keys.seen("s1"))) <= keys.SESSION_TTL_S

    def test_times_in_nanoseconds_and_names_that_are_no_text_are_kept(self, seen: ReadMetadata) -> None:
        seen.update("s1", "/workspace/\udcff", lambda _: FileSeen(version=seen_version(OLD), whole=True))
        record = seen.load("s1", "/workspace/\udcff")
        assert record is not None
        assert record.version == seen_version(OLD)
