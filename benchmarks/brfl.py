"""Every adapter on every stream of a federated CIFAR-10: accuracy, milliseconds per sample and memory.

A row is one adapter on one deployment (FedAvg, FedAvg with fine-tuning, or the method that an adapter belongs to), one
level of label skew, one stream and one seed. The streams are BRFL's, where their data is at hand, and two in which
classes or corruptions come in runs. The model is the CNN with batch norm (with instance-aware batch norm for NOTE), so
that every adapter can serve it.

    python benchmarks/brfl.py [--alphas 0.1,1.0] [--seeds 0,1,2] [--adapters bn,tent] [--clients 20] [--rounds 100]
        [--data cifar10] [--model cnn-bn] [--device cuda]
    python benchmarks/brfl.py --data digits --model cnn-small --clients 10 --rounds 10 --alphas 0.05 --patience 0
        --streams blends,few-samples --out results/adapters/newer-streams.json      the world of benchmarks/live.py
    python benchmarks/brfl.py --merge part-1.json part-2.json      what runs side by side wrote, in one file

Tables and who is above whom are written beside the file, as Markdown.

Milliseconds are those of a second time, when everything is recorded; `first_ms_per_sample` has the recording in it.
What took longer than --patience seconds is not served again. A training that diverges has rows that say so. Rows that
are in the file already are not run again, and with --trainings FOLDER no training that was kept there, so a run that
was cut goes on where it was.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from harness import command, environment, integers, kept, parser_of, peak_memory, seconds, write

import acclimate as ac
from acclimate import store
from acclimate.core import Adapter
from acclimate.eval.rows import summary_of
from acclimate.experiment import catalogue
from acclimate.ops import layout
from acclimate.ops.devices import device_of
from live import CASES, Case, Lab

Row = dict[str, Any]
STREAMS = "original,corrupted,out-of-client,mixture,continual,correlated"
PLAIN = [Case("none"), Case("none", "fedthe"), *(c for c in CASES if c.personal != "finetune")]
TUNED = [c._replace(personal="finetune") for c in PLAIN if c.method == "fedavg" and c.personal == "none"]


class Deployed(Lab):
    """Trainings and streams of one level of skew; models without what a guard knows."""

    def __init__(self, base: ac.Experiment, streams: Sequence[str], folder: Path | None) -> None:
        super().__init__(base, streams, folder)
        self._last = Case("")
        self._failures: dict[tuple[str, str, int], str] = {}

    def failure(self, case: Case, seed: int) -> str:
        """Why there is no training, "" where there is one: what diverges once is not tried for every stream."""
        key = (case.method, case.norm, seed)
        if key not in self._failures:
            try:
                self.fit(case, seed)
                self._failures[key] = ""
            except ArithmeticError as reason:
                self._failures[key] = str(reason)
        return self._failures[key]

    def models(self, case: Case, seed: int) -> Any:
        """The deployed models, with what this adapter wants of each client's validation examples."""
        key, fit = (case.method, case.personal, case.norm, seed), self.fit(case, seed)
        if case != self._last:
            fit.engine.recorder.forget()  # what the case before this one recorded is none of this one's memory
            self._last = case
        if key not in self._models:
            down = fit.worker.method.download(fit.worker.task, fit.state.server)
            self._models[key] = fit.engine.deploy(down, fit.state.mine, catalogue.PERSONALS[case.personal])
        record: Adapter = catalogue.ADAPTERS[case.adapter]
        held = fit.world.shards(fit.world.val)
        return fit.engine.calibrated(self._models[key], held, record) if record.calibrates else self._models[key]


def measured(lab: Deployed, case: Case, stream: str, seed: int, patience: float) -> Row:
    """Accuracy per client in percent, milliseconds per sample and the peak of memory; or why there are none."""
    if failed := lab.failure(case, seed):
        return {"failed": failed}
    fit, models = lab.fit(case, seed), lab.models(case, seed)
    shift, built = lab.streams(case, seed)[stream]
    record, device, served = catalogue.ADAPTERS[case.adapter], fit.engine.device, []
    if reason := record.refusal(fit.worker.task, fit.engine.model_of(models, 0)):
        return {"refused": reason}

    def serve() -> None:
        served.append(fit.engine.serve(models, built.shards, record, shift.protocol))

    with peak_memory(device) as memory:
        first = seconds(serve, device)
    again = seconds(serve, device) if first < patience else first
    found, samples = summary_of(served[0]), int(built.shards.n.sum())
    return {
        "accuracy": round(100 * found.accuracy, 3),
        "clients": [round(100 * a, 2) for a in found.per_client],
        "ms_per_sample": round(1e3 * again / samples, 4),
        "first_ms_per_sample": round(1e3 * first / samples, 4),
        **{name: round(value, 3) for name, value in memory.items()},
    }


def table(rows: Iterable[Row], names: Sequence[str], alpha: float) -> str:
    """Means over seeds as Markdown, a row per deployment and adapter: accuracy, the number of seeds (`1 to 2` where
    streams differ in it), the median of milliseconds per sample, and the largest peak of memory, where there is one."""
    rows = [r for r in rows if r["alpha"] == alpha and "accuracy" in r]
    lines = []
    for label, streams in means(rows, alpha).items():
        own = [r for r in rows if r["case"] == label]
        shown = [f"{streams[s]:.1f}" if s in streams else "" for s in names]
        memory = max((r["peak_memory_gib"] for r in own if "peak_memory_gib" in r), default=None)
        took = f"{statistics.median(r['ms_per_sample'] for r in own):.3f}"
        lines.append([label, *shown, _seeds(own), took, "" if memory is None else f"{memory:.2f}"])
    return "\n".join(layout.table(["", *names, "seeds", "ms per sample", "GiB"], lines, words=1))


def _seeds(own: Sequence[Row]) -> str:
    """How many seeds the streams of one row have."""
    found = [len({r["seed"] for r in own if r["stream"] == s}) for s in {r["stream"] for r in own}]
    return str(min(found)) + f" to {max(found)}" * (max(found) > min(found))


def page(rows: Iterable[Row], names: Sequence[str], alphas: Sequence[float], study: Row) -> str:
    """All tables and what follows from them, as Markdown."""
    rows = list(rows)
    about = "{data}, {clients} clients, {model}, {rounds} rounds".format(**study)
    seeds = sorted({r["seed"] for r in rows})
    parts = [f"# Every adapter on every stream\n\n{about}; seeds {', '.join(map(str, seeds))}; accuracy in percent."]
    for alpha in alphas:
        told = verdicts(rows, names, alpha).replace("\n", "\n\n")
        parts.append(f"## Dirichlet({alpha})\n\n{table(rows, names, alpha)}\n\n{told}")
    return "\n\n".join(parts) + "\n"


def means(rows: Iterable[Row], alpha: float) -> dict[str, dict[str, float]]:
    """Accuracy by case and stream, the mean over seeds."""
    found: dict[str, dict[str, list[float]]] = {}
    for r in rows:
        if r["alpha"] == alpha and "accuracy" in r:
            found.setdefault(r["case"], {}).setdefault(r["stream"], []).append(r["accuracy"])
    return {case: {s: statistics.mean(v) for s, v in own.items()} for case, own in found.items()}


def not_adapted(case: str) -> str:
    """The case that has the same model and does not adapt: what is only noted beside a model does not change it. Of a
    model with another norm none is measured, and no case has this name."""
    deployed, _, adapter = case.partition("/")
    method, _, personal = deployed.partition("+")
    if adapter in {c.adapter for c in CASES if c.norm != "batch"}:
        return ""
    return f"{method}+finetune/none" if personal == "finetune" else f"{method}/none"


def verdicts(rows: Iterable[Row], names: Sequence[str], alpha: float) -> str:
    """Which cases are above not adapting on every stream, and which above FedTHE on every stream or in the mean; two
    cases are compared over the seeds that both have."""
    each: dict[str, dict[str, dict[int, float]]] = {}
    for r in rows:
        if r["alpha"] == alpha and "accuracy" in r:
            each.setdefault(r["case"], {}).setdefault(r["stream"], {})[r["seed"]] = r["accuracy"]
    found = {case: own for case, own in each.items() if set(names) <= set(own)}

    def gaps(case: str, other: str) -> list[float]:
        """How far a case is above another, by stream; none where they share no seed."""
        pairs = [(found[case][s], found[other][s]) for s in names] if other in found and other != case else []
        shared = [[a[seed] - b[seed] for seed in set(a) & set(b)] for a, b in pairs]
        return [statistics.mean(gap) for gap in shared] if all(shared) else []

    def above(than: Callable[[str], str], judge: Callable[[list[float]], bool]) -> list[str]:
        known = {case: gaps(case, than(case)) for case in found}
        return [case for case, gap in known.items() if gap and judge(gap)]

    def all_above(gap: list[float]) -> bool:
        return min(gap) > 0

    told = {
        "above not adapting on every stream": above(not_adapted, all_above),
        "above FedTHE on every stream": above(lambda case: "fedthe/the", all_above),
        "above FedTHE in the mean over streams": above(lambda case: "fedthe/the", lambda gap: sum(gap) > 0),
    }
    return "\n".join(f"{what}: {', '.join(cases) or 'none'}" for what, cases in told.items())


def read(path: Path, study: Row) -> dict[str, Row]:
    """The rows that a file has; an error where they are of another study."""
    return {name_of(r): r for r in kept(path, study)}


def name_of(row: Row) -> str:
    """`fedavg/tent 0.1 original 0`"""
    return f"{row['case']} {row['alpha']} {row['stream']} {row['seed']}"


def runs(where: Row) -> list[str]:
    """`abc1234: python benchmarks/brfl.py ...` of the run, or of each of the runs, that a file is of."""
    return where.get("parts") or [f"{where['commit']}: {where['command']}"]


def save(path: Path, study: Row, where: Row, rows: dict[str, Row]) -> None:
    """Write all rows, in the order of their names."""
    record = {"environment": where, "study": study, "rows": [rows[name] for name in sorted(rows)]}
    write(path, record)


def main() -> None:
    """Train, measure what is missing, write after each row, print tables."""
    parser = parser_of(__doc__)
    parser.add_argument("--data", choices=("digits", "cifar10"), default="cifar10")
    parser.add_argument("--model", choices=list(catalogue.MODELS), default="cnn-bn")
    parser.add_argument("--alphas", type=lambda s: [float(a) for a in s.split(",")], default=[0.1, 1.0])
    parser.add_argument("--seeds", type=integers, default=[0, 1, 2])
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--adapters", help="names, or labels such as fedavg+finetune/tent; default: all")
    parser.add_argument("--streams", default=STREAMS)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--trainings", type=Path, help="a folder that keeps trainings, for the next run")
    parser.add_argument("--patience", type=float, default=5.0)
    parser.add_argument("--merge", type=Path, nargs="+", help="files that were measured elsewhere; runs nothing")
    parser.add_argument("--out", type=Path, default=Path("results/adapters/brfl.json"))
    given = parser.parse_args()
    study = {"data": given.data, "clients": given.clients, "rounds": given.rounds, "model": given.model}
    if given.merge:
        study = json.loads(given.merge[0].read_text())["study"]
    rows, names = read(given.out, study), given.streams.split(",")
    if given.merge:
        parts = [json.loads(p.read_text())["environment"] for p in given.merge]
        rows |= {name: row for part in given.merge for name, row in read(part, study).items()}
        where = {**parts[0], "command": command(), "parts": [run for part in parts for run in runs(part)]}
        save(given.out, study, where, rows)
    wanted = given.adapters.split(",") if given.adapters else list(catalogue.ADAPTERS)
    cases = [] if given.merge else [c for c in (*PLAIN, *TUNED) if {c.label, c.adapter} & set(wanted)]
    data: Any = ac.data.Digits if given.data == "digits" else ac.data.CIFAR10
    for alpha in given.alphas:
        dealt = data(clients=given.clients, partition=ac.data.Dirichlet(alpha))
        base = ac.Experiment(data=dealt, model=catalogue.MODELS[given.model], rounds=given.rounds, device=given.device)
        for seed in given.seeds:
            lab = Deployed(replace(base, backend=ac.backends.Vmap(), eval_every=given.rounds), names, given.trainings)
            for case in cases:
                for stream in names:
                    place = {"case": case.label, "alpha": alpha, "stream": stream, "seed": seed}
                    if name_of(place) in rows:
                        continue
                    found = measured(lab, case, stream, seed, given.patience)
                    rows[name_of(place)] = {**place, **found}
                    save(given.out, study, environment(device_of(given.device)), rows)
                    print(
                        f"{name_of(place):48s} {found.get('accuracy', found)} {found.get('ms_per_sample', '')}",
                        flush=True,
                    )
            torch.cuda.empty_cache()
    text = page(rows.values(), names, given.alphas, study)
    store.write(given.out.with_suffix(".md"), text)
    print(f"\n{text}")


if __name__ == "__main__":
    main()
