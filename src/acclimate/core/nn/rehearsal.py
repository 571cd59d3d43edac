"""A rehearsal of work on a GPU: kernels are noted instead of launched, and then compiled side by side.

Triton compiles a kernel at its first launch, so that one waits for the other, and the work for all of them. In a
rehearsal those that are marked with `late` are left out where they have not been compiled yet. What they would have
written holds zeros (`blank`), so that no number can be used as an index that is none. Results mean nothing; afterwards
the kernels are there. Without a Triton that can do this nothing is rehearsed, and kernels compile one after the other.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeAlias, TypeVar

import torch
from torch import Tensor

try:
    import triton
except ImportError:  # a CPU build of PyTorch
    triton = None

log = logging.getLogger("acclimate")

K = TypeVar("K")
Noted: TypeAlias = dict[Any, tuple[Any, str]]
"""Kernels that were left out: Triton's function, and what it was to be compiled for, by the two."""

_late: set[int] = set()
_running: list[None] = []


def late(kernel: K) -> K:
    """Mark a kernel that a rehearsal leaves out: whoever launches it has memory from `blank` for the results."""
    _late.add(id(kernel))
    return kernel


def possible() -> bool:
    """Whether this Triton says what it is about to compile, and compiles several kernels at a time."""
    hooks = getattr(getattr(triton, "knobs", None), "runtime", None)
    return hasattr(triton, "AsyncCompileMode") and hasattr(hooks, "jit_cache_hook")


def running() -> bool:
    """Whether this is a rehearsal."""
    return bool(_running)


def blank(*size: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Memory for a kernel's results."""
    return (torch.zeros if _running else torch.empty)(size, dtype=dtype, device=device)


def blank_like(x: Tensor) -> Tensor:
    """Memory for results that lie in memory as x does."""
    return torch.zeros_like(x) if _running else torch.empty_like(x)


def rehearse(work: Callable[[], Any]) -> int:
    """Run this once without its late kernels, and compile them; how many there were. What goes wrong is left for the
    work itself to find."""
    if not possible():
        return 0
    with _noting() as noted, _tolerant():
        work()
    with _tolerant():
        _compile(noted)
    return len(noted)


@contextmanager
def _tolerant() -> Iterator[None]:
    """Go on whatever fails inside: the work comes to the same place, and says what is wrong."""
    try:
        yield
    except Exception as reason:
        log.debug("a rehearsal ended early: %s", reason)


@contextmanager
def _noting() -> Iterator[Noted]:
    """As long as this lasts, late kernels are noted instead of compiled and launched."""
    noted: Noted = {}
    hooks = triton.knobs.runtime
    before = hooks.jit_cache_hook

    def note(**told: Any) -> bool:
        if before is not None and before(**told):
            return True
        kernel = told["fn"].jit_function
        if id(kernel) not in _late:
            return False
        noted.setdefault((id(kernel), told["key"]), (kernel, told["compile"]["specialization_data"]))
        return True

    hooks.jit_cache_hook = note
    _running.append(None)
    try:
        yield noted
    finally:
        _running.pop()
        hooks.jit_cache_hook = before


def _compile(noted: Noted) -> None:
    """Compile these side by side; those that do not compile will say so when they are launched."""
    with ThreadPoolExecutor(os.cpu_count() or 1) as threads, triton.AsyncCompileMode(threads, ignore_errors=True):
        for kernel, purpose in noted.values():
            with _tolerant():
                kernel.preload(purpose)
