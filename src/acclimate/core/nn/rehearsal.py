"""A rehearsal of work on a GPU: kernels are noted instead of launched, and then compiled side by side.

Triton compiles a kernel at its first launch, so that one waits for the other, and the work for all of them. In a
rehearsal those that are marked with `late` are left out where they have not been compiled yet. What they would have
written holds zeros (`blank`), so that no number can be used as an index that is none. Results mean nothing; afterwards
the kernels are there, with the launchers that some versions of Triton have a C compiler make for them. Whoever tries or
measures a kernel launches it in a rehearsal, and believes and remembers nothing. Without a Triton that can do this
nothing is rehearsed, and kernels compile one after the other.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from threading import Lock
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
_running: list[set[Any]] = []


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


def anew(*what: Any) -> bool:
    """Whether this rehearsal meets this for the first time: then whoever tries or measures it launches all of it."""
    met = what in _running[-1]
    _running[-1].add(what)
    return not met


def blank(*size: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Memory for a kernel's results."""
    return (torch.zeros if _running else torch.empty)(size, dtype=dtype, device=device)


def blank_like(x: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Memory for results that lie in memory as x does, in its type or another."""
    return (torch.zeros_like if _running else torch.empty_like)(x, dtype=dtype)


def rehearse(*works: Callable[[], Any]) -> int:
    """Run each of these once without its late kernels, and compile them; how many were not in Triton's cache. What goes
    wrong is left for the work itself to find."""
    if not possible():
        return 0
    with _noting() as noted:
        for work in works:
            with _tolerant():
                work()
    with _counting(len(noted)) as new, _tolerant():
        _compile(noted)
    return len(new)


@contextmanager
def _counting(most: int) -> Iterator[list[None]]:
    """One for each kernel that is compiled and was not in Triton's cache; `most` where this Triton does not say."""
    knobs: Any = getattr(triton.knobs, "compilation", None)
    if not hasattr(knobs, "listener"):
        yield [None] * most
        return
    new: list[None] = []
    before = knobs.listener

    def listen(**told: Any) -> None:
        if not told.get("cache_hit"):
            new.append(None)
        if before is not None:
            before(**told)

    knobs.listener = listen
    try:
        yield new
    finally:
        knobs.listener = before


@contextmanager
def unheard() -> Iterator[None]:
    """As long as this lasts late kernels are left out, and not compiled either: where results mean nothing anyway."""
    with _noting() if possible() else nullcontext():
        yield


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
    _running.append(set())
    try:
        yield noted
    finally:
        _running.pop()
        hooks.jit_cache_hook = before


def _compile(noted: Noted) -> None:
    """Compile these side by side; those that do not compile will say so when they are launched."""
    launchers = _Launchers()
    with ThreadPoolExecutor(os.cpu_count() or 1) as threads, triton.AsyncCompileMode(threads, ignore_errors=True):
        for kernel, purpose in noted.values():
            with _tolerant():
                kernel.preload(purpose).future.add_done_callback(launchers.add)


class _Launchers:
    """What launches compiled kernels. Triton 3.6 has a C compiler make it for every new list of types, at the first
    launch, and keeps it in its cache: here the thread that has compiled a kernel does so, and no launch waits for it.
    """

    def __init__(self) -> None:
        self._made: set[str] = set()
        self._lock = Lock()

    def add(self, compiled: Future[Any]) -> None:
        """Have the launcher of this kernel made, unless another has the same."""
        with _tolerant():
            kernel = compiled.result()
            types = str((list(kernel.src.signature.values()), getattr(kernel.metadata, "tensordesc_meta", None)))
            with self._lock:
                known = types in self._made
                self._made.add(types)
            if not known:
                triton.runtime.driver.active.launcher_cls(kernel.src, kernel.metadata)
