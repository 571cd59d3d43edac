"""The progress display of all commands that take long: bars on a terminal, plain lines where there is none."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeRemainingColumn
from rich.progress import Progress as RichProgress

from ..running.progress import Lines, Progress, beating
from ..running.watch import Watch
from . import heartbeat


@contextmanager
def display(quiet: bool = False, console: Console | None = None) -> Iterator[Watch]:
    """A watch that shows progress on standard error, or on another console; one that shows nothing where `quiet`."""
    console = console or Console(stderr=True, markup=False)
    if quiet:
        yield Watch()
    elif console.is_terminal and not console.is_dumb_terminal:
        with heartbeat.paused(), _bars(console) as bars:
            yield Bars(bars)
    else:
        with heartbeat.paused(), beating(Lines(console.file)) as lines:
            yield lines


class Bars(Progress):
    """A bar for all runs, where there are several, and one for the run at hand."""

    def __init__(self, bars: RichProgress) -> None:
        super().__init__()
        self._bars = bars
        self._all: TaskID | None = None
        self._run: TaskID | None = None

    def say(self, line: str) -> None:
        self._bars.console.print(line, highlight=False, soft_wrap=True)

    def suite(self, runs: int) -> None:
        super().suite(runs)
        self._all = self._bars.add_task("all", total=runs, note="left")

    def show(self, starts: bool = False) -> None:
        if self._all is not None:
            self._bars.update(self._all, completed=self.share * self.runs)
        if starts:
            if self._run is not None:
                self._bars.remove_task(self._run)
            self._run = self._bars.add_task(self.phase, total=self.steps, completed=self.step, note="left")
        elif self._run is not None and self.phase:
            note = f"left, {self.note}" if self.note else "left"
            self._bars.update(self._run, completed=self.step, note=note)


def _bars(console: Console) -> RichProgress:
    return RichProgress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}", markup=False),
        console=console,
        transient=True,
    )
