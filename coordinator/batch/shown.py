"""How a batch is shown while it runs: bars on a terminal, else a line for each run that finished."""

import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.text import Text

from coordinator.batch.lines import ResultLine
from coordinator.batch.tasks import Turn
from coordinator.visible import visible_line

RATE_WINDOW = 50
"""The rate is that of the last runs."""
NAME_CHARS = 60
REASON_CHARS = 120


class Screen(Console):
    """A console whose reader may leave: nothing more is shown then, and what is shown goes on."""

    def on_broken_pipe(self) -> None:
        """Be quiet from now on; rich would end the program."""
        self.quiet = True


class Show:
    """Shows a batch on a console; `with` draws. What cannot be shown any more is no fault of the batch."""

    def __init__(
        self,
        console: Console,
        total: int,
        *,
        done: int = 0,
        is_live: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`total` runs, of which `done` are in the results already."""
        self._console = console
        self._total = total
        self._skipped = done
        self._done = done
        self._failed = 0
        self._running = 0
        self._cost_usd = 0.0
        self._clock = clock
        self._ends: deque[float] = deque([clock()], maxlen=RATE_WINDOW)
        self._progress: Progress | None = None
        self._bar = TaskID(0)
        if is_live:
            self._progress = Progress(
                BarColumn(bar_width=24),
                MofNCompleteColumn(),
                TextColumn("{task.description}"),
                TimeElapsedColumn(),
                console=console,
                transient=True,
            )
            self._bar = self._progress.add_task(self._words(), total=total, completed=done)

    def __enter__(self) -> Self:
        if self._progress is not None:
            with suppress(OSError):
                self._progress.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._progress is not None:
            with suppress(OSError):
                self._progress.stop()

    def started(self, turn: Turn) -> None:
        """Show that a run began."""
        self._running += 1
        self._draw()

    def finished(self, turn: Turn, line: ResultLine) -> None:
        """Show what a run came to."""
        self._running -= 1
        self._done += 1
        self._failed += not line.is_completed
        self._cost_usd += line.cost or 0.0
        self._ends.append(self._clock())
        style = "" if line.is_completed else "red"
        with suppress(OSError):
            self._console.print(Text(self.line(turn, line), style), soft_wrap=True)
        self._draw()

    def line(self, turn: Turn, line: ResultLine) -> str:
        """Return what is said of a run that finished."""
        parts = [f"{self._done}/{self._total} {visible_line(turn.name, NAME_CHARS)}:"]
        if line.error is not None:
            parts.append(f"infrastructure: {visible_line(line.error.message, REASON_CHARS)}")
        elif line.is_completed:
            parts.append("completed")
        else:
            parts.append(f"{line.status}: {visible_line(line.stop_reason, REASON_CHARS)}")
        if line.check is not None:
            parts.append("· check passed" if line.check.passed else "· check failed")
        parts.append(f"· {line.steps} steps · {line.seconds:.1f} s")
        if line.cost:
            parts.append(f"· ${line.cost:.4f}")
        return " ".join(parts)

    def _draw(self) -> None:
        if self._progress is not None:
            self._progress.update(self._bar, completed=self._done, description=self._words())

    def _words(self) -> str:
        words = f"{self._running} running · {self._failed} failed"
        if self._cost_usd:
            words += f" · ${self._cost_usd:.4f}"
        took_s = self._ends[-1] - self._ends[0]
        if len(self._ends) > 1 and took_s > 0:
            rate = (len(self._ends) - 1) / took_s
            words += f" · {rate * 60:.1f}/min · about {_span((self._total - self._done) / rate)} left"
        return words


def _span(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min" if minutes else f"{rest} s"
