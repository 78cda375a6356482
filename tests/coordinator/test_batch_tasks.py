"""Tasks files: what is read from them, and that a bad one runs nothing."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.batch.naming import directory_name
from coordinator.batch.rows import TaskRow
from coordinator.batch.tasks import TaskFile
from coordinator.errors import ConfigError


def written(directory: Path, *rows: dict[str, Any] | str) -> Path:
    path = directory / "tasks.jsonl"
    path.write_text("".join(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in rows))
    return path


def opened(path: Path, **more: Any) -> TaskFile:
    return TaskFile(path, look=lambda row: row, **more)


def test_a_file_is_read_row_by_row_when_its_turn_comes(tmp_path: Path) -> None:
    path = written(tmp_path, {"id": "a", "prompt": "one"}, "", {"id": "b", "prompt": "zwei ü", "samples": 2})
    tasks = opened(path, samples=3)
    assert [(turn.entry.id, turn.sample, turn.entry.line) for turn in tasks.turns()] == [
        ("a", 1, 1),
        ("a", 2, 1),
        ("a", 3, 1),
        ("b", 1, 3),
        ("b", 2, 3),
    ]
    assert tasks.row(tasks.entries[1]).prompt == "zwei ü"
    assert [turn.directory for turn in tasks.turns()][-1] == "b/sample-2"


def test_every_bad_line_is_told_with_its_number(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        {"id": "a", "prompt": "fine"},
        "{broken",
        {"id": "b", "prompt": "x", "wrkspace": "."},
        {"id": "c"},
        {"id": "a", "prompt": "again"},
        {"id": "d", "prompt": "x", "limits": {"steps": 0}},
        {"id": "e", "prompt": "x", "repo": "https://example.org/r", "workspace": "."},
        '["a list"]',
        {"id": "f", "prompt": "x", "ref": "main"},
    )
    with pytest.raises(ConfigError) as caught:
        opened(path)
    words = str(caught.value)
    assert "8 line(s)" in words
    for expected in (
        "line 2: it is not JSON",
        "line 3: wrkspace: there is no such field",
        "line 4: prompt: it is missing",
        "line 5: the id 'a' is that of line 1 too",
        "line 6: limits.steps",
        "line 7: workspace and repo exclude each other",
        "line 8: it is JSON, but not an object",
        "line 9: ref, credential, submodules and lfs go with repo",
    ):
        assert expected in words
    assert "line 1:" not in words


def test_what_a_look_at_a_row_finds_is_told_too(tmp_path: Path) -> None:
    def look(row: TaskRow) -> None:
        raise ConfigError("workspace: /none is no directory")

    with pytest.raises(ConfigError, match="line 1: workspace: /none is no directory"):
        TaskFile(written(tmp_path, {"id": "a", "prompt": "x"}), look=look)


def test_a_file_without_tasks_or_without_a_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="has no tasks"):
        opened(written(tmp_path, ""))
    with pytest.raises(ConfigError, match="cannot be read"):
        opened(tmp_path / "missing.jsonl")


@pytest.mark.parametrize(
    "more",
    [
        {"prompt": "\ud800"},
        {"system": "\udfff"},
        {"meta": {"\ud800": 1}},
        {"meta": {"a": ["\ud800"]}},
        {"check": "echo \ud800"},
        {"check": {"command": "true", "files": {"\ud800": "x"}}},
        {"setup": ["\ud800"]},
        {"env": {"A": "\ud800"}},
        {"files": {"a": "\ud800"}},
        {"params": {"extra_body": {"a": "\ud800"}}},
    ],
)
def test_half_a_surrogate_pair_is_refused_wherever_it_stands(tmp_path: Path, more: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=f"line 1: {next(iter(more))}: half a surrogate pair"):
        opened(written(tmp_path, {"id": "a", "prompt": "x", **more}))


def test_a_pipe_is_refused_before_anything_is_read() -> None:
    pipe, writer = os.pipe()
    with os.fdopen(pipe, "rb") as reading:
        os.write(writer, b'{"id": "a", "prompt": "x"}\n')
        os.close(writer)
        with pytest.raises(ConfigError, match=r"is a pipe or a device.* Give a file"):
            opened(Path(f"/dev/fd/{pipe}"))
        assert reading.read() != b""


@pytest.mark.parametrize("other", [{"id": "b", "prompt": "one"}, {"id": "a", "prompt": "two"}])
def test_a_file_that_changes_under_a_batch_is_noticed(tmp_path: Path, other: dict[str, str]) -> None:
    path = written(tmp_path, {"id": "a", "prompt": "one"})
    tasks = opened(path)
    written(tmp_path, other)
    with pytest.raises(ConfigError, match="was changed"):
        tasks.row(tasks.entries[0])


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('{"id": "a", "prompt": "x", "id": "b"}', "line 1: id: it stands there twice"),
        ('{"id": "a", "prompt": "x", "meta": {"k": {"n": 1, "n": 2}}}', "line 1: n: it stands there twice"),
        ('{"id": "a", "prompt": "x", "timeout": Infinity}', "line 1: it is not JSON: Infinity is no number"),
        ('{"id": "a", "prompt": "x", "params": {"temperature": NaN}}', "line 1: it is not JSON: NaN is no number"),
        ('{"id": "a", "prompt": "x", "limits": {"cost_usd": 1e999}}', "line 1: it is not JSON: 1e999 is no number"),
    ],
)
def test_what_json_leaves_open_is_refused(tmp_path: Path, line: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        opened(written(tmp_path, line))


def test_ids_that_look_alike_are_tasks_of_their_own_with_directories_of_their_own(tmp_path: Path) -> None:
    ids = ["caf\u00e9", "cafe\u0301", "..", ".", "a/b", "a\\b", "a", " a", "a\n", "\u0430", "a" * 500]
    tasks = opened(written(tmp_path, *({"id": name, "prompt": "x"} for name in ids)))
    assert [entry.id for entry in tasks.entries] == ids
    assert len({turn.directory.casefold() for turn in tasks.turns()}) == len(ids)
    with pytest.raises(ConfigError, match="line 2: the id 'LEAP' is that of line 1 too, but for upper and lower case"):
        opened(written(tmp_path, {"id": "Leap", "prompt": "x"}, {"id": "LEAP", "prompt": "x"}))


def test_a_row_of_a_data_set_becomes_a_task_without_its_solution(tmp_path: Path) -> None:
    instance = {
        "instance_id": "django__django-1",
        "repo": "django/django",
        "base_commit": "abc1234",
        "problem_statement": "It is broken.",
        "patch": "the solution",
        "test_patch": "the tests",
        "hints_text": "a hint",
        "image_name": "swe/django:1",
        "check": "true",
        "version": "3.0",
    }
    tasks = opened(written(tmp_path, instance), repo_base="https://git.example.org/mirror")
    row = tasks.row(tasks.entries[0])
    assert tasks.entries[0].is_instance
    assert (row.id, row.repo, row.ref) == (
        "django__django-1",
        "https://git.example.org/mirror/django/django",
        "abc1234",
    )
    assert row.image == "swe/django:1"
    assert row.check is not None
    assert "It is broken." in row.prompt
    for secret in ("the solution", "the tests", "a hint"):
        assert secret not in row.model_dump_json()


def test_an_instance_without_a_statement_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="line 1: prompt"):
        opened(written(tmp_path, {"instance_id": "a", "repo": "o/n", "base_commit": "abc1234"}))


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("a-b_c.1", "a-b_c.1"),
        ("..", "task-"),
        ("a/b", "a_b-"),
        ("results.jsonl", "results.jsonl-"),
        ("-rf", "rf-"),
        ("ä", "_-"),
    ],
)
def test_names_of_directories_are_harmless(given: str, expected: str) -> None:
    name = directory_name(given)
    assert name == expected if not expected.endswith("-") else name.startswith(expected)


@settings(deadline=None, max_examples=100)
@given(st.text(min_size=1, max_size=300), st.text(min_size=1, max_size=300))
def test_any_two_ids_have_names_that_are_one_part_of_a_path_and_differ(one: str, other: str) -> None:
    names = [directory_name(one), directory_name(other)]
    for name in names:
        assert name not in ("", ".", "..")
        assert "/" not in name
        assert "\0" not in name
        assert len(name) <= 140
        assert not name.startswith((".", "-"))
    assert (one == other) == (names[0] == names[1])
