"""Many clients at once: one `vmap` of the client function over a cohort, captured as a CUDA graph where there is one.

Clients of similar size share a bucket, padded to its largest; a bucket is cut into chunks that bound memory. On CUDA
each (bucket, chunk) shape is recorded once and replayed every round; where recording fails, one log line says why and
the same function runs eagerly. Private state and examples lie on the device, or where there are too many of them in
files and host memory (feeding.py). The host waits for the device once per round,
at its end, to learn whether all values are finite.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.func import vmap

from ...core import (
    Adapter,
    Backend,
    Engine,
    HostShards,
    NonFinite,
    Personalizer,
    Protocol,
    Reply,
    Shards,
    Tree,
    Worker,
    check,
    message,
    tree,
)
from ..serial import stacked_start, welcomed
from . import state_file
from .buckets import Group, plan
from .capture import Captured, tf32
from .state_file import Private, Rows
from .transfer import Feeder

log = logging.getLogger("acclimate")
T = TypeVar("T")
Verb = Literal["train", "test"]
"""What clients are run for; how many fit at once is another number for each."""

MANY_CLIENTS, MUCH_STATE = 10_000, 4 * 2**30
"""Above so many clients, or bytes of private state, it lies in a file unless told otherwise."""
MUCH_DATA = 4 * 2**30
"""Above so many bytes, examples stay in host memory unless told otherwise."""
MOST_RECORDINGS = 64
"""Recorded shapes that are kept; the one that was not used for longest goes first."""


@dataclass(frozen=True)
class Vmap(Backend):
    """Vectorised clients."""

    chunk: int | None = None
    """Clients at once; None starts with 128 on a GPU and 32 on a CPU and halves when memory runs out."""
    waste: float = 0.25
    """A bucket takes clients down to (1 - waste) of its largest, so at most this share of its steps is padding."""
    capture: bool = True
    """Record rounds as CUDA graphs (on CUDA devices)."""
    private: Literal["device", "mapped"] | None = None
    """Where private state lies: stacked on the device, or in a memory-mapped file; None decides by its size."""
    folder: str | None = None
    """Where that file is made; None: the system's folder for temporary files (on some systems that is memory)."""
    examples: Literal["device", "host"] | None = None
    """Where training and test data lie: on the device, or in host memory; None decides by their size."""
    precision: Literal["tf32", "fp32", "bf16"] = "tf32"
    """Of products and convolutions: `tf32` is what torch is set to (TF32 for convolutions on a GPU), `fp32` forbids
    TF32, `bf16` runs models in bfloat16 while parameters, optimisers and messages stay in float32."""

    def __post_init__(self) -> None:
        if self.chunk is not None:
            check.at_least(self, "chunk", 1)
        check.within(self, "waste", 0.0, 1.0)
        check.choices(self)

    def open(self, worker: Worker, train: Shards, device: torch.device) -> VmapEngine:
        return VmapEngine(worker, train, device, self)

    def placed(self, shards: Shards, device: torch.device) -> Shards:
        """Shards where these options want them."""
        much = device.type == "cuda" and shards.x.numel() * shards.x.element_size() > MUCH_DATA
        if self.examples == "host" or (self.examples is None and much):
            return HostShards.among(shards)
        return shards.to(device)

    def in_a_file(self, row: Tree, clients: int) -> bool:
        """Whether private state like this row goes into a file."""
        if self.private is not None:
            return self.private == "mapped"
        return clients > MANY_CLIENTS or clients * tree.nbytes(row) > MUCH_STATE


class Undeployed(NamedTuple):
    """Live models of more clients than fit in memory: made when they are asked for."""

    down: Tree
    mine: Rows
    personal: Personalizer


class VmapEngine(Engine):
    """Holds the clients' private state as one stacked tree on the device, or as rows in a file."""

    def __init__(self, worker: Worker, train: Shards, device: torch.device, options: Vmap) -> None:
        if options.precision == "bf16":
            worker = replace(worker, task=worker.task.computing(torch.bfloat16))
        super().__init__(worker, options.placed(train, device), device)
        self.options = options
        most = options.chunk or (128 if device.type == "cuda" else 32)
        self._chunk = {"train": most, "test": most}
        self._capture = options.capture and device.type == "cuda"
        self._recorded: dict[Any, Captured] = {}
        self._met: set[Any] = set()
        self._pool = torch.cuda.graph_pool_handle() if self._capture else None
        self._feeder = Feeder(self.shards, device)
        self._next: Tensor | None = None
        self._mine = self._start()

    def _start(self) -> Private:
        row = self.worker.start(0)
        tree.check(row, f"{type(self.worker.method).__name__}.init_client")
        if not tree.leaves(row):
            return row
        if not self.options.in_a_file(row, self.shards.clients):
            stacked: Tree = tree.to(stacked_start(self.worker, self.shards), self.device)
            return stacked
        return Rows.fresh(self.worker.start, self.shards.clients, self.device, self.options.folder)

    @property
    def mine(self) -> Any:
        return self._mine

    @mine.setter
    def mine(self, value: Any) -> None:
        self._mine, self._feeder.ahead = value, None

    def expect(self, cohort: Tensor) -> None:
        """Say who takes part in the next round: what they need travels at the end of this one."""
        self._next = cohort

    def train(self, down: Tree, cohort: Tensor, round: int) -> Reply:
        return self._with_fewer("train", lambda: self._train(down, cohort, round))

    def _with_fewer(self, work: Verb, run: Callable[[], T]) -> T:
        """Run, with half as many clients at once whenever memory is short."""
        while True:
            try:
                return run()
            except torch.cuda.OutOfMemoryError:
                if self.options.chunk is not None or self._chunk[work] == 1:
                    raise
                self._chunk[work] //= 2
                self._recorded.clear()
                torch.cuda.empty_cache()
                log.warning("out of GPU memory: going on to %s %d clients at once", work, self._chunk[work])

    def _train(self, down: Tree, cohort: Tensor, round: int) -> Reply:
        now = torch.full((), round, dtype=torch.int64, device=self.device)
        upcoming, self._next, then = self._next, None, None
        if upcoming is not None and self._feeder.serves(self._mine):
            then = next(self._groups(self.shards, upcoming))
        part, done = None, []
        for g, mine, examples in self._feeder.feed(list(self._groups(self.shards, cohort)), self._mine, then):
            present = torch.arange(len(g.ids), device=self.device) < g.real
            inputs = (down, mine, self._own(g, self.shards.clients), {"round": now}, present, examples)
            out = self._run(("train", g.ragged), self._round(g.ragged), inputs, often=True)
            new, ok, each = (tree.map(lambda x, r=g.real: x[:r], out[k]) for k in ("mine", "ok", "each"))
            one, up = message.Partial(g.ids[: g.real], out["sums"], out["weights"], each), out["up"]
            part = one if part is None else message.combine(part, one)
            done.append((g, new, ok))
        assert part is not None
        self._settle(done, round)
        return Reply(part, tree.map(lambda x: torch.empty_like(x, device="meta"), up))

    def _settle(self, done: list[tuple[Group, Tree, Tensor]], round: int) -> None:
        """Keep the new private states, or refuse all of them. Here the host waits for the device."""
        fine = torch.cat([ok for _, _, ok in done]).cpu()
        who = torch.cat([g.who[: g.real] for g, _, _ in done])
        if bad := sorted(who[~fine].tolist()):
            raise self._named(bad, round)
        mine = self._mine
        for g, new, _ in done:
            mine = state_file.put(mine, (g.who if isinstance(mine, Rows) else g.ids)[: g.real], new)
        self._mine = mine  # at once: where memory runs out before, the round is run again from the old states

    def _named(self, clients: list[int], round: int) -> NonFinite:
        """Whom a failed round is laid on."""
        return NonFinite(clients, round)

    def _round(self, ragged: bool) -> Callable[..., Any]:
        """The vmapped client function and the reduction of its messages, as one pure function."""
        rules, name = self.worker.uplink, type(self.worker.method).__name__

        def client(down: Tree, mine: Tree, own: Tree, clock: Tree, examples: Tree) -> tuple[Tree, Tree, Tensor]:
            data = self.shards.tree(own["rows"], own["n"], own["id"], clock["round"], ragged)
            up, new, ok = self.worker.train(down, mine, data | examples)
            message.check_message(rules, up, name)
            return up, new, ok

        def whole(down: Tree, mine: Tree, own: Tree, clock: Tree, present: Tensor, examples: Tree) -> Tree:
            ups, new, ok = vmap(client, in_dims=(None, 0, 0, None, None))(down, mine, own, clock, examples)
            part = message.partial(rules, own["id"], self.worker.read(ups), present)
            sums = {"sums": part.sums, "weights": part.weights, "each": part.each}
            return {"mine": new, "ok": ok, "up": tree.take(ups, 0), **sums}

        return whole

    def _run(self, what: tuple[Any, ...], f: Callable[..., Tree], inputs: tuple[Any, ...], often: bool = False) -> Tree:
        """Replay the recording for this work and these shapes, make it, or run eagerly where that is not possible.

        What does not come `often` is recorded when it comes a second time: recording costs as much as running.
        """
        with tf32(False) if self.options.precision == "fp32" else nullcontext():
            if not self._capture:
                return f(*inputs)
            key = (what, tuple((tuple(x.shape), x.dtype) for x in tree.leaves(dict(enumerate(inputs)))))
            if not often and key not in self._met:
                self._met.add(key)
                return f(*inputs)
            recorded = self._recording(key, f, inputs)
            out: Tree = f(*inputs) if recorded is None else recorded(*inputs)
            return out

    def _recording(self, key: Any, f: Callable[..., Tree], inputs: tuple[Any, ...]) -> Captured | None:
        """The recording of this work, made where it is not there; None where it cannot be made."""
        recorded = self._recorded.pop(key, None)
        if recorded is None:
            try:
                recorded = Captured(f, inputs, self._pool)
            except torch.cuda.OutOfMemoryError:
                raise
            except Exception as reason:
                self._capture = False
                torch.cuda.synchronize()
                log.warning("rounds are not captured as CUDA graphs: %s", str(reason).strip().splitlines()[0])
                return None
        self._recorded[key] = recorded  # at the end: the first is the one that was not used for longest
        while len(self._recorded) > MOST_RECORDINGS:
            del self._recorded[next(iter(self._recorded))]
        return recorded

    def deploy(self, down: Tree, mine: Private, personal: Personalizer) -> Any:
        if isinstance(mine, Rows):
            return Undeployed(down, mine, personal)
        return self._deployed(down, mine, personal, torch.arange(self.shards.clients))

    def _deployed(self, down: Tree, mine: Private, personal: Personalizer, clients: Tensor) -> Tree:
        """The live models of some clients, stacked."""

        def group(g: Group) -> Tree:
            def client(down: Tree, mine: Tree, own: Tree, examples: Tree) -> Tree:
                return self._personalise(down, mine, own, examples, g.ragged, personal)

            own, examples = self._own(g, self.shards.clients), self._examples(self.shards, g)
            inputs = (down, state_file.take(mine, g.who if isinstance(mine, Rows) else g.ids), own, examples)
            return self._run(("deploy", g.ragged, personal), vmap(client, in_dims=(None, 0, 0, None)), inputs)

        return self._gather(self.shards, clients, group)

    def _personalise(
        self, down: Tree, mine: Tree, own: Tree, examples: Tree, ragged: bool, personal: Personalizer
    ) -> Tree:
        now = torch.zeros((), dtype=torch.int64, device=self.device)
        data = self.shards.tree(own["rows"], own["n"], own["id"], now, ragged)
        return self.worker.personalise(down, mine, data | examples, personal)

    def _own(self, g: Group, clients: int) -> Tree:
        """What is each client's own among the inputs of a vmapped function; `clients` is how many there are in all."""
        return {"rows": g.rows, "n": g.n, "id": g.ids}

    def _worker(self, own: Tree) -> Worker:
        """What a client runs."""
        return self.worker

    def _examples(self, shards: Shards, g: Group) -> Tree:
        """The examples of a group where they do not lie on the device."""
        if not isinstance(shards, HostShards):
            return {}
        fetched: Tree = tree.to(shards.fetch(g.who, g.size), self.device)
        return fetched

    def model_of(self, models: Any, client: int) -> Tree:
        one: Tree = tree.take(self._live(models, torch.tensor([client])), 0)
        return one

    def _live(self, models: Any, who: Tensor) -> Tree:
        """The live models of some clients, out of the handle that `deploy` gave."""
        if not isinstance(models, Undeployed):
            taken: Tree = tree.take(models, self._feeder.there(who))
            return taken
        distinct, places = who.unique(return_inverse=True)
        made: Tree = tree.take(self._deployed(*models, distinct), self._feeder.there(places))
        return made

    def join(self, down: Tree, newcomers: int) -> Tree:
        who = range(self.shards.clients, self.shards.clients + newcomers)
        models: Tree = tree.stack(welcomed(self.worker, down, who, self.device))
        return models

    def serve(self, models: Any, test: Shards, adapter: Adapter, protocol: Protocol, trace: bool = False) -> Tree:
        test = self.options.placed(test, self.device)
        rows = test.longest if trace else None

        def group(g: Group) -> Tree:
            def client(model: Tree, own: Tree, examples: Tree) -> Tree:
                now = torch.zeros((), dtype=torch.int64, device=self.device)
                data = test.tree(own["rows"], own["n"], own["id"], now, g.ragged)
                return self._worker(own).adapt(model, data | examples, adapter, protocol, rows)

            own = self._own(g, test.clients)
            # inputs and not closed over: a recording is replayed on other test data of the same shape
            examples = self._examples(test, g) or {"x": test.x, "y": test.y}
            what = ("serve", g.ragged, adapter, protocol, rows)
            return self._run(what, vmap(client, in_dims=(0, 0, None)), (self._live(models, g.who), own, examples))

        served: Tree = tree.to(self._gather(test, torch.arange(test.clients), group), "cpu")
        return served

    def _gather(self, shards: Shards, clients: Tensor, run: Callable[[Group], Tree]) -> Tree:
        """Results of these clients, bucket by bucket, in ascending order of clients."""

        def each() -> list[tuple[Tensor, Tree]]:
            groups = self._groups(shards, clients, "test")
            return [(g.who[: g.real], tree.map(lambda x, r=g.real: x[:r], run(g))) for g in groups]

        parts = self._with_fewer("test", each)
        order = self._feeder.there(torch.argsort(torch.cat([who for who, _ in parts])))
        return tree.map(lambda *xs: torch.cat(xs)[order], *(t for _, t in parts))

    def _groups(self, shards: Shards, clients: Tensor, work: Verb = "train") -> Iterator[Group]:
        # recordings are made for shapes, so what a drawn cohort looks like must not matter much
        drawn = self.device.type == "cuda" and len(clients) < shards.clients
        largest = shards.largest if drawn else None
        for members, size, count in plan(shards.sizes[clients], self.options.waste, self._chunk[work], largest):
            who = clients[members]
            ragged = not shards.even if drawn else bool((shards.sizes[who] != size).any())
            yield self._group(shards, who, size, count, ragged)

    def _group(self, shards: Shards, who: Tensor, size: int, count: int, ragged: bool) -> Group:
        real = len(who)
        who = torch.cat([who, who[:1].expand(count - real)])
        ids, n = self._feeder.there(who), self._feeder.there(shards.sizes[who])
        if isinstance(shards, HostShards):  # fetched examples lie client after client
            rows = torch.arange(count * max(size, 1), device=self.device).view(count, -1)
        else:
            rows = shards.table(ids, size)
        return Group(ids, rows, n, ragged, real, who)
