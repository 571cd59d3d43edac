"""Clients that adapt together on a known source model: a ResNet-20 of CIFAR-10, corruptions that come in groups.

Every client has test images of its own under one of five corruptions (`together.py`), severity 5, classes as they come.
Nothing is trained, so that a machine without a GPU can do it.

    python benchmarks/groups.py --weights cifar10_resnet20.th [--clients 20,100] [--batches 16,4] [--samples 3200]
        [--seeds 0,1,2] [--adapters "bn;bn-together"] [--out results/adapters/groups.json]
    python benchmarks/groups.py --merge part-1.json part-2.json      what runs side by side wrote, in one file

`--samples` are those of all clients together. Accuracy in percent, the mean over clients, and bytes that a client
exchanged; what is in the file already is not run again.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from harness import environment, integers, kept, parser_of, write
from together import KINDS, StatisticsGroupKnown
from torch import Tensor

import acclimate as ac
from acclimate.adapters import BNStats, BNTogether, FedTSA, NoAdapt, RunningStats, Together
from acclimate.core import Adapter, Protocol, Shards, rng
from adapters import Source, corrupted

ADAPTERS: dict[str, Adapter] = {
    "none": NoAdapt(),
    "bn": BNStats(),
    "bn-together": BNTogether(),
    "bn-together, uniform": BNTogether(weights="uniform"),
    "bn-together, group known": StatisticsGroupKnown(kinds=len(KINDS)),
    "bn-running": RunningStats(speed=3.0),
    "together": Together(RunningStats(speed=3.0)),
    "fedtsa": FedTSA(),
}


def dealt(x: Tensor, y: Tensor, clients: int, samples: int, seed: int) -> Shards:
    """Every client's stream: images that no other has, under corruption number c modulo the number of kinds."""
    order, each = rng.permutation(rng.fold(rng.key(seed), "dealt"), len(x)), samples // clients
    rows = [order[c * each : (c + 1) * each] for c in range(clients)]
    parts = [corrupted(x[own], KINDS[c % len(KINDS)], seed) for c, own in enumerate(rows)]
    places = list(torch.arange(clients * each).split(each))
    return Shards.of(torch.cat(parts), y[torch.cat(rows)], places)


def merged(out: Path, parts: list[Path]) -> None:
    """Put the rows of parts of one study into a file, and say where each comes from."""
    records = [json.loads(path.read_text()) for path in parts]
    if any(r["study"] != records[0]["study"] for r in records):
        raise SystemExit(f"--merge: {', '.join(map(str, parts))} are of several studies")
    rows: dict[str, Any] = {}
    for cell, name, own in ((c, n, o) for r in records for c, names in r["rows"].items() for n, o in names.items()):
        rows.setdefault(cell, {}).setdefault(name, {}).update(own)
    write(out, {"study": records[0]["study"], "environment": [r["environment"] for r in records], "rows": rows})


def main() -> None:
    """Measure what is missing, and write after each number."""
    parser = parser_of(__doc__)
    parser.add_argument("--weights")
    parser.add_argument("--clients", type=integers, default=[20, 100])
    parser.add_argument("--batches", type=integers, default=[16, 4])
    parser.add_argument("--samples", type=int, default=3200)
    parser.add_argument("--seeds", type=integers, default=[0, 1, 2])
    parser.add_argument("--adapters", type=lambda s: s.split(";"), default=list(ADAPTERS), help="separated by ;")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, default=Path("results/adapters/groups.json"))
    parser.add_argument("--merge", type=Path, nargs="+", help="files that were measured elsewhere; runs nothing")
    given = parser.parse_args()
    if given.merge or not given.weights:
        return merged(given.out, given.merge) if given.merge else parser.error("--weights: name a checkpoint")
    device = torch.device(given.device)
    data = ac.data.CIFAR10(part="test").load()
    source = Source(ac.models.ResNet20(norm="batch", weights=given.weights), (data.x[:64], data.y[:64]), device)
    study: dict[str, Any] = {"samples": given.samples, "kinds": list(KINDS), "severity": 5}
    found = kept(given.out, study, "rows")
    for seed, clients, batch in ((s, c, b) for s in given.seeds for c in given.clients for b in given.batches):
        test = dealt(data.x, data.y, clients, given.samples, seed)
        engine, models = source.deployed(clients, "none")
        for name in given.adapters:
            place = found.setdefault(f"{clients} clients, batch {batch}", {}).setdefault(name, {})
            if str(seed) in place:
                continue
            got = engine.serve(models, test, ADAPTERS[name], Protocol(batch))
            sent = got.get("exchanged", torch.zeros(1)).to(torch.float32).mean()
            place[str(seed)] = {"accuracy": round(100 * float(got["accuracy"].mean()), 2), "bytes": round(float(sent))}
            print(seed, clients, batch, name, place[str(seed)], flush=True)
            write(given.out, {"study": study, "environment": environment(device), "rows": found})


if __name__ == "__main__":
    main()
