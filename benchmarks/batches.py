"""How adapters depend on the batch size, the normalisation and the mix of classes: embedded digits, one shift.

    python benchmarks/batches.py [--seeds 0,1,2] [--sizes 1,4,16,64] [--norms batch,group,none] [--device cpu]
    python benchmarks/batches.py --merge part-1.json part-2.json      what runs side by side wrote, in one file

Ten clients share a FedAvg model, once with few classes each (Dirichlet 0.05, the default world) and once with all
classes alike. Their streams are long: corruptions one after the other (`continual`), and classes in waves
(`correlated`). Rows that are in the file already are not run again.
"""

from __future__ import annotations

import json
import statistics
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from harness import command, environment, integers, parser_of, write
from torch import Tensor

import acclimate as ac
from acclimate.core import Adapter, Protocol
from acclimate.eval.rows import summary_of
from acclimate.experiment import catalogue
from acclimate.ops import layout
from acclimate.ops.devices import device_of
from acclimate.running.evaluate import streams_of

ADAPTERS = "none,bn,bn-running,tent,delta,roid,sar,rotta,unmix,t3a,lame,em,neo,neo-client"
PERSONAL = {"neo-client": "means"}
PARTITIONS = {"few classes": ac.data.Dirichlet(0.05), "all classes": ac.data.IID()}
STREAMS: dict[str, Any] = {"continual": ac.shifts.Continual(), "correlated": ac.shifts.Correlated()}


def rows_of(fit: ac.Fit, names: list[str], sizes: list[int], place: dict[str, Any]) -> list[dict[str, Any]]:
    """Accuracy of every adapter on both streams with every batch size."""
    engine, out = fit.engine, []
    down = fit.worker.method.download(fit.worker.task, fit.state.server)
    built = streams_of(fit.world, list(STREAMS.values()))
    for name in names:
        record: Adapter = catalogue.ADAPTERS[name]
        models = engine.deploy(down, fit.state.mine, catalogue.PERSONALS[PERSONAL.get(name, "none")])
        if record.refusal(fit.worker.task, engine.model_of(models, 0)):
            continue
        for stream, (shift, made) in zip(STREAMS, built.values(), strict=True):
            for size in sizes:
                protocol = replace(shift.protocol, batch=size) if size > 1 else Protocol(1)
                found = accuracy(engine.serve(models, made.shards, record, protocol))
                out.append({**place, "adapter": name, "stream": stream, "batch": size, "accuracy": found})
    return out


def accuracy(metrics: dict[str, Tensor]) -> float:
    """Mean over clients, in percent."""
    return round(100 * summary_of(metrics).accuracy, 3)


def table(rows: list[dict[str, Any]], sizes: list[int]) -> str:
    """Means over seeds as Markdown: change against `none`, by normalisation, mix of classes, stream and batch size."""
    places = list(dict.fromkeys((r["norm"], r["classes"], r["stream"]) for r in rows))
    head, lines = ["norm", "classes", "stream", "adapter", *(f"batch {s}" for s in sizes)], []
    for norm, classes, stream in places:
        own = [r for r in rows if (r["norm"], r["classes"], r["stream"]) == (norm, classes, stream)]
        mean = {
            (r["adapter"], r["batch"]): statistics.mean(
                q["accuracy"] for q in own if (q["adapter"], q["batch"]) == (r["adapter"], r["batch"])
            )
            for r in own
        }
        for name in dict.fromkeys(r["adapter"] for r in own):
            shown = [
                f"{mean[name, s]:.1f}" if name == "none" else f"{mean[name, s] - mean['none', s]:+.1f}" for s in sizes
            ]
            lines.append([norm, classes, stream, name, *shown])
    return "\n".join(layout.table(head, lines, words=4))


def main() -> None:
    """Train, measure what is missing, write after each training, print a table."""
    parser = parser_of(__doc__)
    parser.add_argument("--seeds", type=integers, default=[0, 1, 2])
    parser.add_argument("--sizes", type=integers, default=[1, 4, 16, 64])
    parser.add_argument("--norms", default="batch,group,none")
    parser.add_argument("--adapters", default=ADAPTERS)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--merge", type=Path, nargs="+", help="files that were measured elsewhere; runs nothing")
    parser.add_argument("--out", type=Path, default=Path("results/adapters/batches.json"))
    given = parser.parse_args()
    where = environment(device_of(given.device))
    rows: list[dict[str, Any]] = json.loads(given.out.read_text())["rows"] if given.out.exists() else []
    if given.merge:
        parts = [json.loads(p.read_text()) for p in given.merge]
        rows = [r for p in parts for r in p["rows"]]
        first = {**parts[0]["environment"], "command": command()}
        where = {**first, "parts": [p["environment"]["command"] for p in parts]}
    for norm in () if given.merge else given.norms.split(","):
        for classes, partition in PARTITIONS.items():
            for seed in given.seeds:
                place = {"norm": norm, "classes": classes, "seed": seed}
                if any(place.items() <= r.items() for r in rows):
                    continue
                began = time.perf_counter()
                model = ac.models.CNN(widths=(16, 32), norm=norm)
                data = ac.data.Digits(clients=10, partition=partition)
                base = ac.Experiment(data=data, model=model, rounds=given.rounds, eval_every=given.rounds, seed=seed)
                fit = ac.train(replace(base, backend=ac.backends.Vmap(), device=given.device))
                rows += rows_of(fit, given.adapters.split(","), given.sizes, place)
                fit.engine.close()
                save(given.out, where, given.rounds, rows)
                print(f"{norm}, {classes}, seed {seed}: {time.perf_counter() - began:.0f} s", flush=True)
    save(given.out, where, given.rounds, rows)
    print("\n" + table(rows, sorted({r["batch"] for r in rows})))


def save(path: Path, where: dict[str, Any], rounds: int, rows: list[dict[str, Any]]) -> None:
    """Write all rows."""
    write(path, {"environment": where, "rounds": rounds, "rows": rows})


if __name__ == "__main__":
    main()
