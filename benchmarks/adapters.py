"""Every adapter on a known source model: a ResNet-20 of CIFAR-10 under our fifteen corruptions, severity 5.

A corruption is a client here, so that one step serves all fifteen. `episodic` starts the adapter afresh for each
corruption, in shuffled order; `correlated` too, with classes in waves (Dirichlet 0.1, as NOTE and RoTTA have them);
`continual` goes through all fifteen one after the other without a reset. Batches of 200, accuracy in percent.

    python benchmarks/adapters.py --weights cifar10_resnet20.th [--adapters tent,cotta] [--streams episodic,continual]
        [--samples 10000] [--device cuda]
    python benchmarks/adapters.py --weights cifar10_resnet20.th --adapters sar:opt.lr=0.001 --out settings.json
    python benchmarks/adapters.py --norm iabn --epochs 30 --adapters none,note,tent --out iabn.json
    python benchmarks/adapters.py --merge part-1.json part-2.json      what runs side by side wrote, in one file

The weights are the widely used CIFAR-10 checkpoint (91.7 % on clean test images). Without them a network of ours is
trained first, such as one with instance-aware batch norm, which NOTE needs. Rows that are in the file already are not
run again.
"""

from __future__ import annotations

import json
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch
from harness import environment, kept, parser_of, peak_memory, write
from harness import trained as kept_training
from torch import Tensor

import acclimate as ac
from acclimate.core import SGD, Adapter, Cosine, Protocol, Shards, Task, Work, Worker, fit, rng
from acclimate.experiment import catalogue
from acclimate.experiment.settings import expand
from acclimate.ops import disk_cache, layout
from acclimate.ops.augment import FlipCrop
from acclimate.ops.devices import device_of
from acclimate.ops.hashing import content_hash
from acclimate.shifts.base import frost
from acclimate.shifts.corruptions import COMMON, corrupt
from acclimate.shifts.drift import in_waves

MOMENTS = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""How the checkpoint's images were normalised."""
BATCH, WAVES, SLOTS = 200, 0.1, 100
PERSONAL = {"eata": "fisher", "bbse": "confusion", "knn": "memory", "neo-client": "means", "santa": "means"}
"""What some adapters need of the training data: here all of it is one client's."""


def adapter_of(name: str) -> Adapter:
    """An adapter of the catalogue; its name may have settings behind it, as `sar:opt.lr=0.001` has."""
    name, *given = name.split(":")
    if not given:
        return catalogue.ADAPTERS[name]
    return expand([f"adapters={name}", *(f"adapters.{name}.{one}" for one in given)])[0].adapters[0]


def corrupted(x: Tensor, kind: str, seed: int = 0) -> Tensor:
    """The images under one corruption, severity 5."""
    keys = rng.rows(rng.fold(rng.key(seed), "corrupted", COMMON.index(kind)), len(x))
    name = content_hash("corrupted", x, kind, 5, keys, frost().mark([kind]))
    make = partial(corrupt, x, kind, 5, keys, frost=frost().textures if kind == "frost" else None)
    return disk_cache.remembered("streams", name, make)


def trained(norm: str, epochs: int, device: str, folder: Path | None) -> Any:
    """The weights of a network of ours: one client with all training images."""
    opt = SGD(lr=0.1, momentum=0.9, weight_decay=5e-4, schedule=Cosine(total=epochs))
    experiment = ac.Experiment(
        data=ac.data.CIFAR10(ac.data.IID(), 1, part="train", split=(1.0, 0.0, 0.0), augment=FlipCrop()),
        model=ac.models.ResNet20(norm=norm),
        method=ac.methods.FedAvg(opt=opt, work=Work(epochs=1, batch=128)),
        rounds=epochs,
        eval_every=epochs,
        device=device,
    )
    return kept_training(experiment, folder).state.server


def streams(clean: Tensor, x: Tensor, y: Tensor, seed: int = 0) -> dict[str, Shards]:
    """The streams; of `continual` all corruptions are one client's."""
    kinds, n = x.shape[:2]
    flat, labels = x.flatten(0, 1), y.repeat(kinds)
    order = [k * n + rng.permutation(rng.fold(rng.key(seed), "order", k), n) for k in range(kinds)]
    waves = [in_waves(r, labels[r], WAVES, SLOTS, rng.fold(rng.key(seed), "waves", k)) for k, r in enumerate(order)]
    return {
        "clean": Shards.of(clean, y, [torch.arange(n)]),
        "episodic": Shards.of(flat, labels, order),
        "correlated": Shards.of(flat, labels, waves),
        "continual": Shards.of(flat, labels, [torch.cat(order)]),
    }


class Source:
    """The source model, deployed to as many clients as a stream has."""

    def __init__(self, model: Any, train: tuple[Tensor, Tensor], device: torch.device, weights: Any = None) -> None:
        """`weights` are those of a network of ours, which saw images as the data set normalises them."""
        moments = MOMENTS if weights is None else (ac.data.CIFAR10.mean, ac.data.CIFAR10.std)
        self.worker = Worker(Task(model, (3, 32, 32), 10, *moments), ac.methods.FedAvg())
        self.train, self.device, self.weights = train, device, weights
        self._engines: dict[int, Any] = {}
        self._models: dict[tuple[int, str], Any] = {}
        self._last = ""

    def served(self, adapter: str, test: Shards) -> dict[str, Any]:
        """Accuracy per client in percent, milliseconds per sample and the peak of memory; or why it cannot serve."""
        engine, models = self.deployed(test.clients, PERSONAL.get(adapter.partition(":")[0], "none"))
        record = adapter_of(adapter)
        if reason := record.refusal(self.worker.task, engine.model_of(models, 0)):
            return {"refused": reason}
        if record.calibrates:
            models = engine.calibrated(models, Shards.of(*self.train, self._rows(test.clients)), record)
        if adapter != self._last:
            engine.recorder.forget()  # those of the adapter before this one
            self._last = adapter
        with peak_memory(self.device) as memory:
            began = time.perf_counter()
            found = engine.serve(models, test, record, Protocol(BATCH))["accuracy"]
            seconds = time.perf_counter() - began
        return {
            "accuracy": [round(100 * float(a), 2) for a in found],
            "mean": round(100 * float(found.mean()), 2),
            "ms_per_sample": round(1e3 * seconds / int(test.n.sum()), 4),
            **{name: round(value, 3) for name, value in memory.items()},
        }

    def _rows(self, clients: int) -> list[Tensor]:
        return [torch.arange(len(self.train[0]))] * clients

    def deployed(self, clients: int, personal: str) -> tuple[Any, Any]:
        if clients not in self._engines:
            engine = ac.backends.Vmap().open(self.worker, Shards.of(*self.train, self._rows(clients)), self.device)
            self._engines[clients] = engine, fit.start(self.worker, engine, clients)
        engine, state = self._engines[clients]
        if (clients, personal) not in self._models:
            down = self.worker.method.download(self.worker.task, self.weights or state.server)
            made = engine.deploy(down, state.mine, catalogue.PERSONALS[personal])
            self._models[clients, personal] = made
        return engine, self._models[clients, personal]


def table(rows: dict[str, dict[str, Any]], names: list[str]) -> str:
    """Mean accuracies as Markdown, adapters by streams."""
    lines = []
    for adapter in dict.fromkeys(r["adapter"] for r in rows.values()):
        found = [rows.get(f"{adapter} {s}", {}) for s in names]
        lines.append([adapter, *(str(f.get("mean", f.get("refused", ""))) for f in found)])
    return "\n".join(layout.table(["adapter", *names], lines, words=1))


def merged(out: Path, parts: list[Path]) -> dict[str, Any]:
    """A file's record with the rows of others of the same study, and where those come from."""
    record = json.loads(out.read_text()) if out.exists() else json.loads(parts[0].read_text())
    for path in parts:
        part = json.loads(path.read_text())
        if part["study"] != record["study"]:
            raise SystemExit(f"{path}: its rows are of {part['study']}, not of {record['study']}")
        if fresh := {name: row for name, row in part["rows"].items() if name not in record["rows"]}:
            record["rows"] |= fresh
            record["environment"].setdefault("parts", []).append({**part["environment"], "rows": list(fresh)})
    return record


def main() -> None:
    """Measure what is missing, write after each row, print a table."""
    parser = parser_of(__doc__)
    parser.add_argument("--weights", default="", help="a checkpoint; default: train a network first")
    parser.add_argument("--epochs", type=int, default=30, help="of that training")
    parser.add_argument("--trainings", type=Path, help="a folder that keeps it, for the next run")
    parser.add_argument("--norm", choices=("batch", "group", "iabn"), default="batch")
    parser.add_argument("--adapters", default=",".join(catalogue.ADAPTERS))
    parser.add_argument("--streams", default="clean,episodic,correlated,continual")
    parser.add_argument("--samples", type=int, default=10_000, help="test images of each corruption")
    parser.add_argument("--kept", type=int, default=2_000, help="training images for adapters that want some")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, default=Path("results/adapters/cifar10c.json"))
    parser.add_argument("--merge", type=Path, nargs="+", help="files that were measured elsewhere; runs nothing")
    given = parser.parse_args()
    if given.merge:
        record = merged(given.out, given.merge)
        write(given.out, record)
        print(table(record["rows"], list(dict.fromkeys(r["stream"] for r in record["rows"].values()))))
        return
    test, train, device = *(ac.data.CIFAR10(part=p).load() for p in ("test", "train")), device_of(given.device)
    x, y = test.x[: given.samples], test.y[: given.samples]
    study = {"samples": len(x), "norm": given.norm, "batch": BATCH, "severity": 5, "frost": frost().source}
    study |= {} if given.weights else {"epochs": given.epochs}
    rows: dict[str, dict[str, Any]] = kept(given.out, study)
    model = ac.models.ResNet20(norm=given.norm, weights=given.weights)
    weights = None if given.weights else trained(given.norm, given.epochs, given.device, given.trainings)
    source = Source(model, (train.x[: given.kept], train.y[: given.kept]), device, weights)
    built = streams(x, torch.stack([corrupted(x, kind) for kind in COMMON]), y)
    for adapter in given.adapters.split(","):
        for name in given.streams.split(","):
            if f"{adapter} {name}" in rows:
                continue
            found = source.served(adapter, built[name])
            rows[f"{adapter} {name}"] = {"adapter": adapter, "stream": name, **found}
            record = {"environment": environment(device), "study": study, "kinds": list(COMMON), "rows": rows}
            write(given.out, record)
            print(f"{adapter:16s} {name:12s} {found.get('mean', found)} {found.get('ms_per_sample', '')}", flush=True)
    print("\n" + table(rows, given.streams.split(",")))


if __name__ == "__main__":
    main()
