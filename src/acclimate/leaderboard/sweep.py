"""Fill a track: every method of the catalogue with the common adapters, and every adapter with two of the methods.

A row's runs lie in a folder of their own, so that a sweep that was stopped goes on where it was; a row whose submission
has all that is asked for is not run again.
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
from ..experiment import Experiment
from ..experiment.catalogue import ADAPTERS, METHODS
from ..running import run as api
from ..running.check import check_all
from ..running.progress import duration
from . import folder
from .tracks import track

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

    def experiments(self, track_name: str, device: str = "cpu") -> list[Experiment]:
        """One per seed of the track."""
        of = track(track_name)
        first = of.experiment(*self.settings, f"adapters={','.join(self.adapters)}")
        return [replace(first, seed=s, device=device) for s in of.seeds]


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


def train(experiment: Experiment, out: Path) -> float:
    """Run one seed of an entry, or go on with it; says how many seconds that took."""
    torch.set_num_threads(1)  # runs go side by side
    began, there = time.perf_counter(), store.RunFolder(out)
    if there.config.exists() and there.experiment() == experiment:
        api.resume(out)
    else:
        api.run(experiment, out, overwrite=True)
    return time.perf_counter() - began


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
    yield f"{len(runs)} rows to run, {total} seeds, {jobs} at a time"
    with workers(jobs) as pool:
        waiting = {pool.submit(train, x, out / name / f"s{x.seed}"): name for name, own in runs.items() for x in own}
        ended: dict[str, list[Future[float]]] = {name: [] for name in runs}
        while waiting:
            for future in wait(waiting, EVERY, FIRST_COMPLETED)[0]:
                ended[name := waiting.pop(future)].append(future)
                if len(ended[name]) == len(runs[name]):
                    yield _submitted(name, ended[name], track_name, out, to)
            passed, count = time.perf_counter() - began, total - len(waiting)
            rest = f"; {duration(passed / count * len(waiting))} left" if count and waiting else ""
            yield f"{count} of {total} seeds, {duration(passed)} so far{rest}"


def _submitted(name: str, ended: Sequence[Future[float]], track_name: str, out: Path, to: Path) -> str:
    """Write the submission of a row that has run, and say so; a row that failed does not stop the others."""
    try:
        seconds = sum(future.result() for future in ended)
        return f"wrote {folder.submit(out / name, track_name, 'defaults', to)} after {seconds:.0f} s of computing"
    except Exception as e:  # whatever it is: hours of other rows depend on it
        return f"{name} failed: {type(e).__name__}: {e}"
