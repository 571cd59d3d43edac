"""A small federation with live models, for the tests of serving."""

import functools
from dataclasses import replace

import torch

import acclimate as ac
from acclimate.core import tree
from acclimate.live import Live

A = ac.adapters


@functools.cache
def trained() -> ac.Fit:
    e = ac.Experiment(
        data=ac.data.Digits(clients=4, split=(0.3, 0.2, 0.5)),
        model=ac.models.MLP(hidden=(12,), norm="batch"),
        method=ac.methods.FedAvg(work=ac.Work(epochs=1, batch=8)),
        rounds=2,
        backend=ac.backends.Vmap(),
    )
    return ac.train(e)


@functools.cache
def _deployed(client: int, name: str, guard: bool, window: int) -> Live:
    return trained().deploy(client, getattr(A, name)(), guard, window=window)


def lives(name: str = "Tent", guard: bool = False, window: int = 8, clients: int = 4) -> list[Live]:
    """Fresh live models; their trees are never written into, so that they share them."""
    found = [_deployed(c, name, guard, window) for c in range(clients)]
    return [replace(x, snapshots=x.snapshots.copy(), recent=x.recent.copy(), labelled=[0, 0, 0]) for x in found]


def stream(client: int, count: int = 96) -> torch.Tensor:
    world = trained().world
    x = world.examples.x[world.test[client]]
    return torch.cat([x] * (1 + count // len(x)))[:count]


def same(a, b, tolerance: float = 1e-5) -> None:
    a, b = tree.flatten(a), tree.flatten(b)
    assert a.keys() == b.keys()
    for name, value in a.items():
        torch.testing.assert_close(value, b[name], atol=tolerance, rtol=tolerance, equal_nan=True)
