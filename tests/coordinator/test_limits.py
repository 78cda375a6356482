"""Limits: what a session may use, what it costs, when it is at an end, and that this may change."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from coordinator.endpoint.reply import Usage
from coordinator.errors import ConfigError
from coordinator.session.call_events import ApprovalAnswered, ApprovalAsked
from coordinator.session.ceilings import Ceiling
from coordinator.session.events import Event
from coordinator.session.limits import Limits, LiveLimits
from coordinator.session.model_table import ModelFacts, ModelTable, read_model_table
from coordinator.session.spend import GRACE_S, Spend, WallClock, left, reached

PRICED = ModelFacts(input_usd=2.0, output_usd=10.0, cached_usd=1.0)
MILLION = Usage(1_000_000, 1_000_000, 2_000_000, cached_tokens=500_000)


def test_only_known_limits_above_nothing_can_be_set() -> None:
    for wrong in ({"steps": 0}, {"calls": -1}, {"cost_usd": 0}, {"time_s": float("inf")}, {"minutes": 3}):
        with pytest.raises(ValidationError):
            Limits.model_validate(wrong)


@pytest.mark.parametrize(
    ("limits", "spend", "elapsed_s", "reason", "may_sum_up"),
    [
        ({"steps": 3}, Spend(steps=3), 0, "limit: steps: 3 replies were used up", True),
        ({"calls": 2}, Spend(calls=2), 0, "limit: calls: 2 of 2 ", True),
        ({"tokens_in": 1_000}, Spend(usage=Usage(1_000)), 0, "limit: tokens in: 1,000 of 1,000 ", True),
        ({"tokens_in": 1_000}, Spend(usage=Usage(1_050)), 0, "limit: tokens in: ", False),
        ({"tokens_out": 9}, Spend(usage=Usage(0, 9)), 0, "limit: tokens out: 9 of 9 ", True),
        ({"cost_usd": 11.5}, Spend(PRICED, cost_usd=11.5), 0, "limit: cost: $11.5000 of ", True),
        ({"cost_usd": 5.0}, Spend(PRICED, cost_usd=11.5), 0, "limit: cost: ", False),
        ({"time_s": 60}, Spend(), 61, "limit: time: 61 s of 60 s ", True),
        ({"time_s": 60}, Spend(), 61 + GRACE_S, "limit: time: ", False),
    ],
)
def test_a_limit_that_is_reached_is_named(
    limits: dict[str, Any], spend: Spend, elapsed_s: float, reason: str, may_sum_up: bool
) -> None:
    found = reached(Limits.model_validate(limits), spend, elapsed_s, 80)
    assert found is not None
    assert found.reason.startswith(reason)
    assert found.may_sum_up is may_sum_up


def test_below_all_limits_there_is_none() -> None:
    limits = Limits(steps=2, calls=2, tokens_in=10, tokens_out=10, cost_usd=1.0, time_s=10)
    assert reached(limits, Spend(PRICED, 1, 1, Usage(9, 9, 18), 0.9), 9, 5) is None


def test_cost_is_by_a_million_tokens_and_cached_ones_are_cheaper() -> None:
    spend = Spend(PRICED)
    spend.add(MILLION)
    assert spend.shown_usd == pytest.approx(11.5)
    spend.add_child(Usage(1, 1, 2, is_estimated=True), 0.5, calls=2)
    assert spend.shown_usd == pytest.approx(12.0)
    assert (spend.calls, spend.usage.total_tokens, spend.usage.is_estimated) == (2, 2_000_002, True)
    unpriced = Spend()
    unpriced.add(MILLION)
    assert unpriced.shown_usd is None


def test_a_sub_agent_gets_what_is_left_and_at_least_one() -> None:
    limits = Limits(calls=10, tokens_in=100, cost_usd=1.0, time_s=60)
    found = left(limits, Spend(PRICED, calls=4, usage=Usage(200, 5), cost_usd=0.25), 20)
    assert found == Limits(calls=6, tokens_in=1, cost_usd=0.75, time_s=40)


def test_limits_change_within_their_ceiling() -> None:
    live = LiveLimits(Limits(), cut=Ceiling(max_steps=60, max_cost_usd=2.0).cut, facts=PRICED)
    assert live.now == Limits(steps=50, cost_usd=2.0)
    assert live.change(Limits(steps=100, cost_usd=1.0)) == Limits(steps=60, cost_usd=1.0)
    assert live.now.steps == 60
    assert live.changed.is_set()


def test_a_limit_of_cost_without_prices_is_refused_with_what_to_do() -> None:
    with pytest.raises(ConfigError, match="SANDHOG_MODELS_FILE"):
        LiveLimits(Limits(cost_usd=1.0), facts=ModelFacts())
    live = LiveLimits(Limits(), facts=ModelFacts())
    with pytest.raises(ConfigError, match="SANDHOG_MODELS_FILE"):
        live.change(Limits(cost_usd=1.0))
    assert live.now == Limits()


def test_the_clock_stands_still_while_a_human_is_asked() -> None:
    now = [0.0]
    clock = WallClock(lambda: now[0])
    asked = [ApprovalAsked(step=1, index=at, tool="Bash", summary="x", reason="y", within_s=60) for at in (0, 1)]
    answered = [ApprovalAnswered(step=1, index=at, tool="Bash", decision="allow") for at in (0, 1)]
    now[0] = 5.0
    assert clock.elapsed_s == 0
    clock.start()
    happened: list[Event] = [asked[0], asked[1], answered[0], answered[1]]
    for event, at_s, elapsed_s in zip(happened, (8.0, 20.0, 30.0, 40.0), (3.0,) * 4, strict=True):
        now[0] = at_s
        clock(event)
        assert clock.elapsed_s == elapsed_s
    now[0] = 41.0
    assert clock.elapsed_s == 4.0
    clock(ApprovalAsked(step=2, index=0, tool="Bash", summary="x", reason="y"))
    now[0] = 42.0
    clock.start()
    assert clock.elapsed_s == 5.0, "a rule answers at once"


def test_a_table_of_models_goes_by_name_and_pattern(tmp_path: Path) -> None:
    path = tmp_path / "models.toml"
    path.write_text('["big-1"]\ncontext_tokens = 9\n["big-*"]\ninput_usd = 1\noutput_usd = 2\n')
    table = read_model_table(path, 7)
    assert table.of("big-1") == ModelFacts(context_tokens=9)
    assert table.of("big-2") == ModelFacts(input_usd=1, output_usd=2, context_tokens=7)
    assert table.of("small") == ModelFacts(context_tokens=7)
    assert read_model_table(None) == ModelTable()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ('["m"]\ninput_usd = 1', "m: .*belong together"),
        ('["m"]\nprice = 1', "m.price: "),
        ('["m"]\ninput_usd = -1\noutput_usd = 1', "m.input_usd: "),
        ("m = 3", "models.toml: "),
        ("[", "cannot be read"),
    ],
)
def test_a_table_that_is_wrong_is_refused_by_its_place(tmp_path: Path, content: str, said: str) -> None:
    path = tmp_path / "models.toml"
    path.write_text(content)
    with pytest.raises(ConfigError, match=f"SANDHOG_MODELS_FILE: .*{said}"):
        read_model_table(path)
