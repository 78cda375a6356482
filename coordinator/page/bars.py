"""Steps and calls as bars on a time axis: story → **bars** → SVG. All places are percent of the axis."""

from collections.abc import Iterable
from dataclasses import dataclass

from coordinator.page.blocks import Block

MIN_PERCENT = 0.25
"""A shorter bar could not be seen."""
MAX_LANES = 8
MAX_BARS = 1_500


@dataclass(frozen=True)
class Bar:
    """One stretch of time."""

    x: float
    width: float
    lane: int
    """Row, from 0."""
    kind: str
    """model, running, asks, success, partial, error, child or said."""
    label: str


@dataclass(frozen=True)
class Axis:
    """Bars, and what their axis stands for."""

    bars: list[Bar]
    lanes: int
    length_s: float


def of_block(block: Block, now_s: float) -> Axis:
    """Return one step: the model's time in the first row, each call in one of its own, sub-agents below theirs."""
    end_s = now_s if block.is_open else block.ended_s
    scale = _Scale(block.began_s, end_s)
    bars = [scale.bar(block.began_s, block.replied_s or end_s, 0, "model", "model")]
    lane = 1
    for call in block.calls.values():
        if call.began_s is not None:
            bars.append(scale.bar(call.began_s, call.ended_s or end_s, lane, call.state, call.tool))
        lane += 1
        for child in call.children:
            bars.append(scale.bar(child.began_s, child.ended_s or end_s, lane, "child", child.description))
            lane += 1
    return Axis(bars, lane, scale.length_s)


def of_all(blocks: Iterable[Block], now_s: float) -> Axis:
    """Return the whole page: the model's time in the first row, calls below it, those at the same time side by side."""
    shown = list(blocks)
    if not shown:
        return Axis([], 2, 0.0)
    last_s = now_s if shown[-1].is_open else max(block.ended_s for block in shown)
    scale = _Scale(shown[0].began_s, last_s)
    bars: list[Bar] = []
    most = 1
    for block in shown:
        if block.step is None:
            bars.append(scale.bar(block.began_s, block.began_s, 0, "said", "message"))
            continue
        end_s = last_s if block is shown[-1] else block.ended_s
        label = f"step {block.step}"
        bars.append(scale.bar(block.began_s, block.replied_s or end_s, 0, "model", f"{label}: model"))
        free_s = [0.0] * MAX_LANES
        for call in block.calls.values():
            if call.began_s is None:
                continue
            lane = next((lane for lane, at_s in enumerate(free_s) if at_s <= call.began_s), MAX_LANES - 1)
            free_s[lane] = call.ended_s or end_s
            most = max(most, lane + 1)
            bars.append(scale.bar(call.began_s, free_s[lane], lane + 1, call.state, f"{label}: {call.tool}"))
    return Axis(bars[-MAX_BARS:], most + 1, scale.length_s)


class _Scale:
    def __init__(self, begin_s: float, end_s: float) -> None:
        self._begin_s = begin_s
        self.length_s = max(0.0, end_s - begin_s)
        self._unit = max(self.length_s, 0.001)

    def bar(self, begin_s: float, end_s: float, lane: int, kind: str, label: str) -> Bar:
        x = min(100 - MIN_PERCENT, max(0.0, (begin_s - self._begin_s) / self._unit * 100))
        width = max(MIN_PERCENT, min(100 - x, (end_s - begin_s) / self._unit * 100))
        took = f"{label} · {max(0.0, end_s - begin_s):.2f} s" if end_s > begin_s else label
        return Bar(round(x, 3), round(width, 3), lane, kind, took)
