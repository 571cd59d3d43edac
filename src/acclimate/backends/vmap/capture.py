"""Pure functions of trees as CUDA graphs: recorded once, then replayed without Python or launch overhead."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import Any, ClassVar

import torch

from ...core import tree

log = logging.getLogger("acclimate")

MOST_RECORDINGS = 64
"""Recorded shapes that are kept; the one that was not used for longest goes first."""


class Recorder:
    """Runs pure functions: replays the recording for their shapes, makes it, or runs them as they are."""

    def __init__(self, on: bool, exact: bool) -> None:
        self.on = on
        """Whether functions are recorded; False from the first failure on."""
        self.exact = exact
        """Whether TF32 is forbidden."""
        self.recorded: dict[Any, Captured] = {}
        """Recordings by work and shapes, the one that was used last at the end."""
        self._met: set[Any] = set()
        self._pool = torch.cuda.graph_pool_handle() if on else None

    def run(self, what: tuple[Any, ...], f: Callable[..., Any], inputs: tuple[Any, ...], often: bool = False) -> Any:
        """What `f` makes of the inputs; `what` names the work, as shapes alone do not.

        What does not come `often` is recorded when it comes a second time: recording costs as much as running.
        """
        with tf32(False) if self.exact else nullcontext():
            if not self.on:
                return f(*inputs)
            key = (what, tuple((tuple(x.shape), x.dtype) for x in tree.leaves(dict(enumerate(inputs)))))
            if not often and key not in self._met:
                self._met.add(key)
                return f(*inputs)
            recorded = self._recording(key, f, inputs)
            return f(*inputs) if recorded is None else recorded(*inputs)

    def _recording(self, key: Any, f: Callable[..., Any], inputs: tuple[Any, ...]) -> Captured | None:
        """The recording of this work, made where it is not there; None where it cannot be made."""
        recorded = self.recorded.pop(key, None)
        if recorded is None:
            try:
                recorded = Captured(f, inputs, self._pool)
            except torch.cuda.OutOfMemoryError:
                raise
            except Exception as reason:
                self.on = False
                torch.cuda.synchronize()
                log.warning("rounds are not captured as CUDA graphs: %s", str(reason).strip().splitlines()[0])
                return None
        self.recorded[key] = recorded
        while len(self.recorded) > MOST_RECORDINGS:
            del self.recorded[next(iter(self.recorded))]
        return recorded


class Captured:
    """`f(*trees)` recorded for inputs of fixed shapes. A call copies the inputs into place, replays, copies out.

    `f` returns trees, in tuples as well, and must be pure tensor code: no host synchronisation, no copies from the
    host. Tensors it closes over (the data set) are read where they lie. Recordings that share a `pool` must not run at
    the same time.
    """

    warmed: ClassVar[bool] = False
    """Whether a recording of this process has succeeded, so that libraries are likely to be initialised."""

    def __init__(self, f: Callable[..., Any], inputs: tuple[Any, ...], pool: Any = None) -> None:
        self._inputs = tuple(tree.map(torch.clone, i) for i in inputs)
        try:
            if not Captured.warmed:
                self._warm(f)
            self._record(f, pool)
        except torch.cuda.OutOfMemoryError:
            raise
        except Exception as reason:
            if not Captured.warmed:
                raise
            # what was not yet initialised, compiled or memoised cannot be while recording: run once, then try again
            log.debug("a recording failed and is tried again after a run: %s", reason)
            self._warm(f)
            self._record(f, None)
        Captured.warmed = True

    def _warm(self, f: Callable[..., Any]) -> None:
        """Run once, so that libraries initialise, kernels compile and constants are made outside the recording."""
        warm = torch.cuda.Stream()
        warm.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(warm):
            f(*self._inputs)
        torch.cuda.current_stream().wait_stream(warm)

    def _record(self, f: Callable[..., Any], pool: Any) -> None:
        torch.cuda.synchronize()
        self._graph = torch.cuda.CUDAGraph()
        pool = pool or torch.cuda.graph_pool_handle()
        try:
            # relaxed: the driver loads a library's kernel when it is first used, also while recording
            with _no_garbage(), torch.cuda.graph(self._graph, pool=pool, capture_error_mode="relaxed"):
                self._outputs = f(*self._inputs)
        except BaseException:
            _forget(pool)
            raise

    def __call__(self, *inputs: Any) -> Any:
        """Run the recorded function on new inputs of the same shapes; the results are the caller's own."""
        for mine, given in zip(self._inputs, inputs, strict=True):
            tree.map(lambda a, b: a.copy_(b), mine, given)
        self._graph.replay()
        return over(torch.clone, self._outputs)


def over(f: Callable[..., Any], value: Any) -> Any:
    """Apply `f` leaf by leaf to a tree, or to the trees of a tuple, which keeps its type and names."""
    if isinstance(value, tuple):
        done = [over(f, v) for v in value]
        return type(value)._make(done) if hasattr(value, "_make") else tuple(done)
    return tree.map(f, value)


@contextmanager
def _no_garbage() -> Iterator[None]:
    """Keep Python from freeing what is left of other recordings: their memory cannot be given back during this one."""
    gc.collect()
    running = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if running:
            gc.enable()


def _forget(pool: Any) -> None:
    """End a failed recording for torch, which goes on waiting for it: the allocator would keep all memory that is
    freed from now on, and the default generator would refuse to draw."""
    torch.cuda.synchronize()
    device = torch.cuda.current_device()
    with suppress(RuntimeError):  # it failed before or after it filled the pool
        torch._C._cuda_endAllocateToPool(device, pool)
        torch._C._cuda_releasePool(device, pool)
    fresh = torch.Generator(f"cuda:{device}").manual_seed(torch.initial_seed())
    torch.cuda.default_generators[device].graphsafe_set_state(fresh.graphsafe_get_state())


@contextmanager
def tf32(allowed: bool) -> Iterator[None]:
    """Allow or forbid TF32 in matrix products and convolutions; PyTorch's own default differs between the two."""
    flags: tuple[Any, Any] = torch.backends.cuda.matmul, torch.backends.cudnn
    before = [f.allow_tf32 for f in flags]
    for f in flags:
        f.allow_tf32 = allowed
    try:
        yield
    finally:
        for f, old in zip(flags, before, strict=True):
            f.allow_tf32 = old
