"""How far long work is, and plain lines that say so: what every command shows where there is no terminal."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import IO

from ..core import State
from ..ops.layout import counted
from ..ops.ticking import ticking
from .watch import Watch


def duration(seconds: float) -> str:
    """A time for people: `about 5 min`."""
    return f"about {seconds / 60:.0f} min" if seconds >= 90 else f"about {seconds:.0f} s"


class Progress(Watch):
    """Knows how far the work is: how many runs of the suite are finished, and which step the run at hand is at."""

    warns = True

    def __init__(self) -> None:
        self.runs, self.finished = 1, 0
        self._slow: set[str] = set()
        self.phase, self.before, self.part, self.note = "", 0.0, 0.5, ""
        self.step, self.steps, self.unit = 0, 1, ""

    @property
    def share(self) -> float:
        """The share of all work that is done; the training of a run counts as much as its test."""
        return (self.finished + self.before + self.part * self.step / max(self.steps, 1)) / max(self.runs, 1)

    def show(self, starts: bool = False) -> None:
        """Draw what is known; `starts` where a run or its test has just begun."""

    def say(self, line: str) -> None:
        """Show a line that stays."""

    def slow(self, adapter: str, seconds: float) -> None:
        if adapter not in self._slow:  # once, not for every seed
            self._slow.add(adapter)
            self.say(f"adapter {adapter} will take {duration(seconds)} to test in each run, guessed from one batch")

    def suite(self, runs: int) -> None:
        self.runs, self.finished = runs, 0

    def training(self, label: str, seed: int, done: int, rounds: int) -> None:
        self._start(f"train {label} (seed {seed})", 0.0, done, rounds, "round")

    def round(self, state: State) -> None:
        self.step = state.round
        accuracy = state.history[-1]["val_accuracy"] if state.history else None
        self.note = "" if accuracy is None else f"validation {accuracy:.1%}"
        self.show()

    def testing(self, label: str, seed: int, steps: int) -> None:
        self._start(f"test {label} (seed {seed})", 0.5, 0, steps, "test")

    def deploying(self, label: str, seed: int, steps: int) -> None:
        self.part = 1.0  # there is no training before it
        self._start(f"deploy {label} (seed {seed})", 0.0, 0, steps, "step")

    def tested(self) -> None:
        self.step += 1
        self.show()

    def done(self) -> None:
        self.finished += 1
        self.phase, self.before, self.step, self.note = "", 0.0, 0, ""
        self.show()

    def _start(self, phase: str, before: float, step: int, steps: int, unit: str) -> None:
        self.phase, self.before, self.note = phase, before, ""
        self.step, self.steps, self.unit = step, steps, unit
        self.show(starts=True)


class Lines(Progress):
    """A line at the start, one whenever another tenth of all work is done, and one after ten seconds without any.

    Somebody must call `tick` now and then, so that a long step is not silent: `beating` does, from a thread of its own.
    """

    EVERY = 10.0
    """Seconds after which a line is due."""

    def __init__(self, out: IO[str]) -> None:
        super().__init__()
        self._out, self._began = out, time.perf_counter()
        self._first: float | None = None
        self._tenth, self._said = -1, self._began

    def show(self, starts: bool = False) -> None:
        if self._first is None:
            self._first = self.share  # what earlier sessions have done took none of this one's time
        tenth = int(10 * self.share + 1e-9)
        if tenth > self._tenth or time.perf_counter() - self._said >= self.EVERY:
            self._tenth = max(tenth, self._tenth)
            self._line()

    def say(self, line: str) -> None:
        self._out.write(f"{line}\n")  # at once: `tick` may write from another thread
        self._out.flush()

    def tick(self) -> None:
        """A line, where none was written for ten seconds: also before the first run begins, and after the last."""
        now = time.perf_counter()
        if now - self._said < self.EVERY:
            return
        if self._first is not None and self.share < 1:
            self._line()
            return
        self._said = now
        self.say(f"{'getting ready' if self._first is None else 'finishing'}; {duration(now - self._began)} so far")

    def _line(self) -> None:
        self._said = time.perf_counter()
        share, passed = self.share, self._said - self._began
        here = f", {self.step} of {counted(self.steps, self.unit)}"
        at = here if self.phase else f"{self.finished} of {self.runs} done"
        note = f", {self.note}" if self.note else ""
        own = share - (self._first or 0.0)
        left = f"; {duration(passed / own * (1 - share))} left" if own > 0 and share < 1 else ""
        waits = f"; {duration(passed)} so far" if not left and passed >= self.EVERY and share < 1 else ""
        self.say(f"{100 * share:3.0f} %: {self.phase}{at}{note}{left}{waits}")


@contextlib.contextmanager
def beating(lines: Lines) -> Iterator[Lines]:
    """Lines that also come while one step takes long."""
    with ticking(lines.tick, lines.EVERY / 10):
        yield lines
