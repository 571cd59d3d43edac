"""CUDA graphs without CUDA: operations are noted while a graph is recorded, and done again when it is replayed.

So what is recorded, how often it is replayed and what it reads can be tested on a CPU. As on a GPU, results lie where
they lay when they were recorded, and Python does not run again. A GPU may use a graph's own memory for several values:
so a replay first spoils all that was made in its graph.
"""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from functools import cache
from typing import ClassVar

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from acclimate.backends.vmap import capture, graphs, warming
from acclimate.core.loops import Warming, driven
from acclimate.ops import augmix

ASKING = ("_local_scalar_dense", "nonzero", "masked_select", "equal", "is_nonzero", "item", "unique", "_unique2")
"""Operations whose result the host must know before it can go on."""
WAITING = ("linalg_eigh", "_linalg_eigh", "linalg_cholesky_ex", "_linalg_svd", "linalg_qr", "linalg_lu_factor_ex")
"""Operations for which torch calls libraries that may wait for the device."""


class Refused(RuntimeError):
    """What a capture does not allow."""


class Tape(TorchDispatchMode):
    """Stands for a CUDA graph and, while one is recorded, for the capture."""

    open: Tape | None = None
    made = 0
    replays = 0
    recorders: ClassVar[list] = []

    def __init__(self):
        super().__init__()
        self.noted, self.made_here = [], []

    def capture_begin(self, pool=None, capture_error_mode="global"):
        assert Tape.open is None
        Tape.open = self
        Tape.made += 1
        self.__enter__()

    def capture_end(self):
        assert Tape.open is self
        Tape.open = None
        self.__exit__(None, None, None)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name, view, mutable = _kind(func)
        if name in ASKING or name in WAITING or name == "lift_fresh":
            raise Refused(f"{name} in a recording")
        if name == "index" and any(i is not None and i.dtype == torch.bool for i in args[1]):
            raise Refused("a boolean index in a recording")
        out = func(*args, **(kwargs or {}))
        if Aside.on:
            return out
        made = [] if mutable else _tensors(out)
        if not view:
            self.made_here += made
        if not view and "empty" not in name:  # neither is a kernel
            self.noted.append((func, args, kwargs or {}, made))
        return out

    @torch.no_grad()
    def replay(self):
        assert Tape.open is None
        Tape.replays += 1
        for x in self.made_here:
            x.fill_(SPOILT if x.dtype in (torch.int64, torch.int32) else float("nan") if x.is_floating_point() else 1)
        for func, args, kwargs, made in self.noted:
            again = func(*args, **kwargs)
            if made:
                for old, new in zip(made, _tensors(again), strict=True):
                    if old.numel():
                        old.copy_(new)


SPOILT = 2**30
"""What lies in memory that another value has used."""


class Aside:
    """A stream that is not recorded."""

    on = False

    def __enter__(self):
        Aside.on = True

    def __exit__(self, *_):
        Aside.on = False


@cache
def _kind(func):
    """The name of an operation, whether it gives a view, and whether it changes what it is given."""
    schema = func._schema
    view = not schema.is_mutable and any(r.alias_info is not None for r in schema.returns)
    return schema.name.removeprefix("aten::"), view or func is torch.ops.aten._unsafe_view.default, schema.is_mutable


def _tensors(out):
    return [out] if isinstance(out, torch.Tensor) else [x for x in tree_flatten(out)[0] if isinstance(x, torch.Tensor)]


def one_hot(y, classes):
    """As torch's, which looks at the range of `y` on a CPU, but not on a GPU."""
    return (y[..., None] == torch.arange(classes)).long()


def warmed(self, f):
    """What a recording does before it is tried again."""
    with driven(Warming()):
        f(*self._inputs)


@contextmanager
def taped():
    """Recordings are made on tapes inside."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("synchronize", "empty_cache"):
            patch.setattr(torch.cuda, name, lambda: None)
        patch.setattr(torch.cuda, "CUDAGraph", Tape)
        patch.setattr(torch.cuda, "stream", lambda s: s or nullcontext())
        patch.setattr(capture.Slot, "renew", lambda self: vars(self).update(stream=None, aside=Aside(), pool=None))
        patch.setattr(torch.cuda, "graph_pool_handle", lambda: None)
        patch.setattr(torch.nn.functional, "one_hot", one_hot)
        patch.setattr(capture.Captured, "warmed", True)
        patch.setattr(capture.Captured, "_warm", warmed)
        patch.setattr(warming, "rehearse", lambda works, who: None)
        patch.setattr(graphs, "forget", lambda pool: None)
        patch.setattr(augmix, "_looks", lambda base: False)
        made, begin = [], capture.Recorder.__init__

        def opened(self, on, exact):
            begin(self, False, exact)
            self.on = True
            made.append(self)

        patch.setattr(capture.Recorder, "__init__", opened)
        Tape.open, Tape.made, Tape.replays, Tape.recorders = None, 0, 0, made
        yield Tape
