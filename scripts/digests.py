"""Digests of what the library computes: two versions that print the same ones compute the same numbers, to the bit.

    python scripts/digests.py --out before.json          # every method x adapter x backend, and all other records
    python scripts/digests.py --out after.json --against before.json
    python scripts/digests.py --device cuda --backends vmap eager --out gpu.json

Nothing in a digest depends on where a class is defined, so a file may move between two versions.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

import acclimate as ac
from acclimate.backends import Processes, Serial, Vmap
from acclimate.core import Protocol, Shards, Task, Work, Worker, fit, tree
from acclimate.eval.same_stream import stream_hash
from acclimate.experiment import catalogue
from acclimate.running.evaluate import streams_of

CLASSES, SIZES, SMALL = 5, (40, 24, 16, 33, 17, 9), Work(epochs=1, batch=8)
BACKENDS = {
    "serial": Serial(),
    "vmap": Vmap(chunk=2),
    "eager": Vmap(chunk=2, capture=False),
    "mapped": Vmap(chunk=2, private="mapped", examples="host"),
    "processes": Processes(workers=2),
}
COSTLY = {"views": 2, "steps": 1, "chunk": 4, "epochs": 1}
"""Settings of the adapters that would take most of the time, and what they are here."""


def digest(value: Any) -> str:
    """A hash of a tree's tensors, or of plain JSON; floats count with all of their bits."""
    out = hashlib.sha256()
    if isinstance(value, dict) and all(isinstance(v, torch.Tensor) for v in tree.flatten({"t": value}).values()):
        for name, x in sorted(tree.flatten({"t": value}).items()):
            x = x.detach().cpu().contiguous()
            out.update(f"{name} {x.dtype} {tuple(x.shape)} ".encode())
            out.update(x.reshape(-1).view(torch.uint8).numpy().tobytes() if x.numel() else b"")
    else:
        out.update(json.dumps(value, sort_keys=True).encode())
    return out.hexdigest()[:16]


def federation(sizes: tuple[int, ...], seed: int) -> Shards:
    """Six small clients whose classes are bright bands of noisy images."""
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(0, CLASSES, (sum(sizes),), generator=g)
    x = (torch.rand(sum(sizes), 3, 10, 10, generator=g) * 120).to(torch.uint8)
    for i in range(len(y)):
        x[i, :, 2 * int(y[i]) : 2 * int(y[i]) + 2] += 100
    return Shards.of(x, y, list(torch.arange(sum(sizes)).split(list(sizes))))


def small(record: Any) -> Any:
    """The record with little local work and cheap test-time steps."""
    names = {f.name: getattr(record, f.name) for f in dataclasses.fields(record)}
    works = {n: SMALL for n in names if n == "work" or n.endswith("_work")}
    cheap = {n: COSTLY[n] for n, v in names.items() if n in COSTLY and isinstance(v, int) and v > COSTLY[n]}
    return dataclasses.replace(record, **works, **cheap)


def of_methods(given: argparse.Namespace) -> Iterator[tuple[str, str]]:
    """The given methods on the given backends, and there with every personaliser and the given adapters."""
    task = Task(ac.models.CNN(widths=(3, 4), hidden=8, kernel=3, norm="batch"), (3, 10, 10), CLASSES)
    train, val, test = federation(SIZES, 0), federation((5, 9, 6, 3, 8, 7), 1), federation((9, 12, 4, 8, 5, 8), 2)
    device = torch.device(given.device)
    for backend in given.backends:
        for name in given.methods:
            worker = Worker(task, small(catalogue.METHODS[name]))
            engine = BACKENDS[backend].open(worker, train, device)
            state = fit.start(worker, engine, train.clients)
            for state in fit.rounds(worker, engine, fit.RoundPlan(2, train.clients, 4), val, state):
                pass
            mine = state.mine if isinstance(state.mine, dict) else state.mine.take(torch.arange(train.clients))
            yield f"train/{backend}/{name}", digest({"server": state.server, "mine": mine})
            yield f"history/{backend}/{name}", digest([list(state.history), state.cost])
            down = worker.method.download(task, state.server)
            for personal in catalogue.PERSONALS if backend in ("serial", "vmap") else ["none"]:
                models = engine.deploy(down, state.mine, small(catalogue.PERSONALS[personal]))
                one = engine.model_of(models, 0)
                yield f"personal/{backend}/{name}/{personal}", digest(one)
                for label in given.adapters:
                    adapter = catalogue.ADAPTERS[label]
                    if personal != "none" and label not in ("knn", "bbse", "eata", "the"):
                        continue
                    place = f"adapt/{backend}/{name}/{personal}/{label}"
                    if reason := small(adapter).refusal(task, one):
                        yield place, digest(reason)
                    else:
                        yield place, digest(engine.serve(models, test, small(adapter), Protocol(batch=4)))
            engine.close()


def of_worlds() -> Iterator[tuple[str, str]]:
    """Partitions, streams and pictures of the embedded digits, and every model's first answer."""
    skipped = ("by-superclass", "by-domain", "by-domain-and-label", "natural-users")
    for name, partition in catalogue.PARTITIONS.items():
        if name not in skipped:
            world = ac.data.Digits(clients=8, partition=partition).world(0)
            yield f"world/{name}", world.content
    world = ac.data.Digits(clients=6).world(3)
    for name, shift in catalogue.STREAMS.items():
        try:
            built = streams_of(world, [shift])
        except (ValueError, FileNotFoundError, OSError) as e:
            yield f"stream/{name}", type(e).__name__
            continue
        for label, (_, stream) in built.items():
            yield f"stream/{label}", stream_hash(stream)
    for name, model in catalogue.MODELS.items():
        if name not in ("pretrained", "mixed", "projection"):
            task = Task(model, (3, 64, 64) if name in ("alexnet", "vgg11") else (3, 32, 32), 10)
            started = task.init(ac.rng.key(1))
            yield f"model/{name}", digest({"out": task.apply(started, torch.ones(2, *task.shape), "eval", None).logits})


def of_experiments() -> Iterator[tuple[str, str]]:
    """Whole experiments: the default, several architectures with a public set, and every filter."""
    digits, short = ac.data.Digits(clients=6), {"rounds": 2, "device": "cpu"}
    experiments: dict[str, Any] = {"default": ac.Experiment(**short, data=digits)}
    for name, f in catalogue.FILTERS.items():
        experiments[f"filter-{name}"] = ac.Experiment(
            **short, data=digits, filters=(f,), model=ac.models.MLP(hidden=(8,)), adapters=(ac.adapters.NoAdapt(),)
        )
    mixed = ac.models.Mixed((ac.models.MLP(hidden=(8,)), ac.models.CNN(widths=(3, 4), hidden=8, kernel=3)))
    for name in ("heterofedtta", "fedmd"):
        experiments[f"mixed-{name}"] = ac.Experiment(
            **short,
            data=ac.data.Public(data=ac.data.Digits(), clients=6),
            model=mixed,
            method=small(catalogue.METHODS[name]),
        )
    for name, e in experiments.items():
        for backend in (Serial(), Vmap(chunk=3)):
            place = f"experiment/{type(backend).__name__.lower()}/{name}"
            try:
                trained = ac.train(dataclasses.replace(e, backend=backend))
            except (ValueError, ImportError) as error:
                yield place, type(error).__name__
                continue
            rows = [{k: v for k, v in r.items() if k != "settings"} for r in ac.evaluate(trained).rows]
            yield place, digest({"server": trained.state.server, "mine": trained.state.mine})
            yield f"{place}/table", digest(rows)
            trained.engine.close()


def asked(place: str, given: argparse.Namespace) -> bool:
    """Whether a run with these options makes the digest of this place."""
    kind, backend, method, adapter = (*place.split("/"), "", "", "")[:3] + (place.rpartition("/")[2],)
    if kind in ("world", "stream", "model", "experiment"):
        return bool(given.device == "cpu")
    return backend in given.backends and method in given.methods and (kind != "adapt" or adapter in given.adapters)


def main() -> None:
    """Print, write and compare."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--backends", nargs="+", default=["serial", "vmap", "mapped", "processes"], choices=BACKENDS)
    options.add_argument(
        "--methods", nargs="+", default=list(catalogue.METHODS), choices=catalogue.METHODS, metavar="M"
    )
    options.add_argument(
        "--adapters", nargs="*", default=[*catalogue.ADAPTERS], choices=catalogue.ADAPTERS, metavar="A"
    )
    options.add_argument("--device", default="cpu", help="with another than cpu, methods alone are run")
    options.add_argument("--out", type=Path, required=True)
    options.add_argument("--against", type=Path, help="digests of another version; status 1 where any differs")
    given = options.parse_args()
    torch.set_num_threads(1)
    found: dict[str, str] = {}
    began = time.perf_counter()
    sources: list[Callable[[], Iterator[tuple[str, str]]]] = [of_worlds, of_experiments]
    if given.device != "cpu":
        sources = []
    for source in (*sources, lambda: of_methods(given)):
        for place, value in source():
            found[place] = value
            if len(found) % 500 == 0:
                print(f"{len(found)} digests, {time.perf_counter() - began:.0f} s", flush=True)
    given.out.write_text(json.dumps(found, indent=0, sort_keys=True) + "\n")
    print(f"{len(found)} digests, all together {digest(found)}, {time.perf_counter() - began:.0f} s")
    if given.against is not None:
        before = {k: v for k, v in json.loads(given.against.read_text()).items() if asked(k, given)}
        differing = sorted(k for k in before.keys() | found.keys() if before.get(k) != found.get(k))
        print("\n".join(differing[:50]))
        print(f"{len(differing)} of {len(before.keys() | found.keys())} differ from {given.against}")
        raise SystemExit(1 if differing else 0)


if __name__ == "__main__":
    main()
