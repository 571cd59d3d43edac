"""Convolutions of many clients as implicit products beside written patches, and norms by kernel beside torch's.

A part of `conv.py`. Results are compared with double precision first. Kernels are compiled beforehand by several
processes at once, into Triton's cache on disk.
"""

from __future__ import annotations

import functools
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from harness import Record
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.grad import conv2d_input, conv2d_weight

from acclimate.backends.vmap.capture import tf32
from acclimate.core.nn import conv, implicit, implicit_kernels, switches
from acclimate.core.nn.layers import purify

CLIENTS, BATCH = 20, 32


class Shape(NamedTuple):
    """A layer: input channels, side of the images, output channels, kernel, step, padding."""

    inputs: int
    side: int
    outputs: int
    kernel: int
    step: int
    pad: int


LAYERS = {
    "cnn, second layer": Shape(32, 14, 64, 5, 1, 0),
    "cnn, first layer": Shape(3, 32, 32, 5, 1, 0),
    "resnet-20, 16": Shape(16, 32, 16, 3, 1, 1),
    "resnet-20, 32": Shape(32, 16, 32, 3, 1, 1),
    "resnet-20, 64": Shape(64, 8, 64, 3, 1, 1),
    "resnet-18, 64": Shape(64, 32, 64, 3, 1, 1),
    "resnet-18, 64 to 128": Shape(64, 32, 128, 3, 2, 1),
    "resnet-18, 128": Shape(128, 16, 128, 3, 1, 1),
    "resnet-18, 256": Shape(256, 8, 256, 3, 1, 1),
    "resnet-18, 512": Shape(512, 4, 512, 3, 1, 1),
}
KINDS: tuple[implicit.Kind, ...] = ("convolve", "spread", "correlate")
PRECISIONS = {"fp32": torch.float32, "tf32": torch.float32, "bfloat16": torch.bfloat16}


def geometry(shape: Shape) -> conv.Geometry:
    """As the library has it."""
    return conv.Geometry((shape.side,) * 2, (shape.kernel,) * 2, shape.step, (shape.pad,) * 2)


def tensors(shape: Shape, clients: int, dtype: torch.dtype) -> dict[implicit.Kind, tuple[Tensor, Tensor]]:
    """The arguments of the three products, a pixel's channels side by side."""
    g, out = torch.Generator("cuda").manual_seed(0), geometry(shape).out

    def draw(rows: int, channels: int, side: int, by: float = 1.0) -> Tensor:
        values = torch.randn(clients, rows, side, side, channels, device="cuda", generator=g) / by
        return values.to(dtype).permute(0, 1, 4, 2, 3)

    x, dy = draw(BATCH, shape.inputs, shape.side), draw(BATCH, shape.outputs, out[0])
    w = draw(shape.outputs, shape.inputs, shape.kernel, (shape.inputs * shape.kernel**2) ** 0.5).contiguous()
    return {"convolve": (x, w), "spread": (dy, w), "correlate": (x, dy)}


def true(kind: implicit.Kind, a: Tensor, b: Tensor, shape: Shape) -> Tensor:
    """The product of the first client in double precision, by torch's own convolution."""
    p, q, step, pad = a[0].double().contiguous(), b[0].double().contiguous(), shape.step, shape.pad
    if kind == "convolve":
        return F.conv2d(p, q, None, step, pad)
    if kind == "spread":
        return conv2d_input((BATCH, shape.inputs, shape.side, shape.side), q, p, step, pad)
    return conv2d_weight(p, (shape.outputs, shape.inputs, shape.kernel, shape.kernel), q, step, pad)


def patches(kind: implicit.Kind, a: Tensor, b: Tensor, g: conv.Geometry) -> Tensor:
    """The same by patches that are written out."""
    with implicit.resting():
        if kind == "convolve":
            return conv._convolve(a, b, g)[0]
        return conv._spread(a, b, g) if kind == "spread" else conv._correlate(a, b, conv._nothing(a), g)


def run(kind: implicit.Kind, a: Tensor, b: Tensor, shape: Shape, cut: implicit.Cut) -> Tensor:
    """The same by a kernel."""
    done: Tensor = implicit._run(kind, a, b, implicit.layer_of(kind, a, b, geometry(shape)), cut)
    return done


def cuts(kind: implicit.Kind, shape: Shape, precision: str, like: Tensor) -> list[implicit.Cut]:
    """Kernels to measure, for tensors like this one."""
    layer = implicit_kernels.Layer(
        shape.inputs, shape.side, shape.side, shape.outputs, *geometry(shape).out,
        shape.kernel, shape.kernel, shape.step, shape.pad, shape.pad,
    )  # fmt: skip
    found = implicit.cuts(kind, layer, like, precision)
    if precision == "fp32" and shape == LAYERS["cnn, second layer"]:
        found.append(implicit.Cut("implicit", implicit_kernels.Tile(64, 64, 16, 8, 2), "ieee"))
    return found


def wanted(kind: implicit.Kind, shape: Shape) -> bool:
    """Nobody asks for the gradient of the images."""
    return kind != "spread" or shape.inputs > 3


def compile_one(job: tuple[str, str, implicit.Kind]) -> None:
    """Compile the kernels of one product, by running them on two clients."""
    name, precision, kind = job
    shape = LAYERS[name]
    a, b = tensors(shape, 2, PRECISIONS[precision])[kind]
    for cut in cuts(kind, shape, precision, a):
        try:
            run(kind, a, b, shape, cut)
        except Exception as reason:
            print(f"{name} {precision} {kind} {tuple(cut)}: {str(reason).splitlines()[:1]}", flush=True)
    torch.cuda.synchronize()


def compile_all(layers: list[str]) -> float:
    """Seconds that it took to fill Triton's cache, with several processes."""
    began = time.perf_counter()
    jobs = [(n, p, k) for n in layers for p in PRECISIONS for k in KINDS if wanted(k, LAYERS[n])]
    try:
        workers = max(min((os.cpu_count() or 2) - 2, 12), 1)
        with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:
            list(pool.map(compile_one, jobs))
    except Exception as reason:  # then each is compiled when it is first used
        print(f"kernels are compiled one after the other: {reason}", flush=True)
    return time.perf_counter() - began


def distance(found: Tensor, reference: Tensor) -> float:
    """Of the first client's result, relative to the reference's norm."""
    return float((found[0].double() - reference).norm() / reference.norm())


def product(
    name: str, precision: str, kind: implicit.Kind, ms: Callable[[Callable[[], Tensor]], float], ceiling: float
) -> Record:
    """One product of one layer in one precision, both ways: they agree with double precision before times count."""
    shape, g = LAYERS[name], geometry(LAYERS[name])
    a, b = tensors(shape, CLIENTS, PRECISIONS[precision])[kind]
    reference, limit = true(kind, a, b, shape), implicit.APART[precision]
    flops = 2.0 * CLIENTS * BATCH * g.out[0] * g.out[1] * shape.outputs * shape.inputs * shape.kernel**2
    with tf32(precision == "tf32"):
        plain, far = ms(lambda: patches(kind, a, b, g)), distance(patches(kind, a, b, g), reference)
    tried = []
    for cut in cuts(kind, shape, precision, a):
        what = {"way": cut.way, "tile": list(cut.tile), "dot": cut.dot}
        try:
            apart = distance(run(kind, a, b, shape, cut), reference)
            took = ms(functools.partial(run, kind, a, b, shape, cut))
            tried.append({**what, "ms": took, "distance": apart, "agrees": apart <= limit})
        except Exception as reason:
            tried.append({**what, "failed": (str(reason).splitlines() or ["?"])[0][:200]})
    best = min((t for t in tried if t.get("agrees")), key=lambda t: t["ms"], default=None)
    row = {
        "layer": name, "operation": kind, "precision": precision, "clients": CLIENTS, "batch": BATCH,
        "patches_ms": plain, "patches_tflops": flops / plain / 1e9, "patches_distance": far, "tried": tried,
    }  # fmt: skip
    if best:
        rate = flops / best["ms"] / 1e9
        row |= {"implicit_ms": best["ms"], "implicit_tflops": rate, "distance": best["distance"], "tile": best["tile"]}
        row |= {
            "way": best["way"],
            "dot": best["dot"],
            "times_faster": plain / best["ms"],
            "share_of_ceiling": rate * 1e12 / ceiling,
        }
    _print(row)
    return row


def _print(row: Record) -> None:
    told = (
        f"{row['layer']:21s} {row['operation']:9s} {row['precision']:8s} patches {row['patches_tflops']:6.1f} TFLOP/s"
    )
    if "implicit_ms" in row:
        told += (
            f"   implicit {row['implicit_tflops']:6.1f} TFLOP/s  {row['times_faster']:5.2f} x"
            f"  {100 * row['share_of_ceiling']:4.1f} % of the ceiling  {row['dot']} {row['tile']}"
        )
        told += f"   from double {row['distance']:.1e} (patches {row['patches_distance']:.1e})"
    else:
        told += f"   no kernel: {[t.get('failed', t.get('distance')) for t in row['tried']]}"
    print(told, flush=True)


def products(ms: Callable[[Callable[[], Tensor]], float], ceilings: Record, budget: float, layers: list[str]) -> Record:
    """Every precision and product of these layers, as far as the time goes."""
    began = time.perf_counter()
    compiled = compile_all(layers)
    print(f"compiled in {compiled:.1f} s", flush=True)
    tops = ceilings["flop_per_second"]
    rows, left = [], []
    for name in layers:
        shape = LAYERS[name]
        for precision in PRECISIONS:
            for kind in (k for k in KINDS if wanted(k, shape)):
                if time.perf_counter() - began > budget:
                    left.append(f"{name} {precision} {kind}")
                    continue
                rows.append(product(name, precision, kind, ms, tops["bf16" if precision == "bfloat16" else "tf32"]))
    if left:
        print(f"no time was left for {len(left)} products, the first of them {left[0]}", flush=True)
    return {"compile_seconds": compiled, "rows": rows, "left_out": left}


NORMS = {
    "batch, 64 of 14x14": (nn.BatchNorm2d(64), (64, 14, 14)),
    "batch, 16 of 32x32": (nn.BatchNorm2d(16), (16, 32, 32)),
    "batch, 64 of 32x32": (nn.BatchNorm2d(64), (64, 32, 32)),
    "group, 16 of 32x32": (nn.GroupNorm(2, 16), (16, 32, 32)),
    "group, 64 of 8x8": (nn.GroupNorm(2, 64), (64, 8, 8)),
    "layer, 64 of 192": (nn.LayerNorm(192), (64, 192)),
}


@contextmanager
def without(ways: str) -> Iterator[None]:
    """While this lasts the library uses none of these faster ways."""
    before = os.environ.get(switches.WITHOUT)
    os.environ[switches.WITHOUT] = ways
    try:
        yield
    finally:
        os.environ.pop(switches.WITHOUT)
        if before is not None:
            os.environ[switches.WITHOUT] = before


def norms(ms: Callable[[Callable[[], Tensor]], float]) -> list[Record]:
    """Norm layers in training, torch's way and by kernels, both in the order of memory that suits them."""
    return [_norm(name, layer, shape, ms) for name, (layer, shape) in NORMS.items()]


def _norm(name: str, layer: nn.Module, shape: tuple[int, ...], ms: Callable[[Callable[[], Tensor]], float]) -> Record:
    layer = layer.to("cuda").train()
    purify(nn.ModuleList([layer]))
    x = torch.randn(CLIENTS, BATCH, *shape, device="cuda", generator=torch.Generator("cuda").manual_seed(0))
    last = x.movedim(2, -1).contiguous().movedim(-1, 2) if len(shape) == 3 else x
    held = {n: t.detach() for n, t in (*layer.named_parameters(), *layer.named_buffers())}
    vars = {n: torch.stack([t] * CLIENTS) + 0.1 for n, t in held.items()}

    def value(vars: dict[str, Tensor], x: Tensor) -> Tensor:
        out: Tensor = functional_call(layer, dict(vars), (x,))
        return out

    def slope(vars: dict[str, Tensor], x: Tensor) -> Any:
        return grad(lambda v, x: value(v, x).sin().sum(), (0, 1))(vars, x)[1]

    row: Record = {"norm": name, "clients": CLIENTS, "batch": BATCH}
    for what, each in (("forward", value), ("with_gradients", slope)):
        f = functools.partial(vmap(each), vars)
        with without("norms"):
            theirs, plain = f(x), ms(functools.partial(f, x))
        with without(""):
            apart, ours = float((f(last) - theirs).norm() / theirs.norm()), ms(functools.partial(f, last))
        row[what] = {"plain_ms": plain, "kernel_ms": ours, "times_faster": plain / ours, "distance": apart}
        told = f"plain {plain:.4f} ms   kernel {ours:.4f} ms   {plain / ours:.2f} x   apart {apart:.1e}"
        print(f"{name:20s} {what:15s} {told}", flush=True)
    return row
