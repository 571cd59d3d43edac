"""The work that is measured: one function per benchmark, which takes a context and ceilings and returns a record."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from harness import Context, Record

from . import adapters, blazefl, fedthe, femnist, pfl, resnet, seeds, uneven

Workload: TypeAlias = Callable[[Context, Record], Record]

WORKLOADS: dict[str, Workload] = {
    "pfl-cifar10": pfl.cifar10,
    "fedavg-20": fedthe.fedavg_20,
    "fedavg-100": fedthe.fedavg_100,
    "perfedavg-20": fedthe.perfedavg_20,
    "scaffold-20": fedthe.scaffold_20,
    "fedthe-20": fedthe.fedthe_20,
    "flute-femnist": femnist.flute,
    "adapters-per-sample": adapters.per_sample,
    "adapters-per-batch": adapters.per_batch,
    "resnet20-gn": resnet.group_norm,
    "resnet20-bn": resnet.batch_norm,
    "resnet18": resnet.resnet18,
    "zipf": uneven.zipf,
    "three-seeds": seeds.three,
    "blazefl-cnn": blazefl.cnn,
    "blazefl-resnet18": blazefl.resnet18,
    "profile": fedthe.profile,
}
"""By name, the most important first: a run that is out of time drops the last."""
