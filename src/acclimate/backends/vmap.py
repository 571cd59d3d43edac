"""Many clients at once: one `vmap` of the client function over a cohort, captured as a CUDA graph where there is one.

Clients of similar size share a bucket, padded to its largest; a bucket is cut into chunks that bound memory. On CUDA
each (bucket, chunk) shape is recorded once and replayed every round; where recording fails, one log line says why and
the same function runs eagerly.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.func import vmap

from ..core import check, message, tree
from ..core.adapter import Adapter
from ..core.backend import Backend, Engine, NonFinite, Reply
from ..core.personal import Personalizer
from ..core.shards import Shards
from ..core.stream import Protocol
from ..core.tree import Tree
from ..core.worker import Worker
from .capture import Captured
from .serial import stacked_start

log = logging.getLogger("acclimate")
T = TypeVar("T")


@dataclass(frozen=True)
class Vmap(Backend):
    """Vectorised clients."""

    chunk: int | None = None
    """Clients at once; None starts with 128 on a GPU and 32 on a CPU and halves when memory runs out."""
    waste: float = 0.25
    """A bucket takes clients down to (1 - waste) of its largest, so at most this share of its steps is padding."""
    capture: bool = True
    """Record rounds as CUDA graphs (on CUDA devices)."""

    def __post_init__(self) -> None:
        if self.chunk is not None:
            check.at_least(self, "chunk", 1)
        check.within(self, "waste", 0.0, 1.0)

    def open(self, worker: Worker, train: Shards, device: torch.device) -> VmapEngine:
        return VmapEngine(worker, train, device, self)


class Group(NamedTuple):
    """Clients that run together: padded to `size` examples each, `real` of them count."""

    ids: Tensor
    rows: Tensor
    n: Tensor
    ragged: bool
    real: int


class VmapEngine(Engine):
    """Holds the clients' private state as one stacked tree on the device."""

    def __init__(self, worker: Worker, train: Shards, device: torch.device, options: Vmap) -> None:
        super().__init__(worker, train, device)
        self.options = options
        self._chunk = options.chunk or (128 if device.type == "cuda" else 32)
        self._capture = options.capture and device.type == "cuda"
        self._recorded: dict[Any, Captured] = {}
        self._met: set[Any] = set()
        self._pool = torch.cuda.graph_pool_handle() if self._capture else None
        self._mine = self._start()

    def _start(self) -> Tree:
        return stacked_start(self.worker, self.shards)

    @property
    def mine(self) -> Tree:
        return self._mine

    @mine.setter
    def mine(self, value: Tree) -> None:
        self._mine = value

    def train(self, down: Tree, cohort: Tensor, round: int) -> Reply:
        return self._with_fewer(lambda: self._train(down, cohort, round))

    def _with_fewer(self, run: Callable[[], T]) -> T:
        """Run, with half as many clients at once whenever memory is short."""
        while True:
            try:
                return run()
            except torch.cuda.OutOfMemoryError:
                if self.options.chunk is not None or self._chunk == 1:
                    raise
                self._chunk //= 2
                self._recorded.clear()
                torch.cuda.empty_cache()
                log.warning("out of GPU memory: going on with %d clients at once", self._chunk)

    def _train(self, down: Tree, cohort: Tensor, round: int) -> Reply:
        now = torch.full((), round, dtype=torch.int64, device=self.device)
        part, done = None, []
        for g in self._groups(self.shards, cohort):
            present = torch.arange(len(g.ids), device=self.device) < g.real
            own = {"rows": g.rows, "n": g.n, "id": g.ids}
            inputs = (down, tree.take(self._mine, g.ids), own, {"round": now}, present)
            out = self._run(("train", g.ragged), self._round(g.ragged), inputs, often=True)
            ids, mine, ok, each = (
                tree.map(lambda x, r=g.real: x[:r], t) for t in (g.ids, out["mine"], out["ok"], out["each"])
            )
            one, up = message.Partial(ids, out["sums"], out["weights"], each), out["up"]
            part = one if part is None else message.combine(part, one)
            done.append((ids, mine, ok))
        assert part is not None
        if bad := [c for ids, _, ok in done for c in ids[~ok].tolist()]:
            raise NonFinite(sorted(bad), round)
        for ids, mine, _ in done:
            self._mine = tree.put(self._mine, ids, mine)
        return Reply(part, tree.map(lambda x: torch.empty_like(x, device="meta"), up))

    def _round(self, ragged: bool) -> Callable[..., Any]:
        """The vmapped client function and the reduction of its messages, as one pure function."""
        rules, name = self.worker.method.uplink, type(self.worker.method).__name__

        def client(down: Tree, mine: Tree, own: Tree, clock: Tree) -> tuple[Tree, Tree, Tensor]:
            data = self.shards.tree(own["rows"], own["n"], own["id"], clock["round"], ragged)
            up, new, ok = self.worker.train(down, mine, data)
            message.check_message(rules, up, name)
            return up, new, ok

        def whole(down: Tree, mine: Tree, own: Tree, clock: Tree, present: Tensor) -> Tree:
            ups, new, ok = vmap(client, in_dims=(None, 0, 0, None))(down, mine, own, clock)
            part = message.partial(rules, own["id"], ups, present)
            sums = {"sums": part.sums, "weights": part.weights, "each": part.each}
            return {"mine": new, "ok": ok, "up": tree.take(ups, 0), **sums}

        return whole

    def _run(self, what: tuple[Any, ...], f: Callable[..., Tree], inputs: tuple[Any, ...], often: bool = False) -> Tree:
        """Replay the recording for this work and these shapes, make it, or run eagerly where that is not possible.

        What does not come `often` is recorded when it comes a second time: recording costs as much as running.
        """
        if not self._capture:
            return f(*inputs)
        key = (what, tuple((tuple(x.shape), x.dtype) for x in tree.leaves(dict(enumerate(inputs)))))
        if not often and key not in self._met:
            self._met.add(key)
            return f(*inputs)
        if key not in self._recorded:
            try:
                self._recorded[key] = Captured(f, inputs, self._pool)
            except torch.cuda.OutOfMemoryError:
                raise
            except Exception as reason:
                self._capture = False
                torch.cuda.synchronize()
                log.warning("rounds are not captured as CUDA graphs: %s", str(reason).strip().splitlines()[0])
                return f(*inputs)
        replayed: Tree = self._recorded[key](*inputs)
        return replayed

    def deploy(self, down: Tree, mine: Tree, personal: Personalizer) -> Tree:
        def group(g: Group) -> Tree:
            def client(down: Tree, mine: Tree, own: Tree) -> Tree:
                now = torch.zeros((), dtype=torch.int64, device=self.device)
                data = self.shards.tree(own["rows"], own["n"], own["id"], now, g.ragged)
                return self.worker.personalise(down, mine, data, personal)

            inputs = (down, tree.take(mine, g.ids), {"rows": g.rows, "n": g.n, "id": g.ids})
            return self._run(("deploy", g.ragged, personal), vmap(client, in_dims=(None, 0, 0)), inputs)

        return self._gather(self.shards, group)

    def live(self, models: Tree, client: int) -> Tree:
        one: Tree = tree.take(models, client)
        return one

    def join(self, down: Tree, newcomers: int) -> Tree:
        first, method = self.shards.clients, self.worker.method
        fresh = [self.worker.start(first + i, like=self.shards.n) for i in range(newcomers)]
        models: Tree = tree.stack([method.deploy(self.worker.task, down, tree.to(m, self.device)) for m in fresh])
        return models

    def serve(self, models: Tree, test: Shards, adapter: Adapter, protocol: Protocol, trace: bool = False) -> Tree:
        test = test.to(self.device)
        rows = test.rows.shape[-1] if trace else None

        def group(g: Group) -> Tree:
            def client(model: Tree, own: Tree, x: Tensor, y: Tensor) -> Tree:
                now = torch.zeros((), dtype=torch.int64, device=self.device)
                data = Shards(x, y, test.rows, test.n).tree(own["rows"], own["n"], own["id"], now, g.ragged)
                return self.worker.adapt(model, data, adapter, protocol, rows)

            inputs = (tree.take(models, g.ids), {"rows": g.rows, "n": g.n, "id": g.ids}, test.x, test.y)
            what = ("serve", g.ragged, adapter, protocol, rows)
            return self._run(what, vmap(client, in_dims=(0, 0, None, None)), inputs)

        served: Tree = tree.to(self._gather(test, group), "cpu")
        return served

    def _gather(self, shards: Shards, run: Callable[[Group], Tree]) -> Tree:
        """Results of every client, bucket by bucket, back in client order."""
        parts = []
        for g in self._groups(shards, torch.arange(shards.clients)):
            parts.append((g.ids[: g.real], tree.map(lambda x, r=g.real: x[:r], run(g))))
        order = torch.argsort(torch.cat([ids for ids, _ in parts]))
        return tree.map(lambda *xs: torch.cat(xs)[order], *(t for _, t in parts))

    def _groups(self, shards: Shards, clients: Tensor) -> Iterator[Group]:
        for members, size in buckets(shards.n.cpu()[clients], self.options.waste):
            for ids in clients[members].split(self._chunk):
                yield self._group(shards, ids, size, whole=len(ids) == len(clients))

    def _group(self, shards: Shards, ids: Tensor, size: int, whole: bool) -> Group:
        real = len(ids)
        if self.device.type == "cuda" and not whole:
            # few distinct shapes, so few recordings: round up to an eighth of a power of two with uncounted copies
            grain = max((1 << (real - 1).bit_length()) // 8, 1)
            ids = torch.cat([ids, ids[:1].expand(-real % grain)])
        ids = ids.to(self.device)
        n = shards.n[ids]
        return Group(ids, shards.rows[ids, : max(size, 1)], n, bool((n != size).any()), real)


def buckets(sizes: Tensor, waste: float) -> list[tuple[Tensor, int]]:
    """Positions grouped so that no group's smallest is below (1 - waste) of its largest; with that largest size."""
    order = torch.argsort(sizes, descending=True, stable=True)
    out: list[tuple[Tensor, int]] = []
    start = 0
    while start < len(order):
        top = int(sizes[order[start]])
        end = start + int((sizes[order[start:]] >= (1 - waste) * top).sum())
        out.append((order[start:end].sort().values, top))
        start = end
    return out
