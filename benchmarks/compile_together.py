"""How long a rehearsal compiles with an empty cache: in child processes, in threads, and one kernel after the other.

What a workload's rehearsals leave out is noted on a GPU that is not there (`pretend.py`), and compiled for sm_90 as a
rehearsal does, each time into an empty cache and then again, with the C code of the launchers where this Triton has
any. Prints seconds of the clock and of the processor. Other programs disturb the former: look at the load beside it.
`modelled` does not look at the clock: one child after the other takes a task, and the processor seconds of all tell
when the last of them would end on so many cores, each of which takes the next task when it is done with one. `passes`
are processor seconds of Python that the work takes before it is replayed: it is gone through to note what it launches,
to run it where it cannot be recorded at once, and to record it. Tensors without numbers take longer there than a GPU's.

    python benchmarks/compile_together.py [--only recording] [--ways children threads alone] [--out figures.json]
    python benchmarks/compile_together.py --ways modelled --cores 16
    python benchmarks/compile_together.py --ways

The last one counts `passes` alone. Needs Triton and a C compiler, and no GPU. `taskset -c 0-3` gives it fewer cores.
"""

from __future__ import annotations

import argparse
import hashlib
import heapq
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest import mock

import pretend
import torch
import triton
from compile_kernels import cpu_seconds, noted_for, works
from harness import Record, environment
from triton.backends.nvidia import driver
from triton.runtime import build

from acclimate import store
from acclimate.core.nn import forked, rehearsal

WAYS = ("children", "threads", "alone")


class Launcher:
    """A launcher as Triton 3.6 makes it, without a GPU's library."""

    def __init__(self, src: Any, metadata: Any) -> None:
        if not hasattr(driver, "make_launcher"):
            return
        code: str = driver.make_launcher({}, src.signature, getattr(metadata, "tensordesc_meta", None))
        place = Path(triton.knobs.cache.dir) / hashlib.sha256(code.encode()).hexdigest()
        if place.with_suffix(".o").exists():
            return
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "launcher.c").write_text(code)
            made = build._build("launcher", f"{folder}/launcher.c", folder, [], driver.include_dirs, [], [])
            store.write(place.with_suffix(".o"), Path(made).read_bytes())


def compiled(noted: rehearsal.Noted, way: str) -> Record:
    """Seconds that this takes one of the ways, and what is there afterwards."""
    active = pretend._driver(90)
    active.launcher_cls = Launcher
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        stack.enter_context(mock.patch.object(triton.knobs.cache, "dir", folder))
        stack.enter_context(mock.patch.object(triton.runtime.driver, "_active", active))
        if way != "children":
            stack.enter_context(mock.patch.object(forked, "possible", return_value=False))
        if way == "alone":
            stack.enter_context(mock.patch.object(forked, "cores", return_value=1))
        busy = os.getloadavg()[0]
        took, elsewhere = _timed(noted)
        again, _ = _timed(noted)
        there = [path.suffix for path in Path(folder).rglob("*") if path.suffix in (".cubin", ".o")]
    counts = {"kernels": there.count(".cubin"), "launchers": there.count(".o"), "by_children": elsewhere}
    return {"way": way, **took, **counts, "wall_with_full_cache": again["wall"], "load_before": busy}


def modelled(noted: rehearsal.Noted, cores: int) -> Record:
    """Processor seconds of what children do, and when the last of so many would be done."""
    took: list[float] = []
    spread = forked.spread

    def one_by_one(tasks: Sequence[Callable[[], Any]], most: int) -> int:
        went_well = 0
        for task in tasks:
            began = cpu_seconds()
            went_well += spread([task], 1)
            took.append(cpu_seconds() - began)
        return went_well

    with mock.patch.object(forked, "spread", one_by_one):
        found = compiled(noted, "children")
    told = {"cores": cores, "children_cpu": sum(took), "longest": max(took), "makespan": makespan(took, cores)}
    kept = {name: found[name] for name in ("kernels", "launchers", "by_children")}
    return {"way": "modelled", **told, "bound": max(sum(took) / cores, max(took)), **kept}


def makespan(seconds: Iterable[float], cores: int) -> float:
    """When the last of these tasks ends, each of which goes to the core that is free first."""
    free = [0.0] * cores
    for each in seconds:
        heapq.heapreplace(free, free[0] + each)
    return max(free)


def _timed(noted: rehearsal.Noted) -> tuple[Record, int]:
    """Seconds until kernels are there that this process has not met, and how many of them children compiled."""
    for kernel, _ in noted.values():
        kernel.device_caches.clear()
    cpu, began = cpu_seconds(), time.perf_counter()
    elsewhere = rehearsal._compile(noted)
    return {"wall": time.perf_counter() - began, "cpu": cpu_seconds() - cpu}, elsewhere


def main() -> None:
    """Note, compile each way, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="recording", choices=tuple(works()), metavar="NAME", help=", ".join(works()))
    parser.add_argument("--ways", nargs="*", default=WAYS, choices=(*WAYS, "modelled"))
    parser.add_argument("--cores", type=int, default=16, help="cores that `modelled` is for")
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    given = parser.parse_args()
    began = time.process_time()
    launches = noted_for([given.only])[given.only].items()
    passes = round(time.process_time() - began, 2)
    print(f"Python's passes over the work {passes:.1f} s")
    noted = {key: (launch.kernel, launch.purpose) for key, launch in launches if launch.together}
    triton.runtime.cache.triton_key()  # once in a process, whatever is compiled
    found = []
    for way in given.ways:
        found.append(modelled(noted, given.cores) if way == "modelled" else compiled(noted, way))
        print(
            ", ".join(f"{k} {v:.3g}" if isinstance(v, float) else f"{k} {v}" for k, v in found[-1].items()), flush=True
        )
    if given.out:
        report = {"schema": "acclimate.compile_together/1", **environment(torch.device("cpu"))}
        report |= {"triton": triton.__version__, "cores": forked.cores(), "workload": given.only, "ways": found}
        report["passes"] = passes
        store.write(given.out, json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
