"""While a cluster is upgraded, processes of two releases read each other's messages and files."""

import json
from typing import Any

import jsonschema
import pytest

from tests.upgrade.breaks import breaks
from tests.upgrade.contract import KINDS, names
from tests.upgrade.examples import examples, form_of, with_unknown_fields
from tests.upgrade.releases import RELEASES, recorded
from worker.contract.replies import Reply, decode_reply

ADVICE = """

A release that may run beside this one cannot live with that. Leave what is there as it is, and add a field with a
default beside it: who does not know it passes over it. Where that cannot be, it is another major version: raise
CONTRACT_VERSION in worker/contract/orders.py (nodes of another version then get no sessions, and say so), and record it
with `python -m tests.upgrade.record VERSION` in place of the directories of the one before.
"""


def is_within(old: Any, new: Any) -> bool:
    """Whether all that was said before is still said, whatever else is."""
    if isinstance(old, dict) and isinstance(new, dict):
        return all(name in new and is_within(value, new[name]) for name, value in old.items())
    if isinstance(old, list) and isinstance(new, list):
        return len(old) == len(new) and all(is_within(one, other) for one, other in zip(old, new, strict=True))
    return bool(old == new)


def test_there_is_an_earlier_release() -> None:
    assert RELEASES


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("release", RELEASES)
def test_nothing_has_changed_that_an_earlier_release_could_not_live_with(release: str, name: str) -> None:
    kind, old = KINDS[name], recorded(release, "schemas")
    found = breaks(name, old[name], kind.schema, kind.grows) if name in old else []
    assert not found, f"{release}: " + "\n".join(found) + ADVICE


@pytest.mark.parametrize("release", RELEASES)
def test_every_kind_and_every_name_of_an_earlier_release_is_still_there(release: str) -> None:
    old, new = recorded(release, "names"), names()
    gone = [f"{name} was {value!r}, is {new.get(name)!r}" for name, value in old.items() if new.get(name) != value]
    gone += [f"{name} is read no more" for name in recorded(release, "schemas") if name not in KINDS]
    assert not gone, f"{release}: " + "\n".join(gone) + ADVICE


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("release", RELEASES)
def test_what_an_earlier_release_wrote_is_read_and_means_the_same(release: str, name: str) -> None:
    kind = KINDS[name]
    for form, message in recorded(release, "messages").get(name, {}).items():
        read = kind.read(json.dumps(message))
        again = json.loads(kind.write(read))
        # What is left out is as it is when it is written.
        whole = json.loads(kind.write(kind.read(json.dumps(again))))
        assert is_within(message, again) or is_within(again, message), f"{release} {name} {form}{ADVICE}"
        assert whole == again


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("release", RELEASES)
def test_an_earlier_release_reads_what_is_written_today(release: str, name: str) -> None:
    kind, old = KINDS[name], recorded(release, "schemas")
    if name not in old:
        return
    known, schema = recorded(release, "messages")[name], tolerant(old[name])
    for form, message in examples(kind.schema):
        if kind.grows and form not in known:
            continue
        written = json.loads(kind.write(kind.read(json.dumps(message))))
        # By itself: a validator would try each form there is.
        one = form_of(schema, schema, written)
        jsonschema.Draft202012Validator({**one, "$defs": schema.get("$defs", {})}).validate(written)


def tolerant(schema: Any) -> Any:
    """The schema as its reader takes it, who passes over fields that it does not know."""
    if isinstance(schema, list):
        return [tolerant(one) for one in schema]
    if isinstance(schema, dict):
        return {
            name: tolerant(value)
            for name, value in schema.items()
            if not (name == "additionalProperties" and value is False)
        }
    return schema


@pytest.mark.parametrize("name", KINDS)
def test_fields_of_a_later_release_are_passed_over_however_deep(name: str) -> None:
    kind = KINDS[name]
    for form, message in examples(kind.schema):
        later = with_unknown_fields(kind.schema, form_of(kind.schema, kind.schema, message), message)
        assert later != message
        assert kind.write(kind.read(json.dumps(later))) == kind.write(kind.read(json.dumps(message))), form


def test_an_entry_of_the_reply_stream_is_read_as_it_always_was() -> None:
    assert decode_reply(b'{"task_id":"t","status":"SUCCESS","result":"{}"}') == Reply("t", True, "{}", "")
    later = decode_reply(b'{"task_id":"t","status":"FAILURE","result":{"exc_type":"E"},"from_a_later_release":1}')
    assert later == Reply("t", False, None, 'FAILURE: {"exc_type": "E"}')
