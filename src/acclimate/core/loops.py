"""Loops whose body is recorded once: local steps, batches of a stream, chunks of samples.

`repeat` runs a pure body for t = 0, 1, ... A plain run unrolls it, with t as a number. Where a driver is set, the body
meets t as a tensor on the device, and its state lies in fixed places that the body's results are copied to: so one
recording of the body, replayed as often as there are steps, is the whole loop. The numbers are the same to the bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch._C import _functorch as functorch
from torch._functorch.pyfunctorch import retrieve_all_functorch_interpreters

from . import tree
from .tree import Tree

Time: TypeAlias = int | Tensor
"""The number of a step: in Python, or an int64 scalar on the device."""
Body: TypeAlias = Callable[[Time, Tree], tuple[Tree, Tree]]
"""`body(t, state) -> (state, out)`, pure."""


class Room(NamedTuple):
    """The room that clients have for examples, and how many the largest of them has."""

    size: int
    most: int


class Needed(NamedTuple):
    """How many steps of a loop over a client's examples change anything, by how many examples that client has; they
    were planned for clients with `size` of them."""

    size: int
    steps: Callable[[int], int]


LEAST = 3
"""Loops of fewer steps are always unrolled: a step runs by itself before the form of the state is known."""
LATEST = 4
"""Steps after which the state's order in memory need not come to rest: a step of its own for each would be recorded."""


def at(x: Tensor, t: Time) -> Tensor:
    """Row t; where t is on the device the host does not ask for it."""
    if isinstance(t, int):
        return x[t]
    if functorch.is_batchedtensor(t):
        return x.index_select(0, t.view(1))[0]
    row: Tensor = _Row.apply(x, t, 0)
    return row


class _Row(torch.autograd.Function):
    """Row t of an axis, for all clients at once: torch takes a selection under `vmap` for a gathering of numbers."""

    @staticmethod
    def forward(x: Tensor, t: Tensor, axis: int) -> Tensor:
        return x.index_select(axis, t.view(1)).squeeze(axis)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, t, ctx.axis = inputs
        ctx.count = x.shape[ctx.axis]
        ctx.save_for_backward(t)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, None, None]:
        here = torch.arange(ctx.count, device=slope.device) == ctx.saved_tensors[0]
        shape = (-1, *[1] * (slope.dim() - ctx.axis))
        return here.view(shape) * slope.unsqueeze(ctx.axis), None, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], x: Tensor, t: Tensor, axis: int) -> tuple[Tensor, int]:
        assert in_dims[0] is not None
        return _Row.apply(x.movedim(in_dims[0], 0), t, axis + 1), 0


def repeat(body: Body, state: Tree, count: int, like: Tensor, needed: Needed | None = None) -> tuple[Tree, Tree]:
    """The state after `count` steps, and what each gave (`out`), stacked. `like` is any tensor of the device.

    A recording that was made for larger clients leaves out steps that are not `needed`.
    """
    driver = _driver.get()
    if count >= LEAST and not differentiates():
        if like.device.type != "cpu":  # a CPU records nothing, and takes a step on shared weights in one large product
            state = spread(state, like)
        if driver is not None:
            return driver.repeat(body, state, count, like, needed)
    outs = []
    with _owning(False):
        for t in range(count):
            state, out = body(t, state)
            outs.append(out)
    return state, _stacked(outs)


def spread(state: Tree, like: Tensor) -> Tree:
    """The state with what is one for all clients as each client's own, if `like` is: so the first step has the form of
    all others, and is not recorded by itself, with kernels of its own."""
    if not functorch.is_batchedtensor(like) or not like.numel():
        return state
    either = like[(0,) * like.dim()] == 0  # of the client, whatever it says
    own: Tree = tree.map(lambda x: x if functorch.is_batchedtensor(x) else torch.where(either, x, x), state)
    return own


def chunked(f: Callable[[Tree], Tree], xs: Tree, chunk: int) -> Tree:
    """`f` of `chunk` rows of `xs` at a time, the results one after the other; the last chunk may be shorter."""
    size = len(tree.leaves(xs)[0])
    full = size // chunk
    whole = tree.map(lambda x: x[: full * chunk].reshape(full, chunk, *x.shape[1:]), xs)
    _, outs = repeat(lambda t, s: (s, f(tree.map(lambda x: at(x, t), whole))), {}, full, tree.leaves(xs)[0])
    parts = [tree.map(lambda x: x.flatten(0, 1), outs)] if full else []
    if size % chunk:
        parts.append(f(tree.map(lambda x: x[full * chunk :], xs)))
    together: Tree = tree.map(lambda *p: torch.cat(p), *parts) if len(parts) > 1 else parts[0]
    return together


class Stepwise:
    """Drives loops as a recording does, but without one: every step runs, on the device's clock and in fixed places."""

    def repeat(
        self, body: Body, state: Tree, count: int, like: Tensor, needed: Needed | None = None
    ) -> tuple[Tree, Tree]:
        """As the function `repeat`."""
        clock = torch.zeros((), dtype=torch.int64, device=like.device)
        alone: list[Tree] = []
        while len(alone) < count:
            # in memory of its own: what is copied there must not reach the arguments, or two leaves that are one
            loop = Loop(body, tree.map(torch.clone, state), clock, len(alone), count, needed, self.room)
            self.run(loop)
            if loop.settled:
                first = [_stacked(alone)] if alone else []
                return loop.place, tree.map(lambda *xs: torch.cat(xs), *first, loop.outs)
            state = loop.state
            alone.append(loop.out)
        return state, _stacked(alone)

    def room(self, rows: int, like: Tensor) -> Tensor:
        """Memory for so many tensors like this one, that no step uses for anything else."""
        return like.new_empty((rows, *like.shape))

    def run(self, loop: Loop) -> None:
        """Take the loop's next step, and all others if it has settled."""
        loop.step()
        if loop.settled:
            for _ in range(loop.left - 1):
                loop.step()


class Warming(Stepwise):
    """Runs as few steps as tell what a recording will meet: its results mean nothing."""

    def run(self, loop: Loop) -> None:
        loop.step()
        # numbers that were never written could be used as indices
        tree.map(lambda kept, x: kept.copy_(x.expand_as(kept)), loop.outs, loop.out if loop.settled else {})


class Loop:
    """A loop from its step `first` on. It has settled when a step's state has the form of the one before it."""

    def __init__(
        self,
        body: Body,
        place: Tree,
        clock: Tensor,
        first: int,
        count: int,
        needed: Needed | None,
        room: Callable[[int, Tensor], Tensor],
    ) -> None:
        self._body, self.place, self._clock, self._first, self._needed = body, place, clock, first, needed
        self._room = room
        self.left = count - first
        """Steps that are still to take."""
        self.settled = False
        self.state: Tree = {}
        self.out: Tree = {}
        self.outs: Tree = {}
        """What all steps from `first` on gave, stacked; once it has settled."""

    def times(self, room: Room | None) -> int:
        """How often its next step is taken where clients have this room."""
        if not self.settled:
            return 1
        if room is None or self._needed is None or self._needed.size != room.size:
            return self.left
        return max(min(self._needed.steps(room.most) - self._first, self.left), 0)

    def step(self) -> None:
        """One step, at the time that the device's clock has; afterwards the clock is one further."""
        with _owning(True):
            state, out = self._body(self._clock, self.place)
        self.state, self.out = (tree.map(self._kept, given) for given in (state, out))
        before, after = tree.flatten({"s": self.place}), tree.flatten({"s": self.state})
        if self.settled or _alike(before, after, ordered=self._first < LATEST):
            if not self.settled:
                self.outs = tree.map(lambda x: self._room(self.left, x), self.out)
                self.settled = True
            if tree.leaves(self.outs):
                row = (self._clock - self._first).view(1)
                tree.map(lambda kept, x: kept.index_put_((row,), x[None]), self.outs, self.out)
            _write([before[k] for k in before], [after[k] for k in before])
        self._clock.add_(1)

    def _kept(self, x: Tensor) -> Tensor:
        """What a step gave, in memory of its own where it is the clock, which moves on in place."""
        return x.clone() if raw(x).untyped_storage().data_ptr() == self._clock.untyped_storage().data_ptr() else x


_driver: ContextVar[Stepwise | None] = ContextVar("driver", default=None)
_owned: ContextVar[bool] = ContextVar("owned", default=False)


def owned() -> bool:
    """Whether the state that the loop's body got lies in its own places, so that the body may write over it when
    nothing reads it any more: it need not be copied there."""
    return _owned.get()


@contextmanager
def _owning(whether: bool) -> Iterator[None]:
    token = _owned.set(whether)
    try:
        yield
    finally:
        _owned.reset(token)


@contextmanager
def driven(driver: Stepwise | None) -> Iterator[None]:
    """Loops are driven by this driver inside; None unrolls them."""
    token = _driver.set(driver)
    try:
        yield
    finally:
        _driver.reset(token)


def differentiates() -> bool:
    """Whether a derivative is being taken of what surrounds the loop: it needs every step's own values."""
    return any(i.key() != functorch.TransformType.Vmap for i in retrieve_all_functorch_interpreters())


def _stacked(outs: list[Tree]) -> Tree:
    stacked: Tree = tree.stack(outs) if outs else {}
    return stacked


def raw(x: Tensor) -> Tensor:
    """The tensor under all levels of vmap."""
    return _raw(x)[0]


def _raw(x: Tensor) -> tuple[Tensor, tuple[Any, ...]]:
    """The same, and at which place each level's axis is."""
    levels = []
    while functorch.is_batchedtensor(x):
        levels.append((functorch.maybe_get_level(x), functorch.maybe_get_bdim(x)))
        x = functorch.get_unwrapped(x)
    return x, tuple(levels)


def _form(x: Tensor) -> tuple[Any, ...]:
    """All that the choice of kernels may depend on: over which levels of vmap it varies, its shape and its layout."""
    under, levels = _raw(x)
    return levels, under.shape, under.stride(), under.dtype


def _alike(before: dict[str, Tensor], after: dict[str, Tensor], ordered: bool) -> bool:
    """Whether two states have one form; without `ordered`, however their numbers lie in memory."""
    if list(before) != list(after):
        return False
    pairs = [(_form(before[k]), _form(after[k])) for k in before]
    return all(a == b if ordered else (a[:2], a[3]) == (b[:2], b[3]) for a, b in pairs)


def _write(places: list[Tensor], values: list[Tensor]) -> None:
    """Copy values of the same form to their places. Values that lie in other places are read before they change."""
    into, given = [raw(x) for x in places], [raw(x) for x in values]
    taken = {x.untyped_storage().data_ptr() for x in into}
    with torch._C._DisableFuncTorch():
        pairs = [
            (a, b.clone() if b.untyped_storage().data_ptr() in taken else b)
            for a, b in zip(into, given, strict=True)
            if (a.data_ptr(), a.stride()) != (b.data_ptr(), b.stride()) and a.numel()
        ]
        if pairs:
            torch._foreach_copy_([a for a, _ in pairs], [b for _, b in pairs])
