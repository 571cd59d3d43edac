"""Several seeds of one experiment in one vmap: each seed is a lane with its own clients, server and random numbers.

A lane's numbers are those of its own run. The clients of all lanes form one cohort, so that a GPU which twenty clients
cannot fill is filled by sixty, and a round is recorded once for all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor
from torch.func import vmap

from ...core import Adapter, NonFinite, Personalizer, Protocol, Reply, Shards, State, Tree, Worker, fit, message, tree
from ...core.backend import Joint
from ...core.fit import Schedule
from ..serial import stacked_start, welcomed
from .buckets import Group
from .engine import Vmap, VmapEngine
from .state_file import Private


class Lane(NamedTuple):
    """One seed's run: its client half, its labelled training data and its validation data."""

    worker: Worker
    train: Shards
    val: Shards


def union(parts: Sequence[Shards]) -> Shards:
    """The clients of all parts as one federation. Examples that the parts share lie in memory once."""
    places: dict[int, int] = {}
    kept: list[Shards] = []
    total, rows = 0, []
    for p in parts:
        if id(p.x) not in places:
            places[id(p.x)] = total
            kept.append(p)
            total += len(p.x)
        start = places[id(p.x)]
        rows += [p.own(k) + start for k in range(p.clients)]
    return Shards.of(torch.cat([p.x for p in kept]), torch.cat([p.y for p in kept]), rows)


class Lanes(Joint):
    """Trains several lanes together. All share one record of method, model and schedule, and the number of clients."""

    def __init__(self, lanes: Sequence[Lane], device: torch.device, options: Vmap) -> None:
        self.lanes, self.clients = tuple(lanes), lanes[0].train.clients
        self.task, self.size = lanes[0].worker.task, len(lanes)
        if any(lane.train.clients != self.clients for lane in lanes):
            raise ValueError("lanes need the same number of clients in each")
        self.engine = _Engine(self.lanes, device, options)
        self._val = union([lane.val for lane in self.lanes])

    def start(self) -> list[State]:
        """Every lane's state before its first round."""
        states = [fit.start(lane.worker, self.engine, self.clients) for lane in self.lanes]
        return [replace(s, mine=m) for s, m in zip(states, self._apart(self.engine.mine), strict=True)]

    def rounds(self, schedule: Schedule, states: list[State]) -> Iterator[list[State]]:
        """Train from `states` (all after the same round) to the last round, yielding every lane's state."""
        self.engine.mine = tree.map(lambda *xs: torch.cat(xs), *(s.mine for s in states))
        for r in range(states[0].round, schedule.rounds):
            cohorts = [fit.sample(lane.worker, schedule, r) for lane in self.lanes]
            workers = [lane.worker for lane in self.lanes]
            downs = [w.outgoing(d, c) for w, d, c in zip(workers, self._downs(states), cohorts, strict=True)]
            replies = self.engine.train_together(tree.stack(downs), cohorts, r)
            mine = self._apart(self.engine.mine)
            states = [
                replace(
                    s,
                    round=r + 1,
                    server=fit.update(lane.worker, s.server, reply, cohort, r, self.engine.device),
                    mine=own,
                    cost=fit.add_cost(s.cost, reply, down, len(cohort)),
                )
                for lane, s, reply, cohort, own, down in zip(
                    self.lanes, states, replies, cohorts, mine, downs, strict=True
                )
            ]
            if schedule.evaluates(r):
                states = self._validate(states)
            yield states

    def _validate(self, states: list[State]) -> list[State]:
        models = self.engine.deploy(tree.stack(self._downs(states)), self.engine.mine, Personalizer())
        metrics = self._apart(self.engine.serve(models, self._val, Adapter(), Protocol()))
        return [fit.judge(s, m) for s, m in zip(states, metrics, strict=True)]

    def _downs(self, states: list[State]) -> list[Tree]:
        return self.downloads([s.server for s in states])

    def _apart(self, stacked: Tree) -> list[Tree]:
        """What is stacked over all clients, lane by lane."""
        each = len(tree.leaves(stacked)[0]) // len(self.lanes) if tree.leaves(stacked) else 0
        return [tree.map(lambda x, i=i: x[i * each : (i + 1) * each], stacked) for i in range(len(self.lanes))]

    # --- testing -------------------------------------------------------------------------------------------------

    def downloads(self, servers: Sequence[Tree]) -> list[Tree]:
        workers = [lane.worker for lane in self.lanes]
        return [w.method.download(w.task, s) for w, s in zip(workers, servers, strict=True)]

    def deploy(self, downs: Sequence[Tree], mines: Sequence[Tree], personal: Personalizer) -> Tree:
        mine = tree.map(lambda *xs: torch.cat(xs), *mines)
        models: Tree = self.engine.deploy(tree.stack(list(downs)), mine, personal)
        return models

    def join(self, downs: Sequence[Tree], newcomers: int) -> Tree:
        who, device = range(self.clients, self.clients + newcomers), self.engine.device
        each = [welcomed(lane.worker, d, who, device) for lane, d in zip(self.lanes, downs, strict=True)]
        models: Tree = tree.stack([model for own in each for model in own])
        return models

    def model_of(self, models: Tree, client: int) -> Tree:
        return self.engine.model_of(models, client)

    def gather(self, tests: Sequence[Shards]) -> Shards:
        if len({t.clients for t in tests}) > 1:
            raise ValueError("lanes need the same number of tested clients in each")
        return self.engine.options.placed(union(tests), self.engine.device)

    def serve(self, models: Tree, tests: Shards, adapter: Adapter, protocol: Protocol) -> list[Tree]:
        return self._apart(self.engine.serve(models, tests, adapter, protocol))


class _Engine(VmapEngine):
    """A `VmapEngine` over the clients of all lanes; what a client downloads and draws depends on its lane.

    Lanes are for federations that do not fill a GPU, so everything lies on the device.
    """

    def __init__(self, lanes: Sequence[Lane], device: torch.device, options: Vmap) -> None:
        self.lanes = lanes
        self.seeds = torch.tensor([int(lane.worker.seed) for lane in lanes], dtype=torch.int64, device=device)
        options = replace(options, private="device", examples="device")
        super().__init__(lanes[0].worker, union([lane.train for lane in lanes]), device, options)

    @property
    def _each(self) -> int:
        return self.shards.clients // len(self.lanes)

    def _start(self) -> Private:
        starts = [stacked_start(lane.worker, lane.train) for lane in self.lanes]
        together: Tree = tree.to(tree.map(lambda *xs: torch.cat(xs), *starts), self.device)
        return together

    def _own(self, g: Group, clients: int) -> Tree:
        """What is a client's own: with its lane, and its number within the lane."""
        each = clients // len(self.lanes)
        lane = torch.div(g.ids, each, rounding_mode="floor")
        return {"rows": g.rows, "n": g.n, "id": g.ids % each, "lane": lane, "seed": self.seeds[lane]}

    def train_together(self, downs: Tree, cohorts: Sequence[Tensor], round: int) -> list[Reply]:
        """One round of every lane's cohort; `downs` is stacked over lanes."""
        return self._with_fewer("train", lambda: self._train_together(downs, cohorts, round))

    def _train_together(self, downs: Tree, cohorts: Sequence[Tensor], round: int) -> list[Reply]:
        now = torch.full((), round, dtype=torch.int64, device=self.device)
        everyone = torch.cat([c + i * self._each for i, c in enumerate(cohorts)])
        parts: list[message.Partial | None] = [None] * len(self.lanes)
        done = []
        for g in self._groups(self.shards, everyone):
            present = torch.arange(len(g.ids), device=self.device) < g.real
            inputs = (downs, tree.take(self.mine, g.ids), self._own(g, self.shards.clients), {"round": now}, present)
            out = self._run(("together", g.ragged), self._together(g.ragged), inputs, often=True)
            mine, ok = (tree.map(lambda x, r=g.real: x[:r], out[k]) for k in ("mine", "ok"))
            done.append((g, mine, ok))
            for i in range(len(self.lanes)):
                one = self._of_lane(out, g, i)
                before = parts[i]
                parts[i] = one if before is None else message.combine(before, one)
        self._settle(done, round)
        up = tree.map(lambda x: torch.empty_like(x, device="meta"), out["up"])
        return [Reply(part, up) for part in parts if part is not None]

    def _named(self, clients: list[int], round: int) -> NonFinite:
        seeds = {int(self.lanes[c // self._each].worker.seed) for c in clients}
        return NonFinite(sorted({c % self._each for c in clients}), round, tuple(sorted(seeds)))

    def _of_lane(self, out: Tree, g: Group, lane: int) -> message.Partial:
        members = self._feeder.there((g.who[: g.real] // self._each == lane).nonzero()[:, 0])
        part = out[f"lane{lane}"]
        return message.Partial(
            g.ids[members] % self._each, part["sums"], part["weights"], tree.take(out["each"], members)
        )

    def _together(self, ragged: bool) -> Callable[..., Tree]:
        """The clients of all lanes, and the reduction of each lane's messages, as one pure function."""
        rules, name = self.worker.uplink, type(self.worker.method).__name__

        def client(downs: Tree, mine: Tree, own: Tree, clock: Tree) -> tuple[Tree, Tree, Tensor]:
            data = self.shards.tree(own["rows"], own["n"], own["id"], clock["round"], ragged)
            up, new, ok = self._worker(own).train(tree.take(downs, own["lane"]), mine, data)
            message.check_message(rules, up, name)
            return up, new, ok

        def whole(downs: Tree, mine: Tree, own: Tree, clock: Tree, present: Tensor) -> Tree:
            ups, new, ok = vmap(client, in_dims=(None, 0, 0, None))(downs, mine, own, clock)
            out: Tree = {"mine": new, "ok": ok, "up": tree.take(ups, 0)}
            read = self.worker.read(ups)
            for i in range(len(self.lanes)):
                part = message.partial(rules, own["id"], read, present & (own["lane"] == i))
                out[f"lane{i}"] = {"sums": part.sums, "weights": part.weights}
                out["each"] = part.each
            return out

        return whole

    def _worker(self, own: Tree) -> Worker:
        return replace(self.worker, seed=own["seed"])

    def _personalise(
        self, down: Tree, mine: Tree, own: Tree, examples: Tree, ragged: bool, personal: Personalizer
    ) -> Tree:
        now = torch.zeros((), dtype=torch.int64, device=self.device)
        data = self.shards.tree(own["rows"], own["n"], own["id"], now, ragged)
        return self._worker(own).personalise(tree.take(down, own["lane"]), mine, data | examples, personal)
