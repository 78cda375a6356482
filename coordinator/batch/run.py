"""Runs a batch: tasks in, sessions side by side, a line for each run that finished: tasks → **run** → lines."""

import asyncio
import logging
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from coordinator.batch.attempt import Attempts, OnImage
from coordinator.batch.lines import CheckLine, ErrorLine, ResultLine, Results, now
from coordinator.batch.requests import Requests
from coordinator.batch.rows import TaskRow
from coordinator.batch.tasks import TaskFile, Turn
from coordinator.batch.verdict import infrastructure_failure
from coordinator.ending import end
from coordinator.errors import ConfigError, SandhogError, TranscriptError
from coordinator.session.checks import reward_of
from coordinator.session.redact import Redactor
from coordinator.session.request import SessionRequest
from coordinator.session.result import SessionResult

log = logging.getLogger(__name__)

PAUSES_S = (2.0, 15.0)
"""Before the second and third try of a run that something around it broke."""
TRIES = len(PAUSES_S) + 1
MUST_FAIL = 10
"""As many runs in a row, and all that run at once, must be broken by what is around them for the batch to stop."""
OUTPUT_CHARS = 8_000
"""As much of the end of what a check printed stands in its line."""

OnLine = Callable[[Turn, ResultLine], None]
OnStart = Callable[[Turn], None]


@dataclass(frozen=True)
class Plan:
    """How a batch is run."""

    concurrency: int
    tries: int = TRIES
    """Of a run that something around it breaks."""
    budget_usd: float | None = None
    pauses_s: Sequence[float] = PAUSES_S


@dataclass
class Progress:
    """What a batch has come to so far."""

    spent_usd: float = 0.0
    """By the lines of this and of earlier runs of the batch."""
    written: int = 0
    interrupted: int = 0
    """Runs that were cancelled, whose lines were not written."""
    broken_in_a_row: int = 0
    stopped_by: str = ""
    """Why no further task is begun; "" while they are."""
    is_broken: bool = False
    """It stops because of what is around it, and not for its budget."""


class Batch:
    """Runs turns, so many at once."""

    def __init__(
        self,
        tasks: TaskFile,
        requests: Requests,
        results: Results,
        attempts: Attempts,
        plan: Plan,
        *,
        on_start: OnStart = lambda _: None,
        on_line: OnLine = lambda _, __: None,
        spent_usd: float = 0.0,
    ) -> None:
        self._tasks = tasks
        self._requests = requests
        self._results = results
        self._attempts = attempts
        self._plan = plan
        self._on_start = on_start
        self._on_line = on_line
        self.progress = Progress(spent_usd=spent_usd)

    async def run(self, turns: Iterator[Turn]) -> Progress:
        """Run the turns; return what came of it once nothing runs any more.

        Raises:
            SandhogError: the results or a task's files cannot be written, or the tasks file was changed; what had begun
                is broken off.
        """
        self._check_budget()
        workers = {asyncio.create_task(self._work(turns)) for _ in range(self._plan.concurrency)}
        try:
            done, running = await asyncio.wait(workers, return_when=asyncio.FIRST_EXCEPTION)
            if running:
                # One of them failed: the others' sessions end in order, each with its box.
                self._attempts.stop.soon.set()
                done, _ = await asyncio.wait(workers)
            for one in done:
                one.result()
        finally:
            await end(*workers)
        return self.progress

    @property
    def _is_stopping(self) -> bool:
        return bool(self.progress.stopped_by) or self._attempts.stop.soon.is_set()

    async def _work(self, turns: Iterator[Turn]) -> None:
        while not self._is_stopping:
            turn = next(turns, None)
            if turn is None:
                return
            self._on_start(turn)
            line = await self._line(turn)
            if line.status == "cancelled":
                self.progress.interrupted += 1
                if line.cost:
                    # The next run of the batch begins it anew; what it cost is spent.
                    await asyncio.to_thread(self._results.append_aside, line)
                continue
            self._count(line)
            if self.progress.is_broken and line.error is not None and not line.cost:
                # It broke with the others: the next run of the batch begins it anew.
                self.progress.interrupted += 1
                continue
            await asyncio.to_thread(self._results.append, line)
            self.progress.written += 1
            self._on_line(turn, line)

    async def _line(self, turn: Turn) -> ResultLine:
        """Return what a turn came to, tried again while something around it broke it."""
        row = self._tasks.row(turn.entry)
        request = self._requests.request(row, turn.sample, turn.entry.samples)
        started, image_ids = time.monotonic(), [""]
        costs: list[float | None] = []
        for number in range(1, self._plan.tries + 1):
            result, failure = await self._try(self._affordable(request), row, image_ids.append)
            if result is not None:
                costs.append(result.cost_usd)
                self._spend(result.cost_usd or 0.0)
                if result.status == "cancelled":
                    return self._interrupted(turn, costs)
            if failure is None or number == self._plan.tries or self._is_stopping:
                break
            log.info("a task is tried again", extra={"task": turn.name, "error": failure})
            if await self._is_stopped_within(self._plan.pauses_s[min(number, len(self._plan.pauses_s)) - 1]):
                return self._interrupted(turn, costs)
            if self.progress.stopped_by:
                break
        if failure is not None and self._attempts.stop.soon.is_set():
            return self._interrupted(turn, costs)
        error = ErrorLine(message=failure, tries=number) if failure is not None else None
        try:
            line = await asyncio.to_thread(self._told, turn, row, request, result, error)
        except TranscriptError:
            with suppress(TranscriptError):
                self._results.append_aside(self._interrupted(turn, costs))
            raise
        seconds = round(time.monotonic() - started, 3)
        return line.model_copy(update={"cost": _total(costs), "seconds": seconds, "image_id": image_ids[-1]})

    async def _try(
        self, request: SessionRequest, row: TaskRow, on_image: OnImage
    ) -> tuple[SessionResult | None, str | None]:
        """Return the session's result, if it could be begun, and what broke it, if something around it did."""
        try:
            result = await self._attempts.attempt(request, row.model, on_image)
        except ConfigError:
            raise
        except SandhogError as exc:
            return None, str(exc)
        return result, infrastructure_failure(result, has_check=request.check is not None)

    async def _is_stopped_within(self, seconds: float) -> bool:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._attempts.stop.soon.wait()
        return self._attempts.stop.soon.is_set()

    def _check_budget(self) -> None:
        budget = self._plan.budget_usd
        if budget is not None and self.progress.spent_usd >= budget:
            spent = f"{self.progress.spent_usd:.4f} of {budget:g} USD"
            self.progress.stopped_by = f"The budget is used up: {spent} spent. --budget sets another one."

    def _affordable(self, request: SessionRequest) -> SessionRequest:
        """Return the request, its cost limited to what is left of the budget."""
        if self._plan.budget_usd is None:
            return request
        left_usd = max(1e-6, self._plan.budget_usd - self.progress.spent_usd)
        most_usd = left_usd if request.limits.cost_usd is None else min(left_usd, request.limits.cost_usd)
        return replace(request, limits=request.limits.model_copy(update={"cost_usd": most_usd}))

    def _spend(self, cost_usd: float) -> None:
        self.progress.spent_usd += cost_usd
        self._check_budget()

    def _interrupted(self, turn: Turn, costs: Sequence[float | None]) -> ResultLine:
        """Return the line of a run that was cancelled, for what its tries cost."""
        return ResultLine(
            id=turn.entry.id,
            sample=turn.sample,
            status="cancelled",
            stop_reason="interrupted",
            cost=_total(costs),
            finished_at=now(),
        )

    def _count(self, line: ResultLine) -> None:
        self.progress.broken_in_a_row = self.progress.broken_in_a_row + 1 if line.error is not None else 0
        if self.progress.broken_in_a_row >= max(MUST_FAIL, self._plan.concurrency) and line.error is not None:
            self.progress.is_broken = True
            self.progress.stopped_by = (
                f"{self.progress.broken_in_a_row} tasks in a row were broken by what is around them, the last one by: "
                f"{line.error.message} Put it right, and run the same command again with --retry infrastructure."
            )

    def _told(
        self,
        turn: Turn,
        row: TaskRow,
        request: SessionRequest,
        result: SessionResult | None,
        error: ErrorLine | None,
    ) -> ResultLine:
        """Return the turn's line, its files put beside it."""
        base = ResultLine(
            id=row.id,
            sample=turn.sample,
            status="failed",
            stop_reason=f"infrastructure: {error.message}" if error else "",
            error=error,
            image=request.image,
            model=self._attempts.clients.name(row.model),
            finished_at=now(),
            meta=row.meta,
        )
        if result is None:
            return base
        transcript, patch = self._keep(turn, result)
        return base.model_copy(
            update={
                "status": result.status,
                "stop_reason": result.stop_reason,
                "text": result.text,
                "steps": result.steps,
                "calls": result.calls,
                "usage": result.usage,
                "session_id": result.session_id,
                "check": _check_line(request, result, Redactor([*self._attempts.secrets, *request.box.env.values()])),
                "transcript": transcript,
                "patch": patch,
                "patch_bytes": len((result.patch or "").encode("utf-8", "surrogatepass")),
                "notes": result.notes,
            }
        )

    def _keep(self, turn: Turn, result: SessionResult) -> tuple[str | None, str | None]:
        """Put a session's transcript and patch beside the results; return where, relative to the batch's directory."""
        directory = self._results.directory / turn.directory
        kept: list[str | None] = []
        for source, name in ((result.transcript, "transcript.jsonl"), (result.patch_path, "patch.diff")):
            is_there = _copy(Path(source) if source else None, directory / name)
            kept.append(f"{turn.directory}/{name}" if is_there else None)
        return kept[0], kept[1]


def _copy(source: Path | None, target: Path) -> bool:
    """Put a copy of a file under a name, whole or not at all; an empty file for None. False: there is no such file.

    Raises:
        TranscriptError: it cannot be written.
    """
    try:
        content = (source or Path(os.devnull)).open("rb")
    except OSError as exc:
        log.warning("a file of a task is not there", extra={"path": str(source), "error": str(exc)})
        return False
    part = target.with_name(f".{target.name}.part")
    with content:
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            with part.open("wb") as file:
                shutil.copyfileobj(content, file)
            part.replace(target)
        except OSError as exc:
            with suppress(OSError):
                part.unlink()
            raise TranscriptError(
                f"{target} cannot be written: {exc.strerror}. Its task has no line: once it can be written, the same "
                "command runs it again."
            ) from exc
    return True


def _total(costs: Sequence[float | None]) -> float | None:
    """Return what all tries cost; None where none could be begun, or one's cost is not known."""
    known = [cost for cost in costs if cost is not None]
    return sum(known) if known and len(known) == len(costs) else None


def _check_line(request: SessionRequest, result: SessionResult, redactor: Redactor) -> CheckLine | None:
    if request.check is None or result.check is None:
        return None
    said = result.check
    joint = "" if not said.stdout or said.stdout.endswith("\n") else "\n"
    return CheckLine(
        command=request.check.order.command,
        exit_code=said.exit_code,
        passed=said.passed,
        output=redactor.text(said.stdout + joint + said.stderr)[-OUTPUT_CHARS:],
        reward=reward_of(said),
        timed_out=said.timed_out,
        duration_ms=round(said.duration_ms, 1),
        error=said.error,
    )
