"""Fingerprints: what computes differently has another one, and what is equal has the same in every process."""

import functools
import subprocess
import sys
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import nn

from acclimate.ops.hashing import fingerprint


def net(shape, classes, drop=0.0, *, scale=1.0):
    return nn.Sequential(nn.Flatten(), nn.Dropout(drop), nn.Linear(scale * shape[0], classes))


def closure(drop):
    return lambda shape, classes: net(shape, classes, drop)


def keyword(drop):
    def build(shape, classes, *, drop=drop):
        return net(shape, classes, drop)

    return build


def positional(drop):
    def build(shape, classes, drop=drop):
        return net(shape, classes, drop)

    return build


def nested(drop):
    def build(shape, classes):
        return nn.Sequential(*[net(shape, classes, d) for d in (drop, drop)])

    return build


def tagged(drop):
    def build(shape, classes):
        return net(shape, classes, build.drop)

    build.drop = drop
    return build


def local_class(drop):
    class Net(nn.Module):
        def __init__(self, shape, classes):
            super().__init__()
            self.drop = drop

    return Net


@dataclass(frozen=True)
class Maker:
    drop: object

    def build(self, shape, classes):
        return net(shape, classes, self.drop)

    def __call__(self, shape, classes):
        return net(shape, classes, self.drop)


class Slotted:
    __slots__ = ("drop",)

    def __init__(self, drop):
        self.drop = drop


class Scaled(nn.Module):
    """A module that says nothing of its setting."""

    def __init__(self, by):
        super().__init__()
        self.by = by

    def forward(self, x):
        return x * self.by


def among(v):
    def build(x):
        return v if x in {"one", "two", "three"} else None

    return build


WAYS = {
    "partial keyword": lambda v: functools.partial(net, drop=v),
    "partial positional": lambda v: functools.partial(net, (1,), 2, v),
    "partial of a partial": lambda v: functools.partial(functools.partial(net, drop=v), scale=2),
    "partial of a closure": lambda v: functools.partial(closure(v), classes=3),
    "closure": closure,
    "keyword default": keyword,
    "positional default": positional,
    "nested code": nested,
    "attribute of a function": tagged,
    "set in the code": among,
    "bound method": lambda v: Maker(v).build,
    "object": Maker,
    "closure over a record": lambda v: closure(Maker(v)),
    "module": Scaled,
    "module inside": lambda v: nn.Sequential(nn.Linear(2, 2, bias=False).requires_grad_(False), Scaled(v))[1:],
}
VALUES = {
    "numbers": (0.0, 0.9),
    "long arrays": (np.zeros(5000), np.eye(1, 5000, 2500)[0]),
    "tensors": (torch.zeros(5000), torch.arange(5000) == 2500),
    "records": (Maker(0.0), Maker(0.9)),
    "functions": (closure(0.0), closure(0.9)),
    "modules": (Scaled(1.0), Scaled(2.0)),
}


@pytest.mark.parametrize("values", VALUES)
@pytest.mark.parametrize("way", WAYS)
def test_what_computes_differently_has_another_fingerprint(way, values):
    make, (a, b) = WAYS[way], VALUES[values]
    one, other = make(a), make(b)
    assert fingerprint(one) == fingerprint(make(a)) != fingerprint(other)


@pytest.mark.parametrize(
    "make", [local_class, lambda v: closure(Slotted(v)), lambda v: closure(local_class(v)), Slotted]
)
def test_what_cannot_be_looked_into_is_equal_to_itself_alone(make):
    one, other = make(0.0), make(0.0)
    assert fingerprint(one) == fingerprint(one) != fingerprint(other)


def test_a_loop_ends():
    def walk(n):
        return walk(n - 1) if n else held

    held = [walk]
    held.append(held)
    assert fingerprint(walk) == fingerprint(walk)


def test_fingerprints_are_the_same_in_every_process():
    code = "import test_fingerprint as t; print(*[t.fingerprint(t.WAYS[w](0.5)) for w in t.WAYS])"
    path = [*sys.path, __file__.rpartition("/")[0]]
    command = [sys.executable, "-c", f"import sys; sys.path[:] = {path!r}; {code}"]
    other = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert other == [fingerprint(way(0.5)) for way in WAYS.values()] != []


def test_a_plain_function_keeps_the_fingerprint_of_earlier_versions():
    import hashlib

    code = fingerprint.__code__
    before = code.co_code + repr((code.co_consts, code.co_names, fingerprint.__defaults__)).encode()
    assert fingerprint(fingerprint) == hashlib.sha256(before).hexdigest()
