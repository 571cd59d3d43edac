"""CUDA graphs in a row: how a function with loops is recorded as several, and in which order they are replayed."""

from __future__ import annotations

import gc
import warnings
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, TypeAlias, TypeVar

import torch
from torch import Tensor

from ...core.loops import Loop, Room, Stepwise, raw

T = TypeVar("T")
Program: TypeAlias = list[Any]
"""Graphs, and loops as pairs (program, times), where `times(room)` says how often it is replayed before the next."""


def played(program: Program, room: Room | None = None) -> Iterator[Any]:
    """The graphs of a program in the order in which they are replayed."""
    for part in program:
        if isinstance(part, tuple):
            for _ in range(part[1](room)):
                yield from played(part[0], room)
        else:
            yield part


class Recording(Stepwise):
    """Records a function as a program. At a loop the graph ends, the body becomes one by itself, another begins."""

    def __init__(self, pool: Any, aside: Any) -> None:
        self.program: Program = []
        self.kept: list[Tensor] = []
        """Memory of the loops' results, which must live as long as the program."""
        self._pool, self._aside = pool, aside
        self._graph: Any = None

    def begin(self) -> None:
        """Begin a graph."""
        with torch._C._DisableFuncTorch():  # torch sets its generator up here, which is none of the clients' business
            self._graph = torch.cuda.CUDAGraph()
            # relaxed: the driver loads a library's kernel when it is first used, also while recording
            self._graph.capture_begin(pool=self._pool, capture_error_mode="relaxed")

    def end(self) -> None:
        """End the graph that was begun."""
        graph, self._graph = self._graph, None
        with torch._C._DisableFuncTorch(), warnings.catch_warnings():
            warnings.filterwarnings("ignore", "The CUDA Graph is empty")
            graph.capture_end()
        self.program.append(graph)

    def room(self, rows: int, like: Tensor) -> Tensor:
        # on a stream that is not recorded: a graph's own memory may be that of a value which the body was done with
        # before the results came, and its next step would write over them
        with torch.cuda.stream(self._aside):
            made = super().room(rows, like)
        self.kept.append(raw(made))
        return made

    def run(self, loop: Loop) -> None:
        self.end()
        before, self.program = self.program, []
        self.begin()
        loop.step()
        self.end()
        self.program = [*before, (self.program, loop.times)]
        self.begin()

    def give_up(self) -> None:
        """End a graph whose recording failed."""
        if self._graph is not None:
            with suppress(Exception):
                self._graph.capture_end()


def alternating(lines: Sequence[Iterator[T | None]]) -> Iterator[T]:
    """What these give, turn by turn; None is a turn and nothing else."""
    waiting = deque(lines)
    while waiting:
        line = waiting.popleft()
        try:
            found = next(line)
        except StopIteration:
            continue
        waiting.append(line)
        if found is not None:
            yield found


@contextmanager
def no_garbage(tidy: bool = False) -> Iterator[None]:
    """Keep Python from freeing what is left of other recordings: their memory cannot be given back during this one.
    Before, that memory is given back, unless all is `tidy`: a collection takes as long as many steps of a client."""
    if not tidy:
        gc.collect()
    running = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if running:
            gc.enable()


def forget(pool: Any) -> None:
    """End a failed recording for torch, which goes on waiting for it: the allocator would keep all memory that is
    freed from now on, and the default generator would refuse to draw."""
    torch.cuda.synchronize()
    device = torch.cuda.current_device()
    with suppress(RuntimeError):  # it failed before or after it filled the pool
        torch._C._cuda_endAllocateToPool(device, pool)
        torch._C._cuda_releasePool(device, pool)
    fresh = torch.Generator(f"cuda:{device}").manual_seed(torch.initial_seed())
    torch.cuda.default_generators[device].graphsafe_set_state(fresh.graphsafe_get_state())
