"""What a run shows while it runs: a progress line per phase and one table row per update; rank 0 only.

On a terminal these are rich's; anywhere else plain lines: a log file shows life without control codes.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from sprout.engine import parallel
from sprout.engine.terminal import PlainConsole, visible

Advance = Callable[..., None]
ROWS_PER_HEADER = 20


def main_console() -> Console:
    """Where a run talks to whoever watches: rank 0 only."""
    return PlainConsole(quiet=not parallel.is_main())


@contextmanager
def progress(
    description: str,
    total: int | None,
    *,
    console: Console | None = None,
    seconds_between_lines: float = 30.0,
) -> Iterator[Advance]:
    """Show progress of a phase; yields `advance(steps=1)`, to be called as work gets done.

    A terminal gets a bar that disappears at the end; a log gets a line every `seconds_between_lines`.
    """
    console = console or PlainConsole()
    if not parallel.is_main():
        yield lambda steps=1: None
    elif console.is_terminal:
        with Progress(*_bar_columns(), console=console, transient=True) as bar:
            task = bar.add_task(visible(description), total=total)
            yield lambda steps=1: bar.advance(task, steps)
    else:
        yield _PlainProgress(description, total, console, seconds_between_lines).advance


class UpdateTable:
    """One row per update with selected metrics.

    columns: heading -> metric name. A metric an update lacks shows as "-". On a terminal the heading is
    repeated every twenty rows; in a log each row is a line of heading=value.
    """

    def __init__(self, columns: Mapping[str, str], *, console: Console | None = None) -> None:
        self.columns = dict(columns)
        self.console = console or PlainConsole()
        self._rows = 0

    def row(self, step: int, metrics: Mapping[str, object]) -> None:
        """Print the row of update `step`."""
        if not parallel.is_main():
            return
        values = [str(step)] + [_cell(metrics.get(name)) for name in self.columns.values()]
        headings = ["update", *self.columns]
        if not self.console.is_terminal:
            line = " ".join(f"{heading}={value}" for heading, value in zip(headings, values, strict=True))
            self.console.print(Text(line), soft_wrap=True)
            return
        if self._rows % ROWS_PER_HEADER == 0:
            self.console.print(Text(_aligned(headings, headings), style="bold"), soft_wrap=True)
        self.console.print(Text(_aligned(values, headings)), soft_wrap=True)
        self._rows += 1


class _PlainProgress:
    def __init__(self, description: str, total: int | None, console: Console, seconds: float) -> None:
        self.description, self.total, self.console, self.seconds = description, total, console, seconds
        self.done = 0
        self.start = self.last_line = time.monotonic()

    def advance(self, steps: int = 1) -> None:
        self.done += steps
        now = time.monotonic()
        if now - self.last_line >= self.seconds:
            self.last_line = now
            of_total = "" if self.total is None else f"/{self.total}"
            line = f"{visible(self.description)}: {self.done}{of_total} after {now - self.start:.0f} s"
            self.console.print(Text(line), soft_wrap=True)


def _bar_columns() -> list[
    TextColumn | BarColumn | MofNCompleteColumn | TimeElapsedColumn | TimeRemainingColumn
]:
    text = TextColumn("{task.description}", markup=False)
    return [text, BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn()]


def _cell(value: object) -> str:
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _aligned(values: Sequence[str], headings: Sequence[str]) -> str:
    return "  ".join(
        value.rjust(max(len(heading), 9)) for value, heading in zip(values, headings, strict=True)
    )
