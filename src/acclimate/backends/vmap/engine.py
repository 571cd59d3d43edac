"""Many clients at once: one `vmap` of the client function over a cohort, captured as a CUDA graph where there is one.

Clients of similar size share a bucket, padded to its largest; a bucket is cut into chunks that bound memory
(buckets.py). On CUDA each (bucket, chunk) shape is recorded once, by its steps, and replayed every round, several side
by side; where recording fails, one log line says why and the same function runs as it is (capture.py). Private state
and examples lie on the device, or where there are too many of them in files and host memory (transfer.py). Several
trainings may run as lanes of one engine (lanes.py). The host waits for the device at the end of a round, when the
server's half is in the device's queue, too: to learn whether all values are finite.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from ...core import (
    Adapter,
    Backend,
    CannotCalibrate,
    CannotExchange,
    Engine,
    Exchanging,
    Holdings,
    Lanes,
    Personalizer,
    Private,
    Protocol,
    Reply,
    Shards,
    Stacked,
    Tree,
    Worker,
    check,
    exchange,
    message,
    tree,
)
from ...core.backend import Attempt
from ...core.private import private
from ...core.vectorised import CannotVectorise, refusal
from ..serial import stacked_start, welcomed
from . import rooms, shelf, warming
from .buckets import Buckets, Group
from .capture import Job, Recorder, over
from .clients import calibrated, deployed, own, round_of, served
from .lanes import Lane, LaneShards, LaneWorker, Unconfirmed, lane_of, not_finite
from .state_file import Rows
from .transfer import Feeder

MANY_CLIENTS, MUCH_STATE = 10_000, 4 * 2**30
"""Above so many clients, or bytes of private state, it lies in a file unless the options say otherwise."""
MUCH_DATA = 4 * 2**30
"""Above so many bytes, examples stay in host memory unless the options say otherwise."""


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
    """Precision of products and convolutions: `tf32` is what torch is set to (TF32 for convolutions on a GPU), `fp32`
    forbids TF32, `bf16` runs models in bfloat16 while parameters, optimisers and messages stay in float32."""

    def __post_init__(self) -> None:
        if self.chunk is not None:
            check.at_least(self, "chunk", 1)
        check.within(self, "waste", 0.0, 1.0)
        check.choices(self)

    def open(self, worker: Worker, train: Holdings, device: torch.device) -> VmapEngine:
        return VmapEngine([Lane(worker, train)], device, self)

    def open_lanes(self, lanes: Sequence[Lane], device: torch.device) -> VmapEngine:
        """An engine that runs several trainings side by side. Lanes are for federations that do not fill a GPU, so
        everything lies on the device."""
        return VmapEngine(lanes, device, replace(self, private="device", examples="device"))

    def computing(self, worker: Worker) -> Worker:
        """The client half in the precision of these options."""
        return replace(worker, task=worker.task.computing(torch.bfloat16)) if self.precision == "bf16" else worker

    def placed(self, shards: Holdings, device: torch.device) -> Holdings:
        """Shards where these options want them."""
        much = device.type == "cuda" and shards.x.numel() * shards.x.element_size() > MUCH_DATA
        if self.examples == "host" or (self.examples is None and much):
            return shards.on_host()
        return shards.to(device)

    def in_a_file(self, row: Tree, clients: int) -> bool:
        """Whether private state like this row goes into a file."""
        if self.private is not None:
            return self.private == "mapped"
        return clients > MANY_CLIENTS or clients * tree.nbytes(row) > MUCH_STATE


class Undeployed(NamedTuple):
    """Live models of more clients than fit in memory: made when they are asked for."""

    down: Tree
    mine: Private
    personal: Personalizer


class VmapEngine(Engine):
    """Runs one or more lanes. It holds the clients' private state in memory on the device, or as rows in a file."""

    shards: Holdings

    def __init__(self, lanes: Sequence[Lane], device: torch.device, options: Vmap) -> None:
        if reason := refusal(lanes[0].worker.task, device):
            raise CannotVectorise(f"{reason}; set backend=auto or backend=serial")
        self._halves = [options.computing(lane.worker) for lane in lanes]
        one = len(lanes) == 1
        worker = self._halves[0] if one else LaneWorker.of(self._halves, device)
        if not one and (reason := worker.refusal()):
            raise CannotVectorise(reason)
        train = lanes[0].train if one else LaneShards.union([lane.train for lane in lanes])
        super().__init__(worker, options.placed(train, device), device)
        self.options, self.lanes, self._each = options, Lanes(len(lanes)), lanes[0].train.clients
        self.recorder = Recorder(options.capture and device.type == "cuda", exact=options.precision == "fp32")
        if self.recorder.on:
            about = (device, options, self.lanes)
            self.recorder, self.shards = shelf.shelved(worker, self.shards, about, self.recorder)
        warming.expect(device)
        self.feeder = Feeder(self.shards, device)
        self.buckets = Buckets(options.waste, options.chunk, device, self.feeder.there, self._forget)
        self._next: Tensor | None = None
        self._planned: tuple[Tensor, list[Group]] | None = None
        self._unconfirmed: Unconfirmed | None = None
        self._mine = self._fresh([self.shards] if one else [lane.train for lane in lanes])

    def _forget(self) -> None:
        """Give back the memory of all recordings of the process; groups are cut anew."""
        self._planned = None
        shelf.forget()
        self.recorder.forget()

    def _fresh(self, held: Sequence[Holdings]) -> Private:
        """The private state before the first round; `held` has the clients of every lane."""
        row = self._halves[0].start(0)
        tree.check(row, f"{type(self.worker.method).__name__}.init_client")
        if not tree.leaves(row):
            return Stacked(row)
        if self.options.in_a_file(row, self.shards.clients):
            start, alike = self.worker.start, self.worker.alike
            return Rows.fresh(start, self.shards.clients, self.device, self.options.folder, alike)
        starts = [Stacked(stacked_start(w, own)) for w, own in zip(self._halves, held, strict=True)]
        return Stacked(tree.to(self.lanes.mine(starts), self.device))

    @property
    def mine(self) -> Private:
        self._confirm()
        return self._mine

    @mine.setter
    def mine(self, value: Any) -> None:
        self._confirm()
        self._mine, self.feeder.ahead = private(value), None

    def expect(self, cohort: Tensor) -> None:
        """Say who takes part in the next round: it is prepared while the device computes this one."""
        self._next = cohort

    def train(self, down: Tree, cohort: Tensor, round: int) -> Reply:
        reply = self.train_lanes([down], [cohort], round)[0]
        self._confirm()
        return reply

    def settle(self, reply: Reply, server: Tree, attempt: Attempt) -> tuple[Tree, Reply]:
        try:
            return super().settle(reply, server, attempt)
        finally:  # also where the server could not use the messages: a client that is not finite is why
            self._confirm()

    def train_lanes(self, downs: Sequence[Tree], cohorts: Sequence[Tensor], round: int) -> list[Reply]:
        self._confirm()  # before other streams use the memory of the last round's results again
        down, everyone = self.lanes.downs(downs), self.lanes.cohort(cohorts, self._each)
        return self.buckets.with_fewer("train", len(everyone), lambda: self._train(down, everyone, round))

    def _train(self, down: Tree, cohort: Tensor, round: int) -> list[Reply]:
        """One round of these clients; a reply for every lane."""
        now = torch.full((), round, dtype=torch.int64, device=self.device)
        upcoming, self._next, then = self._next, None, None
        far = self.feeder.serves(self._mine)  # then what a group needs travels while the one before it computes
        if upcoming is not None and far:
            then = next(self.buckets.groups(self.shards, upcoming))
        groups = self._groups(cohort)
        jobs = (self._job(down, now, *fed) for fed in self.feeder.feed(groups, self._mine, then))
        outs = (self.recorder.run(*job) for job in jobs) if far else self.recorder.run_all(list(jobs))
        if upcoming is not None and not far:
            self._planned = upcoming, list(self.buckets.groups(self.shards, upcoming))
        parts, done = None, []
        for g, out in zip(groups, outs, strict=True):
            here = [part.of(some) for part, some in zip(out.parts, self._members(g), strict=True)]
            parts = here if parts is None else [message.combine(a, b) for a, b in zip(parts, here, strict=True)]
            done.append((g, *over(lambda x, real=g.real: x[:real], (out.mine, out.ok))))
        assert parts is not None
        self._keep(done, round)
        return [Reply(part, out.up) for part in parts]

    def _groups(self, cohort: Tensor) -> list[Group]:
        """The groups of a cohort: those that were planned, where it was expected."""
        planned, self._planned = self._planned, None
        if planned is not None and torch.equal(planned[0], cohort):
            return planned[1]
        return list(self.buckets.groups(self.shards, cohort))

    def _job(self, down: Tree, now: Tensor, g: Group, mine: Tree, examples: Tree) -> Job:
        """A round of a group: what it computes, and of what."""
        present = torch.arange(len(g.ids), device=self.device) < g.real
        inputs = (down, mine, own(g, self.shards), {"round": now}, present, examples)
        work = round_of(self.worker, self.shards, g.ragged, self.lanes.count)
        return Job(("train", g.ragged), work, inputs, g.room)

    def _members(self, g: Group) -> Sequence[slice | Tensor]:
        """The clients of every lane in a group, without padding."""
        if self.lanes.count == 1:
            return [slice(g.real)]
        lane = lane_of(g.who[: g.real], self._each)
        return [self.feeder.there((lane == i).nonzero()[:, 0]) for i in range(self.lanes.count)]

    def _keep(self, done: Sequence[tuple[Group, Tree, Tensor]], round: int) -> None:
        """Keep the new private states, until `_confirm` knows better."""
        who = torch.cat([g.who[: g.real] for g, _, _ in done])
        mine, ok = self._mine, torch.cat([ok for _, _, ok in done])
        self._unconfirmed = Unconfirmed(ok, who, round, mine)
        if mine.far:  # what is written to a file is not taken back
            self._confirm()
        for g, new, _ in done:
            mine = mine.put(g.asked(mine)[: g.real], new)
        self._mine = mine  # at once: where memory runs out before, the round is run again from the old states
        self.feeder.trained(who)

    def _confirm(self) -> None:
        """Refuse a round with values that are not finite, and its private states. Here the host waits for the device,
        if it has not yet."""
        if self._unconfirmed is None:
            return
        last, self._unconfirmed = self._unconfirmed, None
        if bad := last.not_finite():
            self._mine, self.feeder.ahead = last.before, None
            raise not_finite(self._halves, bad, self._each, last.round)

    def deploy(self, down: Tree, mine: Private, personal: Personalizer) -> Any:
        if mine.far:
            return Undeployed(down, mine, personal)
        return self._deployed(down, mine, personal, torch.arange(self.shards.clients))

    def _deployed(self, down: Tree, mine: Private, personal: Personalizer, clients: Tensor) -> Tree:
        """The live models of some clients, stacked."""

        def group(g: Group) -> Tree:
            inputs = (down, mine.take(g.asked(mine)), own(g, self.shards), self.feeder.examples(self.shards, g))
            work = deployed(self.worker, self.shards, g.ragged, personal)
            models: Tree = self.recorder.run(("deploy", g.ragged, personal), work, inputs)
            return models

        return self.buckets.collect(self.shards, clients, group)

    def model_of(self, models: Any, client: int) -> Tree:
        one: Tree = tree.take(self._live(models, torch.tensor([client])), 0)
        return one

    def _live(self, models: Any, who: Tensor) -> Tree:
        """The live models of some clients, out of the handle that `deploy` gave."""
        if not isinstance(models, Undeployed):
            taken: Tree = tree.take(models, self.feeder.there(who))
            return taken
        distinct, places = who.unique(return_inverse=True)
        found: Tree = tree.take(self._deployed(*models, distinct), self.feeder.there(places))
        return found

    def calibrated(self, models: Any, held: Holdings, adapter: Adapter) -> Tree:
        if isinstance(models, Undeployed):
            raise CannotCalibrate(f"{type(adapter).__name__} needs the models in memory: set backend.private=device")
        held = self.options.placed(held, self.device)

        def group(g: Group) -> Tree:
            examples = self.feeder.examples(held, g) or {"x": held.x, "y": held.y}
            inputs = (self._live(models, g.who), own(g, held), examples)
            work = calibrated(self.worker, held, g.ragged, adapter)
            references: Tree = self.recorder.run(("calibrate", g.ragged, adapter), work, inputs)
            return references

        return {**models, "reference": self.buckets.collect(held, torch.arange(held.clients), group)}

    def join(self, down: Tree, newcomers: int) -> Tree:
        who, downs = range(self._each, self._each + newcomers), self.lanes.each_down(down)
        models = [welcomed(w, own, who, self.device) for w, own in zip(self._halves, downs, strict=True)]
        stacked: Tree = tree.stack([model for lane in models for model in lane])
        return stacked

    def gather(self, tests: Sequence[Shards]) -> Shards:
        return tests[0] if self.lanes.count == 1 else LaneShards.union(tests).to(self.device)

    def serve(self, models: Any, test: Holdings, adapter: Adapter, protocol: Protocol, trace: bool = False) -> Tree:
        test = self.options.placed(test, self.device)
        if exchange.exchanges(adapter):
            return self._serve_together(models, test, adapter, protocol)
        rows = test.longest if trace else None
        shares = self.buckets.few_shapes and adapter.skips and not (trace or test.far)
        test = rooms.widened(test) if shares else test

        def group(g: Group) -> Tree:
            # inputs and not closed over: a recording is replayed on other test data of the same shape
            examples = self.feeder.examples(test, g) or {"x": test.x, "y": test.y}
            work = served(self.worker, test, g.ragged, adapter, protocol, rows)
            inputs = (self._live(models, g.who), own(g, test), examples)
            metrics: Tree = self.recorder.run(("serve", g.ragged, adapter, protocol, rows), work, inputs, g.room)
            return metrics

        found: Tree = tree.to(self.buckets.collect(test, torch.arange(test.clients), group, shares), "cpu")
        return found

    def _serve_together(self, models: Any, test: Holdings, adapter: Exchanging, protocol: Protocol) -> Tree:
        """Serve clients that exchange with those of their own lane, one lane after the other."""
        if isinstance(models, Undeployed):
            raise CannotExchange(f"{type(adapter).__name__} needs the models in memory: set backend.private=device")
        options = replace(self.options, private="device")
        each, found = test.clients // self.lanes.count, []
        for lane, half in enumerate(self._halves):
            ids = torch.arange(lane * each, (lane + 1) * each)
            own = test if self.lanes.count == 1 else test.some(ids)

            def opened(worker: Worker, own: Holdings = own) -> Engine:
                return VmapEngine([Lane(worker, own)], self.device, options)

            live = tree.take(models, self.feeder.there(ids))
            found.append(exchange.serve(half, live, own, adapter, protocol, opened))
        metrics: Tree = tree.map(lambda *xs: torch.cat(xs), *found)
        return metrics
