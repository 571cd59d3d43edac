"""A pure function of trees as a CUDA graph: recorded once, then replayed without Python or launch overhead."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..core import tree


class Captured:
    """`f(*trees)` recorded for inputs of fixed shapes. A call copies the inputs into place, replays, copies out.

    `f` must be pure tensor code: no host synchronisation, no copies from the host. Tensors it closes over (the data
    set) are read where they lie.
    """

    def __init__(self, f: Callable[..., Any], inputs: tuple[Any, ...]) -> None:
        self._inputs = tuple(tree.map(torch.clone, i) for i in inputs)
        warm = torch.cuda.Stream()
        warm.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(warm):  # libraries initialise and memoised constants are made outside the capture
            f(*self._inputs)
        torch.cuda.current_stream().wait_stream(warm)
        torch.cuda.synchronize()
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self._outputs = f(*self._inputs)

    def __call__(self, *inputs: Any) -> Any:
        """Run the recorded function on new inputs of the same shapes; the results are the caller's own."""
        for mine, given in zip(self._inputs, inputs, strict=True):
            tree.map(lambda a, b: a.copy_(b), mine, given)
        self._graph.replay()
        return tuple(tree.map(torch.clone, o) for o in self._outputs)
