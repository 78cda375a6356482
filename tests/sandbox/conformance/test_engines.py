"""What an engine owes its node, on every engine: a box that works, is on record, and leaves nothing."""

from collections.abc import Callable

import pytest

from sandbox.box import Box
from sandbox.engine_api import Engine
from sandbox.errors import BoxLost, LossReason, SandboxError
from sandbox.requests import RunAnswer
from sandbox.spec import BoxSpec

Shell = Callable[[Box], Callable[..., RunAnswer]]
EngineAndSpec = tuple[Engine, Callable[[], BoxSpec]]


def test_a_box_starts_is_on_record_and_works_in_its_workspace(engine_and_spec: EngineAndSpec, shell: Shell) -> None:
    engine, make_spec = engine_and_spec
    spec = make_spec()
    box = engine.start(spec, "mine", 3)
    assert box.is_alive()
    [record] = [record for record in engine.records() if record.box_id == box.box_id]
    assert (record.session, record.generation, record.workspace_dir) == ("mine", 3, str(spec.workspace_dir))
    assert shell(box)("echo hi > f").exit_code == 0
    assert (spec.workspace_dir / "f").read_text() == "hi\n"
    box.close()


def test_close_leaves_nothing_and_ends_what_runs(engine_and_spec: EngineAndSpec, shell: Shell) -> None:
    engine, make_spec = engine_and_spec
    spec = make_spec()
    box = engine.start(spec, "s", 1)
    run = shell(box)
    # It would go on writing if it lived.
    run("(setsid sh -c 'while :; do echo x >> alive; sleep 0.01; done') & while [ ! -s alive ]; do sleep 0.01; done")
    box.close()
    box.close()
    size = (spec.workspace_dir / "alive").stat().st_size
    assert not box.is_alive()
    with pytest.raises(BoxLost) as lost:
        box.ping()
    assert lost.value.reason is LossReason.ENDED
    assert box.box_id not in [record.box_id for record in engine.records()]
    assert size == (spec.workspace_dir / "alive").stat().st_size


def test_a_box_that_is_gone_cannot_be_renewed(engine_and_spec: EngineAndSpec) -> None:
    engine, make_spec = engine_and_spec
    box = engine.start(make_spec(), "s", 1)
    engine.renew(box, "another", 2, 60.0)
    [record] = [record for record in engine.records() if record.box_id == box.box_id]
    assert (record.session, record.generation, record.expires - record.born < 120) == ("another", 2, True)
    box.close()
    with pytest.raises(SandboxError):
        engine.renew(box, "s", 1, 60.0)


def test_two_boxes_know_nothing_of_each_others_commands(engine_and_spec: EngineAndSpec, shell: Shell) -> None:
    engine, make_spec = engine_and_spec
    one, other = engine.start(make_spec(), "s", 1), engine.start(make_spec(), "s", 1)
    background = shell(one)("sleep 100", background=True)
    one.freeze()
    assert shell(other)("echo free").stdout.head == b"free\n"
    assert other.backgrounds(None) == ()
    other.close()
    one.thaw()
    assert one.background_output("s", str(background.background_id), 0, 10).state.is_running
    one.close()


def test_variables_of_the_specification_reach_commands(engine_and_spec: EngineAndSpec, shell: Shell) -> None:
    engine, make_spec = engine_and_spec
    spec = make_spec()
    box = engine.start(BoxSpec(**{**vars(spec), "env": {"GIVEN": "yes"}}), "s", 1)
    assert shell(box)("echo $GIVEN $PAGER").stdout.head == b"yes cat\n"
    box.close()
