"""Runs the benchmarks one after the other, each guarded, and writes what is known after each.

`benchmarks/gpu.py` and `benchmarks/cpu.py` are this with their own defaults.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import limits
import torch
from harness import Context, Disagreement, Record, Scale, Skipped, environment, peak_memory
from workloads import WORKLOADS, Workload

DEFAULTS: dict[Scale, tuple[int, float, float]] = {
    "full": (5, 60.0, 500.0),
    "quick": (3, 20.0, 130.0),
    "smoke": (1, 60.0, 240.0),
}
"""Repeats, seconds for one benchmark's repeats, and seconds after which none starts: nine minutes, and three."""


class OutOfTime(BaseException):
    """A benchmark took too long. No Exception: what tries a kernel or a model and takes the next must not catch it."""


def main(scale: Scale, about: str | None, default: tuple[str, ...] = tuple(WORKLOADS)) -> None:
    """Parse the command line, run, print a table, and fail where a benchmark failed."""
    args = _parser(about, default).parse_args()
    device = torch.device("cpu" if args.smoke or not torch.cuda.is_available() else "cuda")
    if scale == "full" and device.type == "cpu" and not args.smoke:
        raise SystemExit("this is the GPU set and there is no CUDA device; try --smoke, or benchmarks/cpu.py")
    scale = "smoke" if args.smoke else scale
    if device.type == "cpu":
        torch.set_num_threads(args.threads)
    repeats, budget, limit = DEFAULTS[scale]
    context = Context(device, scale, args.repeats or repeats, args.budget or budget, args.rounds)
    chosen = [n for n in WORKLOADS if n in (args.only or default) and n not in args.skip]
    report = run(chosen, context, args.limit or limit, args.out)
    if any(r["status"] in ("failed", "disagrees") for r in report["workloads"].values()):
        raise SystemExit(1)


def _parser(about: str | None, default: tuple[str, ...]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    named = {"nargs": "+", "default": [], "choices": tuple(WORKLOADS), "metavar": "NAME"}
    parser.add_argument("--only", **named, help=f"of {', '.join(WORKLOADS)}")
    parser.add_argument("--skip", **named, help="leave these out")
    parser.add_argument("--out", type=Path, help="write the figures as JSON, after each benchmark")
    parser.add_argument("--repeats", type=int, help="of every way")
    parser.add_argument("--rounds", type=int, help="rounds of the benchmarks that train")
    parser.add_argument("--budget", type=float, help="seconds after which a benchmark repeats no more")
    parser.add_argument("--limit", type=float, help="seconds after which no benchmark starts")
    parser.add_argument("--threads", type=int, default=1, help="of torch, where there is no GPU")
    parser.add_argument("--smoke", action="store_true", help="everything, tiny, on the CPU")
    return parser


def run(names: list[str], context: Context, limit: float, out: Path | None) -> Record:
    """Ceilings, then every benchmark; the report as far as it is known is written after each."""
    began = time.perf_counter()
    report: Record = {**environment(context.device), "scale": context.scale, "workloads": {}}
    report["ceilings"] = limits.ceilings(context)
    print(f"{report['device']}, torch {report['torch']}, commit {report['commit']}", flush=True)
    for name in names:
        left = limit - (time.perf_counter() - began)
        started = time.perf_counter()
        record = guarded(WORKLOADS[name], context, report["ceilings"], left)
        record["took_seconds"] = time.perf_counter() - started
        report["workloads"][name] = record
        report["took_seconds"] = time.perf_counter() - began
        print(line(name, record), flush=True)
        if out:
            _write(out, report)
    return report


def guarded(workload: Workload, context: Context, ceilings: Record, left: float) -> Record:
    """A workload's record with a status; what goes wrong in one does not lose the others."""
    if left <= 0:
        return {"status": "skipped", "reason": "out of time"}
    try:
        with _alarm(min(2 * context.budget, left + 20)), peak_memory(context.device) as memory:
            record = workload(context, ceilings)
        return {"status": "ok", **record, **memory}
    except Skipped as reason:
        return {"status": "skipped", "reason": str(reason)}
    except Disagreement as reason:
        return {"status": "disagrees", "reason": str(reason)}
    except OutOfTime as reason:
        return {"status": "failed", "reason": str(reason), "stopped_in": _places(reason)}
    except Exception as error:
        told = str(error).strip().splitlines()[0] if str(error).strip() else ""
        place = _places(error)[-1].partition(" ")[0]
        return {"status": "failed", "reason": f"{type(error).__name__}: {told} ({place})"}


def _places(error: BaseException) -> list[str]:
    """Where it was raised, the outermost call first: `file.py:12 function`."""
    frames = traceback.extract_tb(error.__traceback__)
    return [f"{os.path.basename(frame.filename)}:{frame.lineno} {frame.name}" for frame in frames]


@contextmanager
def _alarm(limit: float) -> Iterator[None]:
    """Raise OutOfTime in this process when so many seconds have passed."""

    def ring(*_: object) -> None:
        raise OutOfTime(f"took longer than {limit:.0f} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, limit)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def line(name: str, record: Record) -> str:
    """A benchmark in one line of the printed table."""
    if record["status"] != "ok":
        return f"{name:20s} {record['status']}: {record['reason']}"
    told = []
    if "seconds" in record:
        ratio = {n: f" ({r:.1f} x)" for n, r in record.get("times_faster", {}).items()}
        told += [f"{n} {t['median']:.4g} s{ratio.get(n, '')}" for n, t in record["seconds"].items()]
    if "cost_in_seeds" in record:
        told.append(f"three seeds cost {record['cost_in_seeds']:.2f} of one")
    told += [f"{a['adapter']} {a['times_faster']:.1f} x" for a in record.get("adapters", [])]
    if "run" in record:
        per = record["run"]["seconds_per_round"]["mean"]
        told.append(f"{record['run']['rounds']} rounds with evaluation: {per:.4g} s each")
    if "padding" in record:
        told.append(f"padding {100 * record['padding']['waste']:.1f} %")
    if "profile" in record:
        told += [f"{k['name'][:32]} {100 * k['share']:.0f} %" for k in record["profile"]["kernels"][:3]]
    return f"{name:20s} " + "   ".join(told)


def _write(path: Path, report: Record) -> None:
    part = path.with_name(path.name + ".part")
    part.write_text(json.dumps(report, indent=1) + "\n")
    part.replace(path)
