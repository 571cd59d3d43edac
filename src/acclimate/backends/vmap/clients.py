"""What a group of clients computes, as pure functions that can be recorded: one `vmap` of the client half each."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.func import vmap

from ...core import Adapter, Holdings, Partial, Personalizer, Protocol, Tree, Worker, message, tree
from .buckets import Group


class Round(NamedTuple):
    """What a group leaves behind after its round."""

    parts: tuple[Partial, ...]
    """The reduced messages of every lane."""
    mine: Tree
    """New private states."""
    ok: Tensor
    """Whether all values of a client are finite."""
    up: Tree
    """One client's message with no data (meta tensors)."""


def own(g: Group, shards: Holdings) -> Tree:
    """What is each client's own among the inputs of these functions."""
    return {"rows": g.rows, "n": g.n, **shards.named(g.ids)}


def _data(shards: Holdings, own: Tree, round: Tensor, ragged: bool, examples: Tree) -> Tree:
    """One client's data: where examples were fetched, they stand for those of the shards."""
    return {**shards.tree(own["rows"], own["n"], own["id"], round, ragged), **examples, **tree.pick(own, ("lane",))}


def round_of(worker: Worker, shards: Holdings, ragged: bool, lanes: int) -> Callable[..., Round]:
    """The vmapped client function and the reduction of its messages."""
    rules, name = worker.uplink, type(worker.method).__name__

    def client(down: Tree, mine: Tree, own: Tree, clock: Tree, examples: Tree) -> tuple[Tree, Tree, Tensor]:
        up, new, ok = worker.train(down, mine, _data(shards, own, clock["round"], ragged, examples))
        message.check_message(rules, up, name)
        return up, new, ok

    def whole(down: Tree, mine: Tree, own: Tree, clock: Tree, present: Tensor, examples: Tree) -> Round:
        ups, new, ok = vmap(client, in_dims=(None, 0, 0, None, None))(down, mine, own, clock, examples)
        read = worker.read(ups)
        there = [present] if lanes == 1 else [present & (own["lane"] == i) for i in range(lanes)]
        parts = tuple(message.partial(rules, own["id"], read, some) for some in there)
        return Round(parts, new, ok, tree.map(lambda x: torch.empty_like(x[0], device="meta"), ups))

    return whole


def deployed(worker: Worker, shards: Holdings, ragged: bool, personal: Personalizer) -> Callable[..., Tree]:
    """The live models of a group."""

    def client(down: Tree, mine: Tree, own: Tree, examples: Tree) -> Tree:
        return worker.personalise(down, mine, _data(shards, own, _no_round(own), ragged, examples), personal)

    return vmap(client, in_dims=(None, 0, 0, None))


def calibrated(worker: Worker, held: Holdings, ragged: bool, adapter: Adapter) -> Callable[..., Tree]:
    """What an adapter learns about the models of a group from labelled validation examples."""

    def client(model: Tree, own: Tree, examples: Tree) -> Tree:
        return worker.calibrate(model, _data(held, own, _no_round(own), ragged, examples), adapter)

    return vmap(client, in_dims=(0, 0, None))


def served(
    worker: Worker, test: Holdings, ragged: bool, adapter: Adapter, protocol: Protocol, trace_rows: int | None
) -> Callable[..., Tree]:
    """The metrics of a group on its test streams."""

    def client(model: Tree, own: Tree, examples: Tree) -> Tree:
        return worker.adapt(model, _data(test, own, _no_round(own), ragged, examples), adapter, protocol, trace_rows)

    return vmap(client, in_dims=(0, 0, None))


def _no_round(own: Tree) -> Tensor:
    """The number of the round where there is none."""
    return torch.zeros((), dtype=torch.int64, device=own["id"].device)
