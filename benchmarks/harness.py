"""What every benchmark shares: results that agree before times count, interleaved repeats, and where it all ran.

A benchmark does one piece of work in several ways in one process. `compare` warms every way, then runs them in turn, so
that a machine that slows down slows all of them; it reports median, spread and the ratio to the first way. Results must
agree before (`insist`): the times of different computations mean nothing.
"""

from __future__ import annotations

import gc
import os
import platform
import re
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import torch

import acclimate as ac
from acclimate.backends.vmap.capture import tf32
from acclimate.version import __version__

Scale: TypeAlias = Literal["full", "quick", "smoke"]
"""How much work: `full` for a GPU, `quick` for two CPU cores, `smoke` to see that everything runs."""

Record: TypeAlias = dict[str, Any]
"""What a benchmark found, as JSON."""


class Skipped(Exception):
    """A benchmark that cannot run here, with the reason."""


class Disagreement(Exception):
    """The ways of a benchmark do not compute the same, so their times are not compared."""


@dataclass(frozen=True)
class Way:
    """One way to do the work. Where one call does only a `share` of it, its seconds are scaled up, and that is said."""

    run: Callable[[], Any]
    share: float = 1.0
    repeats: int | None = None
    """At most so many, for slow ways; None: as many as the others."""
    warm: Callable[[], Any] | None = None
    """What to run before timing; None: `run` itself."""
    tf32: bool = False
    """Whether matrix products and convolutions may use TF32."""


@dataclass(frozen=True)
class Context:
    """Where, how much and how long a benchmark runs."""

    device: torch.device
    scale: Scale = "smoke"
    repeats: int = 3
    budget: float = 60.0
    """Seconds after which no further repeat or round begins."""
    rounds: int | None = None
    """Rounds of the benchmarks that train; None: their own number."""

    def sized(self, **sizes: Record) -> Record:
        """The sizes for this scale; a scale that is not named takes those of the next smaller one."""
        order = ("full", "quick", "smoke")
        return next(sizes[s] for s in order[order.index(self.scale) :] if s in sizes)


def wait(device: torch.device) -> None:
    """Until the device has done all that was asked of it."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


@contextmanager
def phase(name: str) -> Iterator[Record]:
    """A part of a benchmark: stderr has its seconds when it is over, also where the benchmark is stopped in it. The
    record holds them, too."""
    took: Record = {}
    began, ended = time.perf_counter(), "stopped after"
    try:
        yield took
        ended = "took"
    finally:
        took["seconds"] = time.perf_counter() - began
        print(f"  {name}: {ended} {took['seconds']:.1f} s", file=sys.stderr, flush=True)


def seconds(f: Callable[[], Any], device: torch.device) -> float:
    """Wall-clock seconds of one call, the device's work included."""
    wait(device)
    began = time.perf_counter()
    f()
    wait(device)
    return time.perf_counter() - began


def compare(ways: dict[str, Way], context: Context) -> Record:
    """Seconds of every way (median, spread, repeats), and how many times faster than the first one each is; also
    seconds of what ran before timing, in which kernels are compiled and chosen."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    first: dict[str, float] = {}
    for name, way in ways.items():
        with tf32(way.tf32), phase(f"{name}, for the first time") as took:
            (way.warm or way.run)()
            wait(context.device)
        first[name] = took["seconds"]
    began = time.perf_counter()
    for turn in range(context.repeats):
        for name, way in ways.items():
            enough = turn >= (way.repeats or context.repeats) or time.perf_counter() - began > context.budget
            if turn and enough:
                continue
            with tf32(way.tf32):
                times[name].append(seconds(way.run, context.device) / way.share)
    return {
        "seconds": {name: summary(t) for name, t in times.items()},
        "times_faster": ratios({name: statistics.median(t) for name, t in times.items()}),
        "scaled_from_share": {name: way.share for name, way in ways.items() if way.share != 1.0},
        "seconds_of_first_calls": first,
    }


def summary(times: Sequence[float]) -> Record:
    """Median, spread (largest minus smallest) and number of repeats."""
    return {"median": statistics.median(times), "spread": max(times) - min(times), "repeats": len(times)}


def ratios(medians: dict[str, float]) -> dict[str, float]:
    """How many times faster than the first way the others are."""
    first, *others = medians
    return {name: medians[first] / medians[name] for name in others}


def insist(distances: dict[str, float], limit: float) -> Record:
    """Distances from the reference result, as a record; refuses where one is above the limit (or not a number)."""
    wrong = {name: d for name, d in distances.items() if not d <= limit}
    if wrong:
        told = ", ".join(f"{name} is {d:.1e} away" for name, d in wrong.items())
        raise Disagreement(f"{told}; allowed is {limit:.0e}: times would mean nothing")
    return {"agree": True, "distance": distances, "allowed": limit}


def environment(device: torch.device) -> Record:
    """Device, versions, commit and command: no host or user names, no folders."""
    import numpy

    return {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else f"cpu, {platform.machine()}",
        "threads": torch.get_num_threads(),
        "acclimate": __version__,
        "commit": commit(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "command": command(),
    }


def commit() -> str | None:
    """The variable ACCLIMATE_COMMIT (for a copy whose history is another's), else what git says about this tree."""
    root, told = Path(__file__).resolve().parents[1], os.environ.get("ACCLIMATE_COMMIT")
    if told or not (root / ".git").exists():
        return told
    try:
        line = ["git", "describe", "--always", "--dirty"]
        return subprocess.run(line, cwd=root, capture_output=True, text=True, timeout=10, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None


PLACES = ("--out", "--trainings", "--blazefl", "--pfllib")
"""Options that name a place, which is nobody else's."""


def command(argv: Sequence[str] | None = None) -> str:
    """The command line without the places that things are written to; of files it names no folders."""
    script, *words = sys.argv if argv is None else argv
    kept = [w for before, w in zip(["", *words], words, strict=False) if not {before, w} & set(PLACES)]
    kept = [w for w in kept if not w.startswith(tuple(f"{option}=" for option in PLACES))]
    return shlex.join(["python", f"benchmarks/{Path(script).name}", *(re.sub(r"(^|=)/.*/", r"\1", w) for w in kept)])


def trained(experiment: ac.Experiment, folder: Path | None) -> ac.Fit:
    """A training. With a folder it is kept there, and read when it is asked for again."""
    own = folder and folder / experiment.training_hash()[:16]
    if own and (own / "state.safetensors").exists():
        return ac.load(own, backend=experiment.backend, device=experiment.device)
    fit = ac.train(experiment)
    if own:
        fit.save(own, overwrite=True)
    return fit


@contextmanager
def peak_memory(device: torch.device) -> Iterator[Record]:
    """A record that holds the device's peak memory (GiB) afterwards; nothing on a CPU."""
    record: Record = {}
    gc.collect()
    if device.type != "cuda":
        yield record
        return
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device)
    yield record
    record["peak_memory_gib"] = torch.cuda.max_memory_allocated(device) / 2**30
