"""A pure function of trees as a CUDA graph: recorded once, then replayed without Python or launch overhead."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import torch

from ..core import tree


class Captured:
    """`f(*trees)` recorded for inputs of fixed shapes. A call copies the inputs into place, replays, copies out.

    `f` returns one tree and must be pure tensor code: no host synchronisation, no copies from the host. Tensors it
    closes over (the data set) are read where they lie. Recordings that share a `pool` must not run at the same time.
    """

    warmed: ClassVar[bool] = False
    """Whether a recording of this process has succeeded, so that libraries are likely to be initialised."""

    def __init__(self, f: Callable[..., Any], inputs: tuple[Any, ...], pool: Any = None) -> None:
        self._inputs = tuple(tree.map(torch.clone, i) for i in inputs)
        self._pool = pool
        try:
            if not Captured.warmed:
                self._warm(f)
            self._record(f)
        except torch.cuda.OutOfMemoryError:
            raise
        except Exception:
            if not Captured.warmed:
                raise
            # what was not yet initialised, compiled or memoised cannot be while recording: run once, then try again
            torch.cuda.synchronize()
            self._warm(f)
            self._record(f)
        Captured.warmed = True

    def _warm(self, f: Callable[..., Any]) -> None:
        """Run once, so that libraries initialise, kernels compile and constants are made outside the recording."""
        warm = torch.cuda.Stream()
        warm.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(warm):
            f(*self._inputs)
        torch.cuda.current_stream().wait_stream(warm)

    def _record(self, f: Callable[..., Any]) -> None:
        torch.cuda.synchronize()
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph, pool=self._pool):
            self._outputs = f(*self._inputs)

    def __call__(self, *inputs: Any) -> Any:
        """Run the recorded function on new inputs of the same shapes; the results are the caller's own."""
        for mine, given in zip(self._inputs, inputs, strict=True):
            tree.map(lambda a, b: a.copy_(b), mine, given)
        self._graph.replay()
        return tree.map(torch.clone, self._outputs)
