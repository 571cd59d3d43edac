"""Convolutions and norms of many clients, each with its own weights, as CUDA graphs so that only kernels count.

- `implicit`: patches gathered inside the product beside patches that are written out; layers of the papers' CNN, of
  ResNet-20 and ResNet-18, three precisions, beside the measured ceilings.
- `norms`: norm layers by kernel beside torch's.
- `grouped`: what the library chooses against cuDNN's grouped convolution, for the two layers of the papers' CNN.

Needs a GPU.

    python benchmarks/conv.py [--parts implicit,norms] [--layers "cnn, second layer"] [--budget 90] [--out figures.json]
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from harness import Context, environment
from limits import ceilings
from products import LAYERS as SHAPES
from products import norms, products
from torch import Tensor

from acclimate import store
from acclimate.core.nn import conv, implicit, kernels

LAYERS = {"first layer": (3, 32, 32), "second layer": (32, 14, 64)}
"""Input channels, image side, output channels; the kernel is 5 x 5 without padding."""
KERNEL = 5
SIZES = ((20, 32), (100, 32), (640, 16))
"""Clients (or clients x samples at test time) and their batch."""


def milliseconds(f: Callable[[], Tensor], repeats: int = 20) -> float:
    """Time of one run, captured."""
    for _ in range(2):
        f()
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        f()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    graph.replay()
    begin.record()
    for _ in range(repeats):
        graph.replay()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / repeats


def ways(groups: int, batch: int, layer: str) -> tuple[dict[str, tuple[Callable[[], Tensor], ...]], float]:
    """Ours and the grouped way of the three operations, and the floating-point operations of one of them."""
    inputs, side, outputs = LAYERS[layer]
    out = side - KERNEL + 1
    g = torch.Generator(device="cuda").manual_seed(0)
    x = torch.randn(groups, batch, inputs, side, side, device="cuda", generator=g)
    w = torch.randn(groups, outputs, inputs, KERNEL, KERNEL, device="cuda", generator=g) / (inputs * KERNEL**2) ** 0.5
    dy = torch.randn(groups, batch, outputs, out, out, device="cuda", generator=g)
    gx, gy = (t.transpose(0, 1).flatten(1, 2).contiguous() for t in (x, dy))
    gw = w.flatten(0, 1)

    def backward(mask: list[bool]) -> tuple[Tensor, ...]:
        args = ([1, 1], [0, 0], [1, 1], False, [0, 0], groups, mask)
        grads: tuple[Tensor, ...] = torch.ops.aten.convolution_backward(gy, gx, gw, None, *args)
        return grads

    def apart(y: Tensor) -> Tensor:
        return y.unflatten(1, (groups, -1)).transpose(0, 1)

    geometry = conv.Geometry((side, side), (KERNEL, KERNEL), 1, (0, 0))
    table = {
        "forward": (
            lambda: conv._convolve(x, w, geometry)[0],
            lambda: apart(F.conv2d(gx, gw, groups=groups)),
        ),
        "to weights": (
            lambda: conv._correlate(x, dy, conv._nothing(x), geometry),
            lambda: backward([False, True, False])[1].view_as(w),
        ),
    }
    if layer != "first layer":  # nobody asks for the gradient of the images
        table["to input"] = (
            lambda: conv._spread(dy, w, geometry),
            lambda: apart(backward([True, False, False])[0]),
        )
    return table, 2.0 * groups * batch * out * out * outputs * inputs * KERNEL**2


def measure(tf32: bool) -> list[dict[str, Any]]:
    """Every layer, size and operation, with one precision."""
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = tf32
    rows = []
    for groups, batch in SIZES:
        for layer in LAYERS:
            table, flops = ways(groups, batch, layer)
            for name, (ours, grouped) in table.items():
                a, b = ours(), grouped()
                gap = float((a - b).norm() / b.norm())
                t, u = milliseconds(ours), milliseconds(grouped)
                rows.append(
                    {
                        "clients": groups,
                        "batch": batch,
                        "layer": layer,
                        "operation": name,
                        "tf32": tf32,
                        "ours_ms": round(t, 4),
                        "grouped_ms": round(u, 4),
                        "times_faster": round(u / t, 2),
                        "ours_tflops": round(flops / t / 1e9, 1),
                        "relative_difference": gap,
                    }
                )
                print(
                    f"{groups:4d} x {batch} {layer:12s} {name:10s} tf32={tf32!s:5s} ours {t:8.4f} ms "
                    f"{flops / t / 1e9:6.1f} TFLOP/s   grouped {u:8.4f} ms   {u / t:6.2f} x   apart {gap:.1e}",
                    flush=True,
                )
    return rows


def main() -> None:
    """Measure, print, and write JSON where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--parts", default="implicit,norms,grouped", help="what to measure, with commas between")
    parser.add_argument("--layers", nargs="+", choices=SHAPES, default=list(SHAPES), help="of implicit; default: all")
    parser.add_argument("--budget", type=float, default=90.0, help="seconds after which no further product begins")
    args = parser.parse_args()
    if not (torch.cuda.is_available() and kernels.AVAILABLE):
        raise SystemExit("this benchmark needs a CUDA device and Triton")
    parts, body = args.parts.split(","), environment(torch.device("cuda"))
    if unknown := set(parts) - {"implicit", "norms", "grouped"}:
        raise SystemExit(f"--parts={args.parts}: {', '.join(unknown)} is none of implicit, norms, grouped")
    if "implicit" in parts:
        tops = ceilings(Context(torch.device("cuda"), "full"))
        print("ceilings, TFLOP/s:", {k: round(v / 1e12, 1) for k, v in tops["flop_per_second"].items()}, flush=True)
        body |= {"ceilings": tops, "implicit": products(milliseconds, tops, args.budget, args.layers)}
    if "norms" in parts:
        body["norms"] = norms(milliseconds)
    if "grouped" in parts:
        body["rows"] = measure(False) + measure(True)
        body["choices"] = implicit.choices()
    if args.out:
        store.write(args.out, json.dumps(body, indent=1) + "\n")


if __name__ == "__main__":
    main()
