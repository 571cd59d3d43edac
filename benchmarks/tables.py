"""Markdown tables of the figures that benchmarks/gpu.py or benchmarks/cpu.py wrote.

python benchmarks/tables.py figures.json
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from acclimate.ops import layout

Record = dict[str, Any]


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """A Markdown table, or nothing where there are no rows."""
    return [*layout.table(head, rows), ""] if rows else []


def ceilings(report: Record) -> list[str]:
    """What the device can do at most, as measured in the same run."""
    top = report["ceilings"]
    rows = [[f"matrix product, {kind}", f"{rate / 1e12:.1f} TFLOP/s"] for kind, rate in top["flop_per_second"].items()]
    return table(["ceiling", "measured"], [*rows, ["copy", f"{top['bytes_per_second'] / 1e9:.0f} GB/s"]])


def rounds(done: Record) -> list[str]:
    """Seconds of one round: first the loop, then every other way of the workload."""
    rows = []
    for name, record in done.items():
        for way, ratio in record.get("times_faster", {}).items():
            loop, *_ = record["seconds"]
            rows.append([name, way, _loop(record, loop), _took(record, way), f"{ratio:.1f}", *_rates(record, way)])
    head = ["workload", "way", "loop, s", "s", "times faster", "TFLOP/s", "of the fp32 ceiling", "GB/s"]
    return table(head, rows)


def _took(record: Record, way: str) -> str:
    t = record["seconds"][way]
    return f"{t['median']:.4g} ± {t['spread'] / 2:.1g}"


def _loop(record: Record, way: str) -> str:
    share = record["scaled_from_share"].get(way)
    scaled = f", scaled from {100 * share:.0f} %" if share else ""
    return f"{record['seconds'][way]['median']:.4g} ({way}{scaled})"


def _rates(record: Record, way: str) -> list[str]:
    if "achieved" not in record:
        return ["", "", ""]
    got = record["achieved"]["rates"][way]
    share = got["share_of_ceiling"].get("fp32")
    told = f"{100 * share:.0f} %" if share is not None else ""
    return [f"{got['flop_per_second'] / 1e12:.2f}", told, f"{got['bytes_per_second'] / 1e9:.0f}"]


def runs(done: Record) -> list[str]:
    """Whole trainings with their evaluations, and what the peer took per round."""
    rows = []
    for name, record in done.items():
        if "run" not in record:
            continue
        run, peer = record["run"], record.get("pfl_research") or record.get("flute_readme") or {}
        against = f"{peer['times_faster']:.1f} ({peer['seconds_per_round']:.3g} s)" if peer else ""
        per = run["seconds_per_round"]["mean"]
        rows.append([name, f"{run['rounds']:,}", f"{per:.4g}", f"{run['seconds']:.1f}", against])
    return table(["training", "rounds", "s per round", "s in all", "times faster than the peer"], rows)


def adapters(done: Record) -> list[str]:
    """Milliseconds per sample of the loop and of ours."""
    rows = []
    for name, record in done.items():
        for a in record.get("adapters", []):
            took = a["milliseconds_per_sample"]
            ours = took.get("vectorised", took.get("ours"))
            once = f"{took['vectorised, first time']:.4g}" if "vectorised, first time" in took else ""
            kind = name.removeprefix("adapters-")
            rows.append([a["adapter"], kind, f"{took['loop']:.4g}", once, f"{ours:.4g}", f"{a['times_faster']:.1f}"])
    heads = ["adapter", "loop", "loop, ms per sample", "ours, first time", "ours", "times faster"]
    return table(heads, rows)


def padding(done: Record) -> list[str]:
    """How much of the vectorised computation is undone."""
    kept = {name: r["padding"] for name, r in done.items() if "padding" in r}
    rows = [[name, f"{p['real_steps']:,}", f"{100 * p['waste']:.1f} %", str(p["groups"])] for name, p in kept.items()]
    return table(["uneven clients", "local steps", "padding", "groups"], rows)


def seeds(done: Record) -> list[str]:
    """What several seeds together cost."""
    kept = {name: r for name, r in done.items() if "cost_in_seeds" in r}
    rows = []
    for name, r in kept.items():
        ways = list(r["seconds"])
        for one, three in zip(ways[::2], ways[1::2], strict=True):
            cost = r["seconds"][three]["median"] / r["seconds"][one]["median"]
            rows.append([name, three, _took(r, one), _took(r, three), f"{cost:.2f}"])
    return table(["seeds", "way", "one, s", "three together, s", "cost of three in seeds"], rows)


def memory(done: Record) -> list[str]:
    """Peak memory on the device, all ways of the workload together."""
    rows = [[name, f"{r['peak_memory_gib']:.2f}"] for name, r in done.items() if "peak_memory_gib" in r]
    return table(["workload", "peak memory, GiB"], rows)


def profile(done: Record) -> list[str]:
    """Where the time of one round goes."""
    found = done.get("profile", {}).get("profile")
    if not found:
        return []
    rows = [[f"`{k['name'][:60]}`", f"{k['calls']:,}", f"{100 * k['share']:.1f} %"] for k in found["kernels"]]
    told = f"One round: {found['seconds']:.3f} s, of which the device is busy {found['busy_seconds']:.3f} s."
    return [told, "", *table(["kernel", "calls", "share"], rows)]


def missing(report: Record) -> list[str]:
    """What was not measured, and why."""
    gone = {name: r for name, r in report["workloads"].items() if r["status"] != "ok"}
    return table(["not measured", "why"], [[name, f"{r['status']}: {r['reason']}"] for name, r in gone.items()])


def page(report: Record) -> str:
    """All tables, below a line that says where the figures come from."""
    done = {name: r for name, r in report["workloads"].items() if r["status"] == "ok"}
    told = f"{report['device']}, torch {report['torch']}, commit {report['commit']}: `{report['command']}`"
    parts = [
        ceilings(report),
        *(f(done) for f in (rounds, runs, adapters, padding, seeds, memory, profile)),
        missing(report),
    ]
    return "\n".join([told, "", *(line for part in parts for line in part)])


def main() -> None:
    """Print the tables of a file."""
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    print(page(json.loads(Path(sys.argv[1]).read_text())))


if __name__ == "__main__":
    main()
