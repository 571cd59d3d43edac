"""The progress display of the command line: one bar for the suite, one for the run at hand."""

from __future__ import annotations

from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from ..core import State
from ..running.watch import Watch


class Display(Watch):
    """A rich progress display; use it as a context."""

    def __init__(self, console: Console) -> None:
        self._bars = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[note]}"),
            console=console,
            transient=True,
        )
        self._suite: TaskID | None = None
        self._run: TaskID | None = None

    def __enter__(self) -> Display:
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.stop()

    def _next(self, description: str, total: int, done: int = 0) -> None:
        if self._run is not None:
            self._bars.remove_task(self._run)
        self._run = self._bars.add_task(description, total=total, completed=done, note="")

    def suite(self, runs: int) -> None:
        self._suite = self._bars.add_task("experiments", total=runs, note="")

    def training(self, label: str, seed: int, done: int, rounds: int) -> None:
        self._next(f"train {label} (seed {seed})", rounds, done)

    def round(self, state: State) -> None:
        if self._run is not None:
            note = f"validation {state.history[-1]['val_accuracy']:.1%}" if state.history else ""
            self._bars.update(self._run, completed=state.round, note=note)

    def testing(self, label: str, seed: int, steps: int) -> None:
        self._next(f"test  {label} (seed {seed})", steps)

    def tested(self) -> None:
        if self._run is not None:
            self._bars.advance(self._run)

    def done(self) -> None:
        if self._suite is not None:
            self._bars.advance(self._suite)
