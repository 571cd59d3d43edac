"""What FedPCL's tables are made of: its methods, and federations on the features of frozen backbones.

Tan et al., NeurIPS 2022. The tables are in fedpcl_tables.py.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ..core import Adam, Work
from ..data import ByDomain, Dataset, Dirichlet, Features, Noisy, Partition
from ..models.frozen import Frozen, Projection
from ..ops.noise import Kind
from .federations import DIGIT5, DOMAINNET, OFFICE10
from .record import SMOKE_ROUNDS, Named, Scale, Training, method

OPT, WORK, ROUNDS = Adam(lr=1e-3, weight_decay=1e-4), Work(epochs=1, batch=32), 50
BACKBONES = ("efficientnet-lite0", "efficientnet-lite1", "efficientnet-lite2")
Shift = Literal["feature", "label", "both"]
KITS = {"Digit-5": DIGIT5, "Office-10": OFFICE10, "DomainNet": DOMAINNET}
SIDES = {"Digit-5": 64, "Office-10": 128, "DomainNet": 128}
"""Pixels that the backbones see."""
ALONE = {"Digit-5": "MNIST-M", "Office-10": "Caltech", "DomainNet": "Real"}
"""The one domain of label shift."""
SHIFTS: dict[Shift, str] = {
    "feature": "feature shift non-IID",
    "label": "label shift non-IID",
    "both": "feature & label shift non-IID",
}
KINDS = {"single": 1, "multi": 3}


SPLITS: dict[tuple[bool, Shift], tuple[float, float, float]] = {
    (True, "feature"): (0.06, 0.04, 0.9),
    (True, "both"): (0.1, 0.05, 0.85),
    (False, "feature"): (0.25, 0.05, 0.7),
    (False, "both"): (0.45, 0.05, 0.5),
}
"""Of Digit-5's test files, and of other sets: clients have about as many examples as in the paper's Tables 8 and 10."""


def _method(name: str, **changes: Any) -> Named:
    """Every method has the paper's optimiser and local work."""
    return method(name, opt=OPT, work=WORK, **changes)


ROWS: dict[str, Named] = {
    "FedAvg": _method("fedavg"),
    "pFedMe": _method("pfedme", eta=0.05),
    "Per-FedAvg": _method("perfedavg"),
    "FedRep": _method("fedrep"),
    "FedProto": _method("fedproto"),
    "Solo": _method("local"),
    "FedPCL": _method("fedpcl"),
}
RELEASED = "FedPCL, released"
BESIDE: dict[str, Named] = {RELEASED: _method("fedpcl", variant="released")}
"""Not in the paper: the published code's reading of FedPCL."""


class _Stub(nn.Module):
    """A backbone of smoke scale: fixed random filters, other ones for every number."""

    def __init__(self, number: int) -> None:
        super().__init__()
        g = torch.Generator().manual_seed(number)
        self.conv = nn.Conv2d(3, 8, 5, stride=2)
        with torch.no_grad():
            self.conv.weight.copy_(torch.randn(self.conv.weight.shape, generator=g) / 5)
            self.conv.bias.zero_()  # type: ignore[union-attr]

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.adaptive_avg_pool2d(self.conv(x).relu(), 4).flatten(1)


@lru_cache(maxsize=4)
def _stub(number: int) -> nn.Module:
    return _Stub(number)


@dataclass(frozen=True)
class FrozenFederation:
    """One of the paper's federations: a data set, a kind of shift, and which frozen backbones see its images."""

    data: str = "Digit-5"
    shift: Shift = "both"
    backbones: tuple[int, ...] = (0, 1, 2)
    clients: int | None = None
    """Under label shift: how many; None: 5."""
    alpha: float = 1.0
    noise: tuple[Kind, float, float] | None = None
    """On the images: kind, scale and share."""
    head: Literal["linear", "released"] = "linear"
    """The classifier: the paper's, or that of the published code."""

    def training(self, trained: Named, scale: Scale, **fields: Any) -> Training:
        """One training of this setting, on features that are computed once."""
        kit, label = KITS[self.data], self.shift == "label"
        only = (ALONE[self.data],) if label else ()
        part: dict[str, Any] = {"part": "test"} if scale == "paper" and self.data == "Digit-5" else {}
        images: Dataset = kit.federation(scale, only=only, **part)
        partition, clients, split = self._dealt(images.clients, scale)
        images = replace(images, fraction=1.0, partition=ByDomain(), clients=1)
        if self.noise is not None:
            kind, s, p = self.noise
            images = Noisy(data=images, kind=kind, s=s, p=p)
        data = Features(
            partition, clients, split, fraction=self._share(scale), data=images, encoder=self.encoder(scale)
        )
        rounds = ROUNDS if scale == "paper" else SMOKE_ROUNDS
        return Training(trained.at(scale), data, Projection(head=self.head), rounds, **fields)

    def encoder(self, scale: Scale) -> Frozen:
        """The frozen backbones."""
        if scale == "smoke":
            return Frozen(tuple(_stub(b) for b in self.backbones))
        return Frozen(tuple(BACKBONES[b] for b in self.backbones), size=SIDES[self.data], width=512)

    def _share(self, scale: Scale) -> float:
        many = (self.clients or 0) > 20
        return 1.0 if scale == "paper" or many else 0.5

    def _dealt(self, domains: int, scale: Scale) -> tuple[Partition, int, tuple[float, float, float]]:
        """Who gets what: about a hundred training examples per client, most of the rest for testing."""
        if self.shift == "label" and self.clients is None:
            floor = 110 if scale == "paper" else 20
            return Dirichlet(self.alpha, "natural", floor=floor), 5, (0.3, 0.05, 0.65)
        if self.shift == "label":
            return Dirichlet(self.alpha), self.clients or 5, (0.4, 0.05, 0.55)
        split = SPLITS[self.data == "Digit-5", self.shift] if scale == "paper" else (0.3, 0.1, 0.6)
        return ByDomain(alpha=None if self.shift == "feature" else 1.0), domains, split
