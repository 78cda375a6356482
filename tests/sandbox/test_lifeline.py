"""A box whose engine is away for a moment, with its link: it is not taken for dead, and told again to stand still."""

import threading
from collections.abc import Callable, Iterator

import pytest

from sandbox.box import Box
from sandbox.errors import LossReason
from sandbox.heart import Heart, Standing
from sandbox.wire import Op
from tests.conftest import Until
from tests.sandbox.scripted_guest import Said, ScriptedContainer

Cut = Callable[[], tuple[Box, ScriptedContainer]]


@pytest.fixture
def cut() -> Iterator[Cut]:
    """Makes a box whose link has broken while the engine is away."""
    made: list[tuple[Box, ScriptedContainer]] = []

    def make() -> tuple[Box, ScriptedContainer]:
        container = ScriptedContainer(lambda frame: ({}, b""))
        box = Box("b", container, None)
        made.append((box, container))
        container.is_engine_up = False
        assert box._link is not None
        box._link.close()
        return box, container

    yield make
    for box, container in made:
        box.close()
        container.end()


@pytest.mark.parametrize("lives", [True, False])
def test_an_engine_that_is_away_with_the_link_is_asked_again_before_a_box_counts_as_ended(
    cut: Cut, lives: bool
) -> None:
    box, container = cut()
    container.fate_now = None if lives else (LossReason.ENDED, "it went with the engine")

    def come_back() -> None:
        container.is_engine_up = True

    back = threading.Timer(0.5, come_back)
    back.start()
    assert box.is_alive(60.0) is lives
    back.join()


def test_an_engine_that_stays_away_vouches_for_nobody(cut: Cut) -> None:
    box, _ = cut()
    assert not box.is_alive(0.1)


def test_a_box_that_could_not_be_told_to_stand_still_is_told_again(
    cut: Cut, until: Until, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sandbox.lifeline.RELINK_S", 0.1)
    monkeypatch.setattr("sandbox.lifeline.RELINK_PAUSES_S", (0.0, 0.02))
    box, container = cut()
    told, tried = list[str](), threading.Event()

    def script(frame: object) -> Said:
        told.append(frame.head["op"])  # type: ignore[attr-defined]
        return {"frozen": Op.FREEZE in told}, b""

    container.script = script
    freeze = box.freeze

    def tries() -> None:
        try:
            freeze()
        finally:
            tried.set()

    monkeypatch.setattr(box, "freeze", tries)
    heart = Heart(lambda: [box], lambda _: Standing.OURS, 0.02)
    try:
        heart.freeze_all()
        assert tried.wait(60)
        assert Op.FREEZE not in told
        container.is_engine_up = True
        until(lambda: box.is_frozen, "it stands still")
    finally:
        heart.close()
