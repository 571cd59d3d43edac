"""Does it help an adapter to start its class prior at the client's own, and not at equal shares of all classes?

Every adapter that has the choice, on the embedded digits: clients with few classes each, whose training data tells how
often each class comes. Accuracy in percent, mean over clients and seeds, of `prior=uniform` and `prior=client`.

    python benchmarks/prior.py [--seeds 0,1,2] [--streams correlated,continual] [--out results/adapters/prior.json]
    python benchmarks/prior.py --merge part-1.json part-2.json      what runs side by side wrote, in one file

Rows that are in the file already are not run again.
"""

from __future__ import annotations

import json
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from harness import environment, integers, parser_of, write

import acclimate as ac
from acclimate.experiment import catalogue
from acclimate.ops import layout

STREAMS = "original,corrupted,out-of-client,correlated,continual"
NORMS = {"delta": "batch", "roid": "batch", "rotta": "batch", "note": "iabn"}
"""The adapters with a prior, and the norm layers of the model that each serves."""


def trained(norm: str, seed: int, rounds: int) -> ac.Fit:
    """A federation whose clients have noted how often each class comes."""
    model, data = replace(catalogue.MODELS["cnn-small"], norm=norm), ac.data.Digits()
    base = ac.Experiment(data=data, model=model, rounds=rounds, eval_every=rounds, seed=seed)
    return ac.train(replace(base, personal=catalogue.PERSONALS["prior"]))


def measured(fit: ac.Fit, adapter: Any, streams: list[str]) -> dict[str, float]:
    """Accuracy in percent by stream, the mean over clients."""
    rows = ac.evaluate(fit, adapters=[adapter], streams=[catalogue.STREAMS[s] for s in streams]).rows
    return {r["stream"]: round(100 * r["accuracy"], 2) for r in rows if r["selection"] == "last"}


def table(rows: dict[str, Any], streams: list[str]) -> str:
    """Means over seeds as Markdown: with equal shares, and how much the client's own change."""
    lines = []
    for name in dict.fromkeys(r["adapter"] for r in rows.values()):
        own = [r for r in rows.values() if r["adapter"] == name]
        cells = []
        for s in streams:
            even, client = (statistics.mean(r[p][s] for r in own) for p in ("uniform", "client"))
            cells.append(f"{even:.1f} ({client - even:+.1f})")
        lines.append([f"`{name}`", *cells])
    return "\n".join(layout.table(["adapter", *streams], lines, words=1))


def save(path: Path, study: dict[str, Any], rows: dict[str, Any]) -> None:
    """Write all rows."""
    record = {"environment": environment(torch.device("cpu")), "study": study, "rows": rows}
    write(path, record)


def main() -> None:
    """Train, measure what is missing, write after each row, print a table."""
    parser = parser_of(__doc__)
    parser.add_argument("--seeds", type=integers, default=[0, 1, 2])
    parser.add_argument("--streams", type=lambda s: s.split(","), default=STREAMS.split(","))
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--merge", type=Path, nargs="+", default=[], help="files that were measured elsewhere")
    parser.add_argument("--out", type=Path, default=Path("results/adapters/prior.json"))
    given = parser.parse_args()
    study = {"data": "digits", "model": "cnn-small", "rounds": given.rounds, "streams": given.streams}
    rows: dict[str, Any] = {}
    for path in (given.out, *given.merge):
        kept = json.loads(path.read_text()) if path.exists() or path in given.merge else {"study": study, "rows": {}}
        if kept["study"] != study:
            raise SystemExit(f"{path}: its rows are of {kept['study']}, not of {study}; name another --out")
        rows |= kept["rows"]
    if given.merge:
        save(given.out, study, rows)
    for seed in [] if given.merge else given.seeds:
        fits: dict[str, ac.Fit] = {}
        for name, norm in NORMS.items():
            if f"{name} {seed}" in rows:
                continue
            if norm not in fits:
                fits[norm] = trained(norm, seed, given.rounds)
            fit, record = fits[norm], catalogue.ADAPTERS[name]
            found = {p: measured(fit, replace(record, prior=p), given.streams) for p in ("uniform", "client")}
            rows[f"{name} {seed}"] = {"adapter": name, "seed": seed, **found}
            save(given.out, study, rows)
            print(f"{name:8s} {seed} {found}", flush=True)
    print("\n" + table(rows, given.streams))


if __name__ == "__main__":
    main()
