"""LoRA on a vision transformer, many clients at once: share of the GPU's bf16 ceiling, speed and memory.

One local step of every client (a gradient and an SGD update of its adapters and head) in these ways: a plain loop over
clients, one vmap over them, and the vmap recorded as a CUDA graph, without our kernels and with them. The loop uses
torch's own operations. The frozen trunk is one for all. FLOPs are counted on the plain step of one client, by torch's
operations; frozen weights have no gradient, and none is counted. Ways must agree first.

    python benchmarks/lora.py [--smoke] [--precisions bf16,fp32] [--out figures.json]

Full size: ViT-S/16 at 224 pixels, 20 clients with batches of 16, rank 8 beside the layers qkv and proj. On a CPU, or
with --smoke, all of it is tiny: that shows that it runs.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from harness import Context, Record, Way, compare, environment, insist, peak_memory, wait
from limits import ceilings, profiled, rates, work_of
from torch import Tensor
from torch.func import grad, vmap

from acclimate import store
from acclimate.backends.vmap.capture import Captured
from acclimate.core import Task, rng, tree
from acclimate.core.nn import fastest, many, trials
from acclimate.core.tree import Tree
from acclimate.models import LoRA, ViT

SIZES: dict[str, Record] = {
    "full": {"model": (16, 384, 12, 6), "side": 224, "clients": 20, "batch": 16, "rank": 8, "classes": 100},
    "smoke": {"model": (4, 16, 2, 2), "side": 8, "clients": 3, "batch": 2, "rank": 2, "classes": 5},
}
PRECISIONS = {"bf16": torch.bfloat16, "fp32": None}
ALLOWED = {torch.float32: 1e-4, torch.bfloat16: 2e-2}
"""How far two ways may be apart, by the length of the step: bf16 rounds to three digits."""
RATE = 0.01


def task_of(size: Record, dtype: torch.dtype | None) -> Task:
    """The model of a size; adapters beside the layers of attention, as in the paper."""
    patch, width, depth, heads = size["model"]
    base = ViT(patch=patch, width=width, depth=depth, heads=heads)
    model = LoRA(base, rank=size["rank"], targets=("attn.qkv", "attn.proj"))
    return Task(model, (3, size["side"], size["side"]), size["classes"], dtype=dtype)


def step_of(task: Task) -> Callable[[Tree, Tensor, Tensor], Tree]:
    """One client's step: its new parameters."""

    def step(params: Tree, x: Tensor, y: Tensor) -> Tree:
        def loss(p: Tree) -> Tensor:
            out = task.apply({"params": p, "buffers": {}}, x, "train")
            return torch.nn.functional.cross_entropy(out.logits, y)

        return many.add(params, grad(loss)(params), -RATE)  # as the package's SGD does

    return step


def federation(task: Task, size: Record, device: torch.device) -> tuple[Tree, Tensor, Tensor]:
    """Every client's parameters, which are not alike, and a batch for each."""
    clients, batch, key = size["clients"], size["batch"], rng.key(0, device)
    params = task.init(key)["params"]
    draws = {n: rng.normal(rng.fold(key, n), clients, *p.shape) for n, p in params.items()}
    params = {n: p + 0.02 * draws[n].to(device) for n, p in params.items()}
    x = rng.uniform(rng.fold(key, "x"), clients, batch, *task.shape)
    y = rng.randint(rng.fold(key, "y"), 0, size["classes"], clients, batch)
    return params, x.to(device), y.to(device)


def measure(size: Record, context: Context, dtype: torch.dtype | None) -> Record:
    """All figures of one precision."""
    task, device = task_of(size, dtype), context.device
    inputs = federation(task, size, device)
    step, clients = step_of(task), size["clients"]
    together = vmap(step)

    def loop() -> list[Tree]:
        with trials.without():
            return [step(*_row(inputs, c)) for c in range(clients)]

    taken = memory(task, inputs, context)  # first: results and recordings would lie there too
    expected, found = tree.stack(loop()), together(*inputs)
    apart = {"vmap": _distance(found, expected, inputs[0])}
    ways: dict[str, Way] = {"loop": Way(loop), "vmap": Way(lambda: together(*inputs))}
    if device.type == "cuda":
        recorded = Captured(together, inputs)
        apart["captured"] = _distance(recorded(*inputs), expected, inputs[0])
        with trials.without():
            plain = Captured(together, inputs)
        ways["captured, without kernels"] = Way(lambda: plain(*inputs))
        ways["captured"] = Way(lambda: recorded(*inputs))
    agreement = insist(apart, ALLOWED[dtype or torch.float32])
    with trials.without():
        work = work_of(lambda: step(*_row(inputs, 0)))
    took = compare(ways, context)
    tops = ceilings(context)
    best = list(ways)[-1]
    return {
        "agreement": agreement,
        **took,
        "work": rates(work, clients, took["seconds"], tops),
        "ceilings": tops,
        "best_way": best,
        "memory": taken,
        "profile": profiled(ways[best].run, device, 20),
        "choices": fastest.choices(),
    }


def memory(task: Task, inputs: tuple[Tree, Tensor, Tensor], context: Context) -> Record:
    """Peak memory of all clients' step, of one client's, and what all would need: one client's, and its activations
    once more for each of the others (what a step takes beyond what lay there before)."""
    step, device = step_of(task), context.device
    clients = len(inputs[1])
    state = {"trunk_elements": _trunk(task), "elements_per_client": tree.numel(inputs[0]) // clients}
    if device.type != "cuda":
        return state
    one = _row(inputs, 0)
    step(*one)  # the trunk is placed once
    before = torch.cuda.memory_allocated(device) / 2**30
    with peak_memory(device) as alone:
        step(*one)
        wait(device)
    with peak_memory(device) as all_of_them:
        vmap(step)(*inputs)
        wait(device)
    activations = alone["peak_memory_gib"] - before
    expected = before + clients * activations
    return {
        **state,
        "before_gib": before,
        "one_client_gib": alone["peak_memory_gib"],
        "activations_of_one_gib": activations,
        "all_clients_gib": all_of_them["peak_memory_gib"],
        "times_one_client_plus_activations": all_of_them["peak_memory_gib"] / expected,
    }


def _trunk(task: Task) -> int:
    source: Any = task._skeletons["eval"].source
    return sum(source.tensors[name].numel() for name in task._skeletons["eval"].frozen)  # type: ignore[union-attr]


def _row(inputs: tuple[Tree, Tensor, Tensor], client: int) -> tuple[Tree, Tensor, Tensor]:
    params, x, y = inputs
    return tree.take(params, client), x[client], y[client]


def _distance(a: Tree, b: Tree, start: Tree) -> float:
    """How far two results of a step are apart, by the length of the step."""
    return float(tree.norm(tree.sub(a, b)) / tree.norm(tree.sub(b, start)))


def main() -> None:
    """Measure, print, and write where --out says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smoke", action="store_true", help="tiny sizes, to see that it runs")
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--precisions", default=",".join(PRECISIONS), help="which of them, with commas between")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    small = given.smoke or device.type == "cpu"
    context = Context(device, "smoke" if small else "full", 2 if small else given.repeats, 120.0)
    size = SIZES["smoke" if small else "full"]
    found = {"environment": environment(device), "size": size, "precisions": {}}
    for name in given.precisions.split(","):
        found["precisions"][name] = run = measure(size, context, PRECISIONS[name])
        took = {way: t["median"] for way, t in run["seconds"].items()}
        share = run["work"]["rates"][run["best_way"]]["share_of_ceiling"]
        print(f"{name}: seconds {took}, times faster than the loop {run['times_faster']}, share of ceilings {share}")
        print(f"  memory {run['memory']}, agreement {run['agreement']['distance']}")
        for kernel in run["profile"]["kernels"]:
            each = 1e6 * kernel["seconds"] / kernel["calls"]
            print(f"  {1000 * kernel['seconds']:6.3f} ms, {kernel['calls']:3d} x {each:6.1f} us: {kernel['name'][:80]}")
        for what, choice in run["choices"].items():
            times = {way: ms and round(1000 * ms, 1) for way, ms in choice["times"].items()}
            print(f"  {what}: {choice['way']} of us {times}")
        if given.out:  # after each: the loop takes long where others use the processors
            store.write(given.out, json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
