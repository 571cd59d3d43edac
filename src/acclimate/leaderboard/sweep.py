"""Fill a track: every method of the catalogue with the common adapters, and every adapter with two of the methods.

A row's runs lie in a folder of their own, so that a sweep that was stopped goes on where it was; a row whose submission
has all that is asked for is not run again. Rows that differ in the personaliser alone share the training of their
method, and on a GPU the seeds of a method train together.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from .. import store
from ..backends.vmap import shelf
from ..experiment import Experiment
from ..experiment.catalogue import ADAPTERS, METHODS
from ..ops.layout import counted
from ..running import run as api
from ..running.check import check_all
from ..running.progress import duration
from ..running.watch import Watch
from . import folder
from .tracks import as_frozen, track

COMMON = ("none", "tent", "t3a", "em", "lame")
"""What every method is tested with, besides the adapters that need a part of the model that few methods have."""
WHOLE = ("fedavg", "fedthe")
"""The methods that are tested with every adapter."""
TUNED = ("finetune", "lp", "lp-ft")
ADDED = {"fisher": ("eata",), "confusion": ("bbse",), "memory": ("knn",), "means": ("santa", "neo-client")}
"""Personalisers that leave the model's answers as they are and add what an adapter needs."""
EVERY = 10.0
"""Seconds after which a line is due."""


@dataclass(frozen=True)
class SweepRow:
    """One submission that a full track has: a method, perhaps with a personaliser, and its adapters."""

    name: str
    settings: tuple[str, ...]
    adapters: tuple[str, ...]

    @property
    def method(self) -> str:
        """The row whose training this one shares; its own name, where it has no personaliser."""
        return self.name.partition("+")[0]

    def experiments(self, track_name: str, device: str = "cpu") -> list[Experiment]:
        """One per seed of the track. What is tested with every adapter is tested at the last round alone."""
        of = track(track_name)
        first = of.experiment(*self.settings, f"adapters={','.join(self.adapters)}")
        looks = 1 if self.method in WHOLE else 10
        return [replace(first, seed=s, device=device, eval_every=max(first.rounds // looks, 1)) for s in of.seeds]


def entries(only: Iterable[str] = ()) -> list[SweepRow]:
    """All submissions of a full track, or those of these names."""
    needy = [n for n, a in ADAPTERS.items() if a.requires]
    common = tuple(dict.fromkeys([*COMMON, *needy]))
    found = [SweepRow(m, (f"method={m}",), tuple(ADAPTERS) if m in WHOLE else common) for m in METHODS]
    with_personal = {**dict.fromkeys(TUNED, COMMON), **ADDED}
    for personal, names in with_personal.items():
        found.append(SweepRow(f"fedavg+{personal}", ("method=fedavg", f"personal={personal}"), names))
    named = {e.name: e for e in found}
    if unknown := [n for n in only if n not in named]:
        raise ValueError(f"--only={unknown[0]} is not possible; allowed: {', '.join(named)}")
    return [named[n] for n in only] or found


def refusal(entry: SweepRow, track_name: str) -> str | None:
    """Why a method cannot be on a track, known without training it; None where it can."""
    try:
        check_all(entry.experiments(track_name)[:1])
    except ValueError as e:
        return str(e).partition(": ")[2] or str(e)
    return None


def done(entry: SweepRow, versions: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the last version has a row, or a reason against one, for every adapter of the entry."""
    if not versions:
        return False
    return set(entry.adapters) <= {r["adapter"] for r in versions[-1]["rows"]} | set(versions[-1]["refused"])


def missing(track_name: str, root: Path, only: Iterable[str] = ()) -> list[SweepRow]:
    """The entries that the submissions below `root` lack, or have with fewer adapters."""
    place = root / track_name
    there = folder.read(place) if place.exists() else {}
    return [e for e in entries(only) if not done(e, there.get(e.name, ()))]


def train(experiment: Experiment, out: Path, shared: Path | None = None) -> float:
    """Run one seed of an entry, or go on with it; says how many seconds that took.

    `shared` is the folder of a run of the same training, whose state is taken over where there is one.
    """
    torch.set_num_threads(1)  # runs go side by side
    began, there = time.perf_counter(), store.RunFolder(out)
    if there.config.exists() and there.experiment() == experiment:
        api.resume(out)
    else:
        api.run(experiment, out, overwrite=True, reuse=shared if _of_training(shared, experiment) else None)
    _make_room()
    return time.perf_counter() - began


def _of_training(shared: Path | None, experiment: Experiment) -> bool:
    """Whether a folder holds a state of the experiment's training."""
    if shared is None or not (there := store.RunFolder(shared)).state.exists():
        return False
    return there.experiment().history_hash() == experiment.history_hash()


def train_ahead(experiments: Sequence[Experiment], outs: Sequence[Path]) -> None:
    """Train all seeds of an entry in one vmap, where a GPU can; then their tests are what is left to run."""
    torch.set_num_threads(1)
    api.train_seeds(outs, experiments, Watch())
    _make_room()


def _make_room() -> None:
    """Give back the GPU memory of what has ended: other processes of the pool share the device."""
    shelf.forget()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def _processes(jobs: int) -> Executor:
    return ProcessPoolExecutor(jobs, mp_context=get_context("spawn"))


def fill(
    track_name: str,
    out: Path,
    to: Path,
    jobs: int = 1,
    only: Iterable[str] = (),
    device: str = "cpu",
    workers: Callable[[int], Executor] = _processes,
) -> Iterator[str]:
    """Run what is missing, `jobs` seeds side by side, and write submissions; yields lines that say how far it is."""
    if jobs < 1:
        raise ValueError(f"--jobs={jobs} must be at least 1")
    left = missing(track_name, to, only)
    reasons = {e.name: refusal(e, track_name) for e in left}
    yield from (f"{name} cannot be on track {track_name}: {why}" for name, why in reasons.items() if why)
    runs = {e.name: e.experiments(track_name, device) for e in left if reasons[e.name] is None}
    total, began = sum(map(len, runs.values())), time.perf_counter()
    yield f"{counted(len(runs), 'row')} to run, {counted(total, 'seed')}, {jobs} at a time"
    with as_frozen(), workers(jobs) as pool:
        work = _Work({e.name: e.method for e in left}, runs, out, device != "cpu")
        while work.feed(pool, jobs):
            for name in work.ended():
                yield _submitted(name, work.done[name], track_name, out, to)
            passed, count = time.perf_counter() - began, sum(map(len, work.done.values()))
            rest = f"; {duration(passed / count * (total - count))} left" if 0 < count < total else ""
            yield f"{count} of {counted(total, 'seed')}, {duration(passed)} so far{rest}"


class _Work:
    """What a pool has to do. What follows on a training comes before other trainings, so that rows end early."""

    def __init__(
        self, methods: Mapping[str, str], runs: Mapping[str, Sequence[Experiment]], out: Path, together: bool
    ) -> None:
        self.methods, self.runs, self.out = methods, runs, out
        self.done: dict[str, list[Future[float]]] = {name: [] for name in runs}
        self.waiting: dict[Future[Any], tuple[str, int | None]] = {}
        """What is submitted: the row, and its seed, or None where all seeds train together."""
        self.left: list[tuple[str, int | None]] = []
        """What can be submitted, the next one first."""
        self._followed: set[tuple[str, int]] = set()
        for name, own in runs.items():
            if methods[name] == name or methods[name] not in runs:
                self.left += [(name, None)] if together and methods[name] == name else [(name, e.seed) for e in own]

    def feed(self, pool: Executor, jobs: int) -> bool:
        """Keep a pool of `jobs` busy; says whether there is something to wait for."""
        while self.left and len(self.waiting) < jobs:
            name, seed = self.left.pop(0)
            outs = {e.seed: (e, self.out / name / f"s{e.seed}") for e in self.runs[name]}
            if seed is None:
                future: Future[Any] = pool.submit(train_ahead, *map(list, zip(*outs.values(), strict=True)))
            else:
                future = pool.submit(train, *outs[seed], self.out / self.methods[name] / f"s{seed}")
            self.waiting[future] = name, seed
        return bool(self.waiting)

    def _follow(self, name: str, seed: int | None = None) -> list[tuple[str, int]]:
        """What shares this row's training, of one seed or of all, and has not been asked for yet."""
        found = [
            (other, e.seed) for other, own in self.runs.items() if other != name == self.methods[other] for e in own
        ]
        out = [job for job in found if seed in (None, job[1]) and job not in self._followed]
        self._followed.update(out)
        return out

    def ended(self) -> list[str]:
        """Wait for the next jobs to end, see what can follow on them, and name the rows that are complete."""
        complete = []
        for future in wait(self.waiting, EVERY, FIRST_COMPLETED)[0]:
            name, seed = self.waiting.pop(future)
            if (
                seed is None
            ):  # the training is there, and short tests come first; or it failed, and each seed tries alone
                trained = future.exception() is None
                self.left[:0] = [*(self._follow(name) if trained else ()), *((name, e.seed) for e in self.runs[name])]
                continue
            self.left[:0] = self._follow(name, seed)
            self.done[name].append(future)
            if len(self.done[name]) == len(self.runs[name]):
                complete.append(name)
        return complete


def _submitted(name: str, ended: Sequence[Future[float]], track_name: str, out: Path, to: Path) -> str:
    """Write the submission of a row that has run, and say so; a row that failed does not stop the others."""
    try:
        seconds = sum(future.result() for future in ended)
        return f"wrote {folder.submit(out / name, track_name, 'defaults', to)} after {seconds:.0f} s of computing"
    except Exception as e:  # whatever it is: hours of other rows depend on it
        return f"{name} failed: {type(e).__name__}: {e}"
