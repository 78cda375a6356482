"""The document of the scale measurements: tables, and plots as SVG that need no library."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

WIDTH, HEIGHT, LEFT, BOTTOM, TOP = 640, 260, 56, 44, 34
COLOURS = ("#1b6ca8", "#c0392b", "#2e8b57", "#8e6c1f")
CURVES = {
    "by_sessions": ("sessions", "What a call costs, against the sessions that run at once"),
    "by_nodes": ("nodes", "What a call costs, against the nodes of the cluster (32 sessions)"),
    "by_calls": ("calls", "What a call costs, against the calls that its session has made"),
}
GOAL_FLOOR_MS = 1.26
"""What `bash -c true` took on the machine for which the goals were set."""
GOAL_PER_S, GOAL_ADDED_MS = 250, 4
MEAN_DELAY_S = 1.25
"""Of a model that takes 0.5 to 2 s by turns."""
SERIES = {"coordinator_ms": "coordinator, ms CPU", "redis_ms": "Redis, ms CPU", "commands": "Redis commands"}


def document(found: Mapping[str, Any], docs: Path) -> None:
    """Write `performance-scale.md` and its plots."""
    parts = [
        "# Performance: many sessions, long sessions, many nodes\n",
        "Written by `python -m tests.bench.scale --write-docs`, which measures all of it in some twelve minutes on a "
        f"quiet machine. This run: {found['machine']}. Coordinator, Redis, nodes, boxes and the scripted model share "
        "the cores. Machines differ, and so do hours: read the ratios and the shapes.\n",
    ]
    parts += _states(found["states"])
    for name, write in (("throughput", _throughput), ("single", _single), ("delays", _delays)):
        if name in found:
            parts += write(found[name])
    for name, (axis, title) in CURVES.items():
        if name not in found:
            continue
        (docs / f"scale-{name.replace('_', '-')}.svg").write_text(plot(found[name], axis, title))
        parts += [f"## {title}\n", f"![{title}](scale-{name.replace('_', '-')}.svg)\n", *_curve(found[name], axis)]
    parts.append(
        "The curves are measured with nodes that claim each call and answer it at once: what a box costs does not hang "
        "on how many others there are, and is measured by `python -m tests.bench.boxes`. On two cores more nodes "
        "bring no more calls a second; what must stay flat is what each call costs. The long session has a window of "
        "128,000 tokens: its history is compacted as it would be for a model, so a request does not grow without end. "
        "One session alone bears what a coordinator does beside calls, such as looks at leases. "
        "What is sent to a model grows with the square of the history between two compactions, with any client.\n"
    )
    (docs / "performance-scale.md").write_text("\n".join(parts))


def _states(rows: Sequence[Sequence[str]]) -> list[str]:
    return [
        "| figures | sessions | nodes | messages of a history at the end | chunks a reply |\n|---|---|---|---|---|",
        *("| " + " | ".join(row) + " |" for row in rows),
        "",
        "Each with one process for the coordinator, one for Redis, one for the model and one a node.\n",
    ]


def _throughput(one: Mapping[str, Any]) -> list[str]:
    return [
        f"## {one['sessions']} sessions on one node, four Bash `true` a step\n",
        "| | here | goal, quiet |\n|---|---|---|",
        f"| calls a second, through the whole path | {one['per_s']:.0f} | {GOAL_PER_S} |",
        f"| `bash -c true` on the host, median ms, same run | {one['floor_ms']:.2f} | {GOAL_FLOOR_MS} |",
        f"| calls in the time of one such | {one['per_s'] * one['floor_ms'] / 1000:.2f} | "
        f"{GOAL_PER_S * GOAL_FLOOR_MS / 1000:.2f} |",
        f"| `docker exec` a second, eight at once, same run | {one['execs_per_s']:.0f} | |",
        f"| ratio | {one['ratio']:.1f} | 6 |",
        f"| CPU a call: coordinator / node / Redis / model, ms | {one['coordinator_ms']:.2f} / {one['node_ms']:.2f} / "
        f"{one['redis_ms']:.2f} / {one['endpoint_ms']:.2f} | |",
        f"| Redis commands a call | {one['commands']:.1f} | |\n",
    ]


def _single(one: Mapping[str, Any]) -> list[str]:
    return [
        "## One call of an idle session\n",
        "| | here | goal |\n|---|---|---|",
        f"| `bash -c true` on the host, median ms | {one['floor_ms']:.2f} | {GOAL_FLOOR_MS} |",
        f"| guest layer alone, median ms | {one['guest_ms']:.2f} | |",
        f"| whole path, median ms | {one['path_ms']:.2f} | |",
        f"| added | {one['added_ms']:.2f} | {GOAL_ADDED_MS} |",
        f"| added, in times of the host's `bash` | {one['added_ms'] / one['floor_ms']:.1f} | "
        f"{GOAL_ADDED_MS / GOAL_FLOOR_MS:.1f} |\n",
    ]


def _delays(one: Mapping[str, Any]) -> list[str]:
    return [
        f"## {one['sessions']} sessions whose model takes 0.5 to 2 s\n",
        f"Each in a box of its own. Added is a step's time but for the model's delay: one call of `true` and all "
        f"around it ({one['steps']} steps).\n",
        "| | here | goal |\n|---|---|---|",
        "| sessions that failed | 0 | 0 |",
        f"| added delay, p50 / p99 ms | {one['added_p50_ms']:.0f} / {one['added_p99_ms']:.0f} | p99 100 |",
        f"| coordinator's memory, MiB a session | {one['coordinator_mib']:.2f} | 1 |",
        f"| Redis' memory, KiB a session | {one['redis_kib']:.1f} | 20 |",
        f"| more than before once all have ended: coordinator MiB, Redis KiB | {one['coordinator_left_mib']:.1f}, "
        f"{one['redis_left_kib']:.0f} | 0 |",
        f"| the same after a second round of as many: coordinator MiB | {one['coordinator_left_more_mib']:.1f} | 0 |\n",
        f"{one['sessions']} sessions with these delays want {one['sessions'] / MEAN_DELAY_S:.0f} steps a second; where "
        "that is more than the processors give to everything together, what is added is the wait for one. What a "
        "second round leaves beside the first is what sessions leave; the rest is the allocator's and what is loaded "
        "at first use.\n",
        "The same with fewer sessions:\n",
        "| sessions | steps a second | added, p50 ms | p99 ms |\n|---|---|---|---|",
        *(
            f"| {sessions} | {sessions / MEAN_DELAY_S:.0f} | {median:.0f} | {p99:.0f} |"
            for sessions, median, p99 in one["fewer"]
        ),
        "",
    ]


def _curve(points: Sequence[Sequence[Any]], axis: str) -> list[str]:
    rows = [f"| {axis} | coordinator ms | Redis ms | Redis commands | calls/s |\n|---|---|---|---|---|"]
    rows += [
        f"| {at:,} | {cost['coordinator_ms']:.2f} | {cost['redis_ms']:.2f} | {cost['commands']:.1f} | "
        f"{cost['per_s']:.0f} |"
        for at, cost in points
    ]
    spreads = []
    for name, words in (("coordinator_ms", "coordinator"), ("commands", "Redis commands")):
        values = [cost[name] for _, cost in points]
        spreads.append(f"{words} ±{(max(values) - min(values)) / (max(values) + min(values)) * 100:.0f} %")
    return [*rows, "", f"Between least and most: {', '.join(spreads)} (wanted: ±10 %).\n"]


def plot(points: Sequence[Sequence[Any]], axis: str, title: str) -> str:
    """Return the curves of a call's costs as SVG; the horizontal axis has one place a point."""
    most = max(max(cost[name] for name in SERIES) for _, cost in points) * 1.15 or 1.0
    step = (WIDTH - LEFT - 20) / max(len(points) - 1, 1)

    def place(number: int, value: float) -> tuple[float, float]:
        return LEFT + number * step, HEIGHT - BOTTOM - value / most * (HEIGHT - BOTTOM - TOP)

    style = 'font-family="sans-serif" font-size="12" fill="#444"'
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" role="img" aria-label="{title}">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>',
    ]
    for part in range(5):
        y = place(0, most * part / 4)[1]
        lines.append(f'<line x1="{LEFT}" x2="{WIDTH - 20}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>')
        lines.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end" {style}>{most * part / 4:.1f}</text>')
    for number, (at, _) in enumerate(points):
        x = place(number, 0)[0]
        lines.append(f'<text x="{x:.1f}" y="{HEIGHT - 24}" text-anchor="middle" {style}>{at:,}</text>')
    lines.append(f'<text x="{WIDTH / 2}" y="{HEIGHT - 6}" text-anchor="middle" {style}>{axis}</text>')
    for number, ((name, label), colour) in enumerate(zip(SERIES.items(), COLOURS, strict=False)):
        dots = [place(at, cost[name]) for at, (_, cost) in enumerate(points)]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in dots)
        lines.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        lines += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in dots]
        x = LEFT + number * 180
        lines.append(f'<rect x="{x}" y="10" width="12" height="12" fill="{colour}"/>')
        lines.append(f'<text x="{x + 18}" y="20" {style}>{label}</text>')
    return "\n".join([*lines, "</svg>", ""])
