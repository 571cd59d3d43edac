"""Convolutions on one core: torch's own, torch's own with channels last, and our matrix products of patches.

Each layer is computed forward and backward (gradients of weights and bias, and of the input but for a first layer), in
turn; figures are the least processor time of a few repeats, which other work on the machine disturbs little. The last
line is a whole local step of the two-layer CNN in the Serial backend, with and without our products. `products.LARGEST`
and `products.NATIVE` decide between them: run this on a new kind of processor before changing them.

    python benchmarks/conv_cpu.py [--repeats 5] [--out results/benchmarks/conv-cpu.json]
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from harness import environment, parser_of, write
from processes import Workload

from acclimate.backends import Serial
from acclimate.core import fit
from acclimate.core.nn import products
from acclimate.models import CNN

LAYERS = {
    "cnn, first": (32, 3, 32, 32, 5, 1, 0),
    "cnn, second": (32, 32, 14, 64, 5, 1, 0),
    "resnet20, 32 px": (32, 16, 32, 16, 3, 1, 1),
    "resnet20, 16 px": (32, 32, 16, 32, 3, 1, 1),
    "resnet20, 8 px": (32, 64, 8, 64, 3, 1, 1),
    "resnet20, halving": (32, 16, 32, 32, 3, 2, 1),
    "resnet18, 16 px": (32, 128, 16, 128, 3, 1, 1),
    "mnist, first": (32, 1, 28, 32, 5, 1, 0),
}
"""Batch, input channels, side, output channels, kernel, step, padding."""


def ways(batch: int, i: int, side: int, o: int, k: int, step: int, pad: int) -> dict[str, Callable[[], Any]]:
    """One layer forward and backward, in every way."""
    torch.manual_seed(0)
    x, w, b = torch.randn(batch, i, side, side), torch.randn(o, i, k, k), torch.randn(o)
    geometry = products.Geometry((side, side), (k, k), step, (pad, pad))

    def gradients(f: Callable[..., torch.Tensor], order: torch.memory_format) -> Callable[[], Any]:
        given = [x.contiguous(memory_format=order), w.contiguous(memory_format=order), b]
        leaves = [t.detach().clone(memory_format=torch.preserve_format) for t in given]
        wanted = [t.requires_grad_() for t in (leaves if i > 3 else leaves[1:])]
        up = torch.randn_like(f(*leaves))
        return lambda: torch.autograd.grad(f(*leaves), wanted, up)

    def own(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return F.conv2d(x, w, b, step, pad)

    def ours(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = products.Alone.apply(x, w, b, geometry)
        return y

    torch.testing.assert_close(ours(x, w, b), own(x, w, b), rtol=1e-3, atol=1e-3)
    return {
        "torch": gradients(own, torch.contiguous_format),
        "torch, channels last": gradients(own, torch.channels_last),
        "ours": gradients(ours, torch.channels_last),
    }


def steps() -> dict[str, Callable[[], Any]]:
    """Ten local steps of the two-layer CNN in the Serial backend, by our products and by torch's own convolutions."""
    load = Workload(CNN(), 32, clients=1, examples=320, epochs=1)
    worker = load.worker()
    engine = Serial().open(worker, load.federation(), torch.device("cpu"))
    server = fit.start(worker, engine, 1).server

    def run(native: bool) -> None:
        before, products.NATIVE = products.NATIVE, native
        try:
            fit.one_round(worker, engine, server, torch.arange(1), 0)
        finally:
            products.NATIVE = before

    return {"torch, channels last": lambda: run(True), "ours": lambda: run(False)}


def least(ways: dict[str, Callable[[], Any]], repeats: int, scale: float = 1e3) -> dict[str, float]:
    """The least processor time of each, in milliseconds."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(repeats + 1):
        for name, f in ways.items():
            began = time.process_time()
            f()
            times[name].append(scale * (time.process_time() - began))
    return {name: round(min(own[1:]), 3) for name, own in times.items()}


def main() -> None:
    """Measure, print, and write JSON where asked."""
    parser = parser_of(__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    capability = torch.backends.cpu.get_cpu_capability()
    found: dict[str, Any] = {}
    for name, layer in LAYERS.items():
        found[name] = least(ways(*layer), args.repeats)
        print(f"{name:20s}", "   ".join(f"{way} {ms:8.2f} ms" for way, ms in found[name].items()), flush=True)
    found["a step of the CNN"] = least(steps(), args.repeats, 1e2)
    print("a step of the CNN", found["a step of the CNN"])
    report = {**environment(torch.device("cpu")), "capability": capability, "load": os.getloadavg(), "ms": found}
    if args.out:
        write(args.out, report)


if __name__ == "__main__":
    main()
