"""The first table of docs/performance.md: the newest stored figure of everything that speed is measured by.

python benchmarks/newest.py

After a new run, store its file, name it in `ROWS` where it replaces another, and put what this prints into the page:
a test holds the two against each other.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tables import table

Record = dict[str, Any]
Figure = tuple[float | None, str]
"""What is held against the goal, in its unit (None where nothing was measured), and what is said."""

RESULTS = Path(__file__).parents[1] / "results"
MOST = "at most "
HEAD = ("work", "goal", "reached", "measured", "command", "commit", "file")


class Row(NamedTuple):
    """One kind of work. A goal is a number and its unit; of seconds fewer are better, of everything else more, unless
    it begins with `MOST`."""

    work: str
    goal: str
    figure: Callable[..., Figure]
    files: tuple[str, ...]
    workload: str = ""
    """A workload of gpu.py; other commands are those of the first file."""


def took(seconds: float) -> str:
    """Three digits, in milliseconds below a tenth of a second."""
    return f"{1000 * seconds:.3g} ms" if seconds < 0.1 else f"{seconds:.3g} s"


def against_loop(workload: str, way: str = "ours") -> Callable[[Record], Figure]:
    """How many times faster than the plain loop a way of a workload is; of several runs the least counts."""

    def one(report: Record) -> Figure:
        record = report["workloads"][workload]
        if record["status"] != "ok":
            return None, f"not measured: {record['reason']}"
        times, seconds = record["times_faster"][way], record["seconds"]
        share = record["scaled_from_share"].get("plain")
        scaled = f", scaled from {100 * share:.0f} % of its steps" if share else ""
        loop = f"the loop {took(seconds['plain']['median'])}{scaled}"
        return times, f"{times:.1f} times ({took(seconds[way]['median'])}, {loop})"

    def figure(*reports: Record) -> Figure:
        found = [one(report) for report in reports]
        return min((f[0] for f in found if f[0] is not None), default=None), "; ".join(f[1] for f in found)

    return figure


def whole_round(report: Record) -> Figure:
    """FLOPs of a round that count, as a share of the ceiling."""
    rates = report["workloads"]["fedavg-20"]["achieved"]["rates"]
    share = 100 * rates["ours, TF32"]["share_of_ceiling"]["tf32"]
    return share, f"{share:.0f} %"


def second_layer(report: Record) -> Figure:
    """The mean of the three products of the second layer of 20 clients in TF32."""
    rows = [r for r in report["implicit"]["rows"] if (r["layer"], r["precision"]) == ("cnn, second layer", "tf32")]
    shares = {r["operation"]: 100 * r["share_of_ceiling"] for r in rows}
    names = {"convolve": "forward", "spread": "to its input", "correlate": "to its weights"}
    mean = statistics.mean(shares[kind] for kind in names)
    return mean, f"{mean:.0f} % ({', '.join(f'{word} {shares[kind]:.0f}' for kind, word in names.items())})"


def pfl_research(report: Record) -> Figure:
    """A whole training, against the seconds that the peer took on such a GPU."""
    record = report["workloads"]["pfl-cifar10"]
    times, each = record["pfl_research"]["times_faster"], record["run"]["seconds_per_round"]["mean"]
    rounds, peer = record["run"]["rounds"], record["pfl_research"]["seconds_per_round"]
    return times, f"{times:.1f} times ({took(each)} a round over {rounds:,} rounds, the peer {took(peer)})"


def seeds(report: Record) -> Figure:
    """Three seeds in one training."""
    seconds = {way: t["median"] for way, t in report["workloads"]["three-seeds"]["seconds"].items()}
    return seconds["three seeds"], f"{took(seconds['three seeds'])} (one seed {took(seconds['one seed'])})"


def recording(*reports: Record) -> Figure:
    """Seconds of a first round that no replay takes; the slowest of several tries counts."""
    tries = [r["seconds"]["first"] - r["seconds"]["replayed"] for r in reports]
    replayed = took(statistics.median(r["seconds"]["replayed"] for r in reports))
    taken, whole = (_listed(times) for times in (tries, [r["seconds"]["first"] for r in reports]))
    return max(tries), f"{taken} (the first round {whole}, a replayed one {replayed})"


def _listed(times: Sequence[float]) -> str:
    """Times in a row, the last after an and."""
    return " and ".join(", ".join(map(took, times)).rsplit(", ", 1))


def lora(report: Record) -> Figure:
    """A step of ViT-S/16 under LoRA."""
    record = report["precisions"]["bf16"]
    share = 100 * record["work"]["rates"]["captured"]["share_of_ceiling"]["bf16"]
    return share, f"{share:.0f} % ({took(record['seconds']['captured']['median'])} a step)"


def adapters(*reports: Record) -> Figure:
    """All adapters, of each the file that comes last."""
    rows = {row["adapter"]: row for report in reports for row in report["rows"]}
    times = statistics.median(row["times_faster"] for row in rows.values())
    least = min(rows, key=lambda name: rows[name]["times_faster"])
    rates = sorted((1000 / row["milliseconds_per_sample"]["vectorised"], name) for name, row in rows.items())
    (slow, last), (fast, first) = rates[0], rates[-1]
    ends = f"{slow:,.0f} (`{last}`) to {fast:,.0f} (`{first}`) samples a second"
    worst = rows[least]["times_faster"]
    return worst, f"{len(rows)} of them: {worst:.1f} (`{least}`) times the loop or more, median {times:.1f}; {ends}"


def mbsl(report: Record) -> Figure:
    """Seconds of the four sets, with nothing compiled before; and when all of it is recorded."""
    first, second = (sum(report["seconds"][turn]) for turn in ("first", "second"))
    return first, f"{took(first)} for {len(report['images'])} sets ({took(second)} when they come again)"


def million(report: Record) -> Figure:
    """A round of a cohort out of a million clients against one out of a thousand."""
    ratio, largest = report["mapped"]["largest_over_smallest"], max(map(int, report["mapped"]["clients"]))
    smallest = min(map(int, report["mapped"]["clients"]))
    return ratio, f"{ratio:.2f} times a round out of {smallest:,} ({largest:,} clients, cohorts of 100)"


def theplus(report: Record) -> Figure:
    """All that the cores give both ways, and what the adapter's steps take by themselves."""
    (row,) = (r for r in report["rows"] if r["adapter"] == "THEPlus")
    per, times = row["milliseconds_per_sample"], row["times_faster"]
    alone, bound = per["the steps alone"], per["loop"] / per["the steps alone"]
    return (
        times,
        f"{times:.1f} times the loop ({per['vectorised']:.0f} ms a sample; steps alone {alone:.0f}, {bound:.1f})",
    )


def flower(report: Record) -> Figure:
    """CPU seconds, because the machine was busy."""
    used, times = report["median_cpu_seconds"], report["times_less_computing"]["flower"]
    return times, f"{times:.2f} times less CPU time ({took(used['ours'])}, Flower {took(used['flower'])})"


ROUND, RESNETS, OTHERS, ZIPF, SEEDS, RESNET18, BLAZEFL = (
    f"benchmarks/gpu-h200-{name}.json"
    for name in ("fedavg", "resnets", "others", "zipf", "seeds", "resnet18", "blazefl")
)
COLD = tuple(f"benchmarks/recording-h200{n}.json" for n in ("", "-again", "-once-more"))
EVERY = tuple(f"benchmarks/testtime-every-h200{n}.json" for n in ("", "-second", "-third"))
FEDAVG = "FedAvg, 20 clients, CNN"
ROWS = (
    Row(f"{FEDAVG}, fp32", "50 times", against_loop("fedavg-20"), (ROUND,), "fedavg-20"),
    Row(f"{FEDAVG}, TF32", "90 times", against_loop("fedavg-20", "ours, TF32"), (ROUND,), "fedavg-20"),
    Row(f"{FEDAVG}, bf16", "130 times", against_loop("fedavg-20", "ours, bf16"), (ROUND,), "fedavg-20"),
    Row("that round in TF32, of the TF32 ceiling", "", whole_round, (ROUND,), "fedavg-20"),
    Row("its second layer alone, of that", "30 %", second_layer, ("benchmarks/conv-h200-layers.json",)),
    Row("three seeds of it, TF32", "0.25 s", seeds, (SEEDS,), "three-seeds"),
    Row("pfl-research's CIFAR-10", "45 times", pfl_research, (OTHERS,), "pfl-cifar10"),
    Row("FLUTE's FEMNIST", "15 times", against_loop("flute-femnist"), (OTHERS,), "flute-femnist"),
    Row("200 clients of Zipf sizes", "25 times", against_loop("zipf"), (ZIPF,), "zipf"),
    Row("ResNet20, group norm, TF32", "30 times", against_loop("resnet20-gn", "ours, TF32"), (RESNETS,), "resnet20-gn"),
    Row("ResNet20, batch norm, TF32", "30 times", against_loop("resnet20-bn", "ours, TF32"), (RESNETS,), "resnet20-bn"),
    Row("ResNet-18, TF32", "8 times", against_loop("resnet18", "ours, TF32"), (RESNET18,), "resnet18"),
    Row("BlazeFL's CNN, fp32", "", against_loop("blazefl-cnn"), (BLAZEFL,), "blazefl-cnn"),
    Row("BlazeFL's CNN, bf16", "", against_loop("blazefl-cnn", "ours, bf16"), (BLAZEFL,), "blazefl-cnn"),
    Row(
        "BlazeFL's ResNet-18, TF32", "", against_loop("blazefl-resnet18", "ours, TF32"), (BLAZEFL,), "blazefl-resnet18"
    ),
    Row("LoRA on ViT-S/16, of the bf16 ceiling", "50 %", lora, ("benchmarks/lora-h200.json",)),
    Row("recording 875 steps, kernels in the cache", "3 s", recording, ("benchmarks/recording-h200-cached.json",)),
    Row("recording 875 steps, kernels to be compiled", "3 s", recording, COLD),
    Row("adapters on a GPU, each", "10 times", adapters, EVERY),
    Row("MBSL on sets of PACS' sizes", "25 s", mbsl, ("benchmarks/mbsl-h200.json",)),
    Row("a million clients, CPU", f"{MOST}1.2 times", million, ("benchmarks/scale-cpu-million.json",)),
    Row("a million clients, GPU", f"{MOST}1.2 times", million, ("benchmarks/scale-h200-million.json",)),
    Row("THE+ on two CPU cores", "4 times", theplus, ("benchmarks/testtime-cpu-cores.json",)),
    Row("a round on two CPU cores against Flower, ARM", "1.6 times", flower, ("benchmarks/cpu.json",)),
    Row("a round on two CPU cores against Flower, x86", "1.6 times", flower, ("benchmarks/cpu-x86-flower.json",)),
)


def read(file: str) -> Record:
    """A file below results/."""
    record: Record = json.loads((RESULTS / file).read_text())
    return record


def reached(goal: str, value: float | None) -> str:
    """Whether the figure is at least as good as its goal; nothing where there is none."""
    if not goal or value is None:
        return ""
    number, unit = goal.removeprefix(MOST).split(maxsplit=1)
    less = unit == "s" or goal.startswith(MOST)
    return "yes" if (value <= float(number) if less else value >= float(number)) else "no"


def cells(row: Row) -> list[str]:
    """A line of the table."""
    reports = [read(file) for file in row.files]
    value, text = row.figure(*reports)
    first = {**reports[0], **reports[0].get("environment", {})}
    command = f"gpu.py --only {row.workload}" if row.workload else _asked(reports[0], first)
    commits = dict.fromkeys({**r, **r.get("environment", {})}.get("commit", "not stored") for r in reports)
    files = ", ".join(f"`{f'results/{file}'.removeprefix('results/benchmarks/')}`" for file in row.files)
    return [row.work, row.goal, reached(row.goal, value), text, f"`{command}`", ", ".join(commits), files]


def _asked(report: Record, about: Record) -> str:
    """The command that measured it; of a table of a recipe, that of its trainings."""
    records = report.get("records")
    command: str = records[0]["command"] if records else about["command"]
    return command.removeprefix("python benchmarks/")


def ceilings() -> str:
    """What matrix products and copies reached in the runs of the table."""
    found = []
    for report in (read(file) for file in dict.fromkeys(file for row in ROWS for file in row.files)):
        parts = [report, *report.get("precisions", {}).values()]
        found += [part["ceilings"] for part in parts if "ceilings" in part]

    def span(values: list[float], form: str) -> str:
        return f"{min(values) / 1e12:{form}} to {max(values) / 1e12:{form}}"

    kinds = {"fp32": "fp32", "TF32": "tf32", "bf16": "bf16"}
    rates = {name: span([c["flop_per_second"][kind] for c in found], ".3g") for name, kind in kinds.items()}
    told = ", ".join(f"{name} {rate}" for name, rate in rates.items())
    return f"{told} TFLOP/s; a copy {span([c['bytes_per_second'] for c in found], '.2f')} TB/s"


def page() -> str:
    """The table, and the ceilings."""
    return "\n".join([*table(HEAD, [cells(row) for row in ROWS]), ceilings()])


if __name__ == "__main__":
    print(page())
