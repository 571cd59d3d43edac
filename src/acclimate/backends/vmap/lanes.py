"""Several trainings in one vmap: each is a lane with its own clients, server, random numbers and settings.

A lane's numbers are those of its own run. The clients of all lanes form one cohort, so that a GPU which twenty clients
cannot fill is filled by sixty, and a round is recorded once for all of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor
from torch.func import vmap

from ...core import Adapter, Holdings, NonFinite, Personalizer, Private, Protocol, Shards, Task, Tree, Worker, tree
from ...core.apart import together
from ...core.lanes import Place, varied, with_settings
from ...core.loops import Warming, driven
from ...core.nn.inputs import example
from ...core.vectorised import operation


class Lane(NamedTuple):
    """One training: its client half, which differs from that of other lanes in its seed and in numbers of its method,
    and its labelled data."""

    worker: Worker
    train: Holdings


@dataclass(frozen=True)
class LaneShards(Shards):
    """The clients of several lanes, numbered lane after lane."""

    lanes: int

    @classmethod
    def union(cls, parts: Sequence[Holdings]) -> LaneShards:
        """The clients of all parts as one federation. Examples that the parts share lie in memory once."""
        if len({p.clients for p in parts}) > 1:
            raise ValueError("lanes need the same number of clients in each")
        places: dict[int, int] = {}
        kept: list[Holdings] = []
        total, rows = 0, []
        for p in parts:
            if id(p.x) not in places:
                places[id(p.x)] = total
                kept.append(p)
                total += len(p.x)
            rows += [p.own(k) + places[id(p.x)] for k in range(p.clients)]
        all = Shards.of(torch.cat([p.x for p in kept]), torch.cat([p.y for p in kept]), rows)
        return cls(all.x, all.y, all.rows, all.n, len(parts))

    def to(self, device: torch.device | str) -> LaneShards:
        """The same shards on a device."""
        x, y, rows, n = (t.to(device) for t in (self.x, self.y, self.rows, self.n))
        return LaneShards(x, y, rows, n, self.lanes)

    def named(self, ids: Tensor) -> Tree:
        """Clients by their number in their own lane, and the lane, which `LaneWorker` takes out of their data."""
        each = self.clients // self.lanes
        return {"id": ids % each, "lane": lane_of(ids, each)}


def lane_of(ids: Tensor, each: int) -> Tensor:
    """The lanes of clients that are numbered through lanes of `each` clients."""
    return torch.div(ids, each, rounding_mode="floor")


def one_task(tasks: Sequence[Task]) -> bool:
    """Whether tasks of one model read their inputs alike: lanes share one, and its constants may be those of a seed's
    training rows."""
    forms = [(t.shape, t.num_classes, t.mean, t.std, t.tokens) for t in tasks]
    return all(form == forms[0] for form in forms)


@dataclass(frozen=True)
class LaneWorker(Worker):
    """The client half of several lanes: what a client downloads (`down` is stacked) and draws depends on its lane."""

    seeds: Tensor = torch.zeros(0, dtype=torch.int64)
    settings: Mapping[Place, Tensor] = field(default_factory=dict)
    """Numbers of the method that are others in every lane, [lanes]."""

    @classmethod
    def of(cls, workers: Sequence[Worker], device: torch.device) -> LaneWorker:
        """One client half for those of all lanes."""
        first = workers[0]
        if not one_task([w.task for w in workers]):
            raise ValueError("lanes need inputs of one form, scaled by the same numbers")
        seeds = torch.tensor([int(w.seed) for w in workers], dtype=torch.int64, device=device)
        if (differ := varied([w.method for w in workers])) is None:
            raise ValueError("lanes need methods that differ in numbers alone, and in none that is zero")
        settings = {place: torch.tensor(v, dtype=torch.float32, device=device) for place, v in differ.items()}
        return cls(first.task, first.method, first.filters, first.seed, first.secret, seeds, settings)

    def train(self, down: Tree, mine: Tree, data: Tree) -> tuple[Tree, Tree, Tensor]:
        return self._of(data).train(_of_lane(down, data), mine, _without_lane(data))

    def personalise(self, down: Tree, mine: Tree, data: Tree, personal: Personalizer) -> Tree:
        return self._of(data).personalise(_of_lane(down, data), mine, _without_lane(data), personal)

    def calibrate(self, model: Tree, data: Tree, adapter: Adapter) -> Tree:
        with together(bool(self.settings)):
            return self._of(data).calibrate(model, _without_lane(data), adapter)

    def adapt(
        self, model: Tree, data: Tree, adapter: Adapter, protocol: Protocol, trace_rows: int | None = None
    ) -> Tree:
        with together(bool(self.settings)):  # a method that predicts with a setting has one per client
            return self._of(data).adapt(model, _without_lane(data), adapter, protocol, trace_rows)

    def _of(self, data: Tree) -> Worker:
        """The client half of the lane that a client is in."""
        here = {place: _in_lane(values, data) for place, values in self.settings.items()}
        return Worker(self.task, with_settings(self.method, here), self.filters, _in_lane(self.seeds, data))

    def refusal(self) -> str | None:
        return super().refusal() or (self._unvaried() if self.settings else None)

    def _unvaried(self) -> str | None:
        """Why the method cannot take a number that differs between clients, in a sentence; None where it can."""
        device = self.seeds.device
        x = example(self.task.shape, self.task.tokens, self.task.inputs).to(device)
        y = torch.zeros(len(x), dtype=torch.int64, device=device)
        data = Shards(x, y, torch.arange(len(x), device=device)[None], torch.full((1,), len(x), device=device))
        down = self.method.download(self.task, self.method.init_server(self.task, 1, self.key("init", like=y)))
        mine, zero = self.start(0, like=y), torch.zeros((), dtype=torch.int64, device=device)

        def client(lane: Tensor) -> Tree:
            own = {**data.tree(data.rows[0], data.n[0], zero, zero, False), "lane": lane}
            half, own = self._of(own), _without_lane(own)
            up = half.train(self.outgoing(down, zero[None]), mine, own)[0]
            return {"up": up, "live": half.personalise(down, mine, own, Personalizer())}

        try:
            with driven(Warming()):
                vmap(client)(torch.arange(2, device=device))
        except Exception as e:
            names = ", ".join(".".join(place) for place in self.settings)
            return f"{type(self.method).__name__} cannot take {names} for each client by itself: {operation(e)}"
        return None


def _in_lane(all: Tensor, data: Tree) -> Tensor:
    """The row of the lane that a client is in. torch 2.6 has no index by a single number under vmap."""
    return all.index_select(0, data["lane"].view(1))[0]


def _of_lane(down: Tree, data: Tree) -> Tree:
    """What the lane that a client is in gets of what is sent to all."""
    return tree.map(lambda x: _in_lane(x, data), down)


def _without_lane(data: Tree) -> Tree:
    return tree.drop(data, ("lane",))


class Unconfirmed(NamedTuple):
    """A round that the device may still be computing."""

    ok: Tensor
    """Whether all values of a client are finite, on the device."""
    who: Tensor
    """These clients, on the host, numbered through all lanes."""
    round: int
    before: Private
    """The private state that is taken back where a client's values are not finite."""

    def not_finite(self) -> list[int]:
        """Clients with values that are not finite. The host waits for the device."""
        return sorted(self.who[~self.ok.cpu()].tolist())


def not_finite(workers: Sequence[Worker], clients: list[int], each: int, round: int) -> NonFinite:
    """The error that names these clients, who are numbered through all lanes, and of several lanes the seeds."""
    if len(workers) == 1:
        return NonFinite(clients, round)
    seeds = {int(workers[c // each].seed) for c in clients}
    return NonFinite(sorted({c % each for c in clients}), round, tuple(sorted(seeds)))
