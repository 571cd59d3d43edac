"""How near the hardware's limit: work counted, ceilings measured in the same run, and where the time goes.

- FLOPs are those that `torch.utils.flop_counter` sees (matrix products and convolutions; nothing element-wise) in one
  plain step of one client, times the number of steps. A multiplication and an addition are two.
- Bytes are what the operators of that plain step read and write, each operator counted for itself: what an execution
  without any fusion moves.
- Ceilings are the rates of one large matrix product in fp32, TF32 and bf16, and of one large copy.
"""

from __future__ import annotations

import functools
import statistics
from collections.abc import Callable
from typing import Any

import torch
from harness import Context, Record, seconds
from torch import Tensor
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from acclimate.backends.vmap.capture import tf32


class Traffic(TorchDispatchMode):
    """Counts the bytes that operators read and write. Views move nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if not func.is_view:
            tensors = [t for t in tree_leaves((args, kwargs, out)) if isinstance(t, Tensor)]
            self.bytes += sum(t.numel() * t.element_size() for t in tensors)
        return out


def work_of(f: Callable[[], Any]) -> Record:
    """FLOPs and bytes of one call."""
    f()  # what is made once (handles, constants) is not counted
    with FlopCounterMode(display=False) as flops:
        f()
    with Traffic() as traffic:
        f()
    return {"flops": flops.get_total_flops(), "bytes": traffic.bytes}


def rates(work: Record, times: int, took: dict[str, Record], ceilings: Record) -> Record:
    """Achieved FLOP/s and bytes/s of every way that did `work` `times` over, and the share of the measured ceilings."""
    flops, moved = work["flops"] * times, work["bytes"] * times
    each = {}
    for name, t in took.items():
        rate = flops / t["median"]
        shares = {kind: rate / top for kind, top in ceilings.get("flop_per_second", {}).items()}
        each[name] = {"flop_per_second": rate, "bytes_per_second": moved / t["median"], "share_of_ceiling": shares}
    return {"flops": flops, "bytes": moved, "per_step": work, "steps": times, "rates": each}


def ceilings(context: Context) -> Record:
    """The highest rates that this device reaches, measured."""
    device, size = context.device, context.sized(full={"n": 8192}, quick={"n": 1024}, smoke={"n": 128})["n"]
    kinds = {"fp32": (torch.float32, False), "bf16": (torch.bfloat16, False)}
    if device.type == "cuda":
        kinds["tf32"] = (torch.float32, True)
    rate = {}
    for name, (dtype, fast) in kinds.items():
        a, b = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
        with tf32(fast):
            rate[name] = 2 * size**3 / _typical(functools.partial(torch.matmul, a, b), device)
    source = torch.empty(64 * size**2 if device.type == "cuda" else 16 * size**2, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    copied = 2 * source.numel() / _typical(lambda: target.copy_(source), device)
    return {"matrix_side": size, "flop_per_second": rate, "bytes_per_second": copied}


def product_rate(clock: Callable[[], float], side: int = 1024, times: int = 5) -> float:
    """FLOP per second of the quickest of a few large matrix products, by this clock: a ceiling for what a CPU does."""
    a, b, taken = torch.rand(side, side), torch.rand(side, side), []
    for _ in range(times):
        began = clock()
        torch.mm(a, b)
        taken.append(clock() - began)
    return 2.0 * side**3 / min(taken)


def _typical(f: Callable[[], Any], device: torch.device) -> float:
    """Seconds of one call among many that were asked for together, so that launching does not count."""
    calls = 10

    def many() -> None:
        for _ in range(calls):
            f()

    many()
    return statistics.median(seconds(many, device) for _ in range(5)) / calls


def profiled(f: Callable[[], Any], device: torch.device, top: int = 12) -> Record:
    """The kernels (on a CPU: operators) that take most of one call's time, with their share of all of it."""
    f()
    cuda = device.type == "cuda"
    with profile(activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if cuda else [])]) as prof:
        took = seconds(f, device)
    where = "CUDA" if cuda else "CPU"  # with a GPU, kernels and not the operators that launched them
    events = [e for e in prof.key_averages() if e.device_type.name == where]
    spent = {e.key: (_self_time(e, cuda), e.count) for e in events}
    total = sum(t for t, _ in spent.values()) or 1.0
    longest = sorted(spent.items(), key=lambda item: -item[1][0])[:top]
    kernels = [{"name": n[:120], "calls": c, "seconds": t / 1e6, "share": t / total} for n, (t, c) in longest if t]
    calls = sum(c for t, c in spent.values() if t)
    return {"seconds": took, "busy_seconds": total / 1e6, "calls": calls, "kernels": kernels}


def _self_time(event: Any, cuda: bool) -> float:
    return float(event.self_device_time_total if cuda else event.self_cpu_time_total)
