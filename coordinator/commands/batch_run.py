"""Runs a batch for the command line, with its cluster, its signals and its summary: batch → **batch_run** → code."""

import asyncio
import json
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from coordinator.batch.attempt import Attempts, Stop
from coordinator.batch.clients import Clients
from coordinator.batch.lines import RESULTS, ResultLine, Results, Retry, read_lines
from coordinator.batch.manifest import keep_ran_on, write_manifest
from coordinator.batch.predictions import write_predictions
from coordinator.batch.ran_on import RanOn
from coordinator.batch.requests import Requests
from coordinator.batch.run import Batch, Plan
from coordinator.batch.shown import Screen, Show
from coordinator.batch.summary import Summary
from coordinator.batch.tasks import TaskFile, Turn
from coordinator.batch.telling import Outcome, Teller
from coordinator.commands.acting import keep_action
from coordinator.commands.forkable import forkable
from coordinator.commands.own_cluster import Signals, looked_after, redis_of
from coordinator.commands.terminal import is_terminal
from coordinator.embedded import Embedded
from coordinator.ending import end
from coordinator.endpoint.model import ModelSettings
from coordinator.errors import ConfigError, SandhogError
from coordinator.session.approvals import Approver
from coordinator.settings import Settings
from coordinator.wiring import open_cluster
from tools.loading import LoadedTools

INTERRUPTED = 130
HURRY_S = 20.0
"""A batch that has not ended so long after a signal is hurried."""


@dataclass(frozen=True)
class Given:
    """A batch as the command line asked for it."""

    tasks: TaskFile
    requests: Requests
    endpoint: ModelSettings
    tools: LoadedTools
    out: Path
    plan: Plan
    approver: Approver
    retry: Retry | None
    as_json: bool
    teller: Teller | None = None
    """Told when it ends."""

    @property
    def all_runs(self) -> int:
        """Of all tasks."""
        return sum(entry.samples for entry in self.tasks.entries)


@dataclass(frozen=True)
class _Left:
    """What is left to do."""

    turns: Sequence[Turn]
    done: int
    spent_usd: float


def run_batch(given: Given, settings: Settings) -> int:
    """Run what is left of the batch and print its summary; return the exit code.

    Raises:
        SandhogError: it cannot be begun or gone on with; what was finished is kept.
    """
    with Results(given.out) as results:
        outcome, error = asyncio.run(_run(given, settings, results))
        # While the directory is still ours: the lines are this batch's.
        summary = _summary(given)
    if error is None:
        _end(given, summary)
    if given.teller is not None:
        name, left = given.out.absolute().name, given.all_runs - summary.runs
        unheard = asyncio.run(given.teller.tell(name, outcome, summary, left))
        if unheard:
            _say(f"--webhook: nobody was told that the batch ended: {unheard}")
    if error is not None:
        raise error
    if outcome == "interrupted":
        return INTERRUPTED
    completed = {(line.id, line.sample) for line in read_lines(given.out / RESULTS) if line.is_completed}
    # There may be lines of more samples than are asked for now.
    return 0 if all((turn.entry.id, turn.sample) in completed for turn in given.tasks.turns()) else 1


async def _run(given: Given, settings: Settings, results: Results) -> tuple[Outcome, SandhogError | None]:
    """Run what is left; return how it ended, and what broke it, if something did."""
    # First of all: what is started below must also be ended when a signal comes while it starts.
    signals = Signals()
    clients = Clients(given.endpoint)
    outcome: Outcome = "finished"
    try:
        if given.teller is not None:
            await given.teller.check()
        client = await clients.client(None)
        _check_prices(given, client.settings.model)
        left = _left(given, results)
        ran = _write_manifest(given, client.settings)
        if left.turns and not signals.first.is_set():
            keep_action(
                settings.state_dir, "batch", detail=f"{len(left.turns)} runs of {given.tasks.path} into {given.out}"
            )
            if await _run_turns(given, settings, results, clients, signals, left, ran):
                outcome = "stopped"
    except ConfigError:
        raise
    except SandhogError as exc:
        return "failed", exc
    finally:
        await clients.close()
    if not signals.first.is_set():
        return outcome, None
    _say("Interrupted; the same command goes on with what is left.")
    return "interrupted", None


def _left(given: Given, results: Results) -> _Left:
    """Return the runs that are not finished, those that are to be run again set aside."""
    retry = given.retry
    if retry is not None:
        # Lines of tasks that are not in the file now stay: nothing would be run in their place.
        asked = {(turn.entry.id, turn.sample) for turn in given.tasks.turns()}
        moved = results.set_aside(lambda line: (line.id, line.sample) in asked and line.is_to_retry(retry))
        _say(f"{moved} finished runs are run again.")
    finished = {(line.id, line.sample) for line in read_lines(results.path)}
    turns = [turn for turn in given.tasks.turns() if (turn.entry.id, turn.sample) not in finished]
    return _Left(turns, given.all_runs - len(turns), results.spent_usd())


async def _run_turns(
    given: Given, settings: Settings, results: Results, clients: Clients, signals: Signals, left: _Left, ran: RanOn
) -> bool:
    """Run the turns; return whether something other than a signal stopped the batch before its last one."""
    secrets = [value for value in (given.endpoint.api_key, os.environ.get("OPENAI_API_KEY")) if value]
    secrets += given.teller.secrets if given.teller is not None else ()
    stop = Stop()
    is_live = is_terminal(sys.stdin, sys.stderr)
    show = Show(Screen(stderr=True, highlight=False), left.done + len(left.turns), done=left.done, is_live=is_live)
    at_once = min(given.plan.concurrency, len(left.turns))

    def finished(turn: Turn, line: ResultLine) -> None:
        show.finished(turn, line)
        keep_ran_on(given.out, ran)

    with redis_of(settings, given.tools, places=at_once) as (redis_url, embedded):
        async with open_cluster(redis_url, settings.state_dir, given.tools) as cluster:
            attempts = Attempts(cluster, clients, given.approver, secrets, stop, ran)
            running = Batch(
                given.tasks,
                given.requests,
                results,
                attempts,
                replace(given.plan, concurrency=at_once),
                on_start=show.started,
                on_line=finished,
                spent_usd=left.spent_usd,
            )
            async with forkable(cluster, attempts.running.get):
                with show:
                    await _attended(running, left.turns, stop, signals, embedded)
    if running.progress.stopped_by:
        _say(running.progress.stopped_by)
    return bool(running.progress.stopped_by)


async def _attended(
    running: Batch, turns: Sequence[Turn], stop: Stop, signals: Signals, embedded: Embedded | None
) -> None:
    """Run the batch; a signal ends its sessions, a second one or a cluster that is gone breaks them off.

    Raises:
        SandhogError: the embedded cluster is gone, or the results cannot be written.
    """
    async with looked_after(embedded) as broken:
        work = asyncio.create_task(running.run(iter(turns)), name="batch")
        watch = asyncio.create_task(_pass_on(signals, stop), name="signals")
        try:
            await asyncio.wait({work, broken}, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                stop.soon.set()
                stop.now.set()
            await work
            if broken.done():
                broken.result()
        finally:
            await end(work, watch)


async def _pass_on(signals: Signals, stop: Stop) -> None:
    """Tell the batch of signals; one that takes long to end is hurried as by a second one."""
    await signals.first.wait()
    stop.soon.set()
    _say("Ending; once more to break off.")
    try:
        async with asyncio.timeout(HURRY_S):
            await signals.second.wait()
    except TimeoutError:
        pass
    stop.now.set()


def _check_prices(given: Given, model: str) -> None:
    """Refuse a budget that cannot be kept."""
    if given.plan.budget_usd is not None and not given.requests.models.of(model).has_prices:
        raise ConfigError(
            f"--budget: the prices of {model} are not known. Put them into the file that SANDHOG_MODELS_FILE names "
            "(docs/limits-and-context.md)."
        )


def _write_manifest(given: Given, endpoint: ModelSettings) -> RanOn:
    flags: dict[str, Any] = {
        "concurrency": given.plan.concurrency,
        "budget_usd": given.plan.budget_usd,
        "retry": given.retry,
        "approve": type(given.approver).__name__.lower(),
    }
    return write_manifest(
        given.out,
        tasks=given.tasks.path,
        defaults=given.requests.defaults,
        model=endpoint.model,
        base_url=endpoint.base_url,
        models=given.requests.models,
        flags=flags,
    )


def _summary(given: Given) -> Summary:
    """Return what the batch has come to."""
    ids = {entry.id for entry in given.tasks.entries}
    return Summary.of(line for line in read_lines(given.out / RESULTS) if line.id in ids)


def _end(given: Given, summary: Summary) -> None:
    """Write the predictions and print the summary."""
    instances = {entry.id for entry in given.tasks.entries if entry.is_instance}
    if instances:
        for name in write_predictions(given.out, instances):
            _say(f"{given.out / name} is not UTF-8: its prediction has replacement characters, and may not apply.")
    if given.as_json:
        print(json.dumps({**summary.as_json(), "out": str(given.out)}))
    else:
        table = Table(show_header=False, box=None, pad_edge=False)
        table.add_column(style="dim")
        table.add_column()
        for name, value in summary.rows():
            table.add_row(name, value)
        console = Console(highlight=False)
        console.print(table)
        print(f"Results: {given.out / RESULTS}")
    sys.stdout.flush()


def _say(words: str) -> None:
    # Nobody may be there to read it any more, which is no reason to break off what runs.
    with suppress(OSError):
        print(f"sandhog: {words}", file=sys.stderr)
