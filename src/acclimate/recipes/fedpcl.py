"""What FedPCL's tables are made of: its methods, and federations on the features of frozen backbones.

Tan et al., NeurIPS 2022. The tables are in fedpcl_tables.py.

Federations have the sizes of the paper's Tables 8 to 10, as far as the files allow. Under feature shift, clients train
on ten images per class; else on a hundred each (the paper's have 58 to 152, about a hundred on average), or on three
quarters of what they have. Digit-5 is read from its test files, which hold enough for that; MNIST-M, of which up to
eighty clients hold a part, from all. With `code="released"` all is as in the published code, as far as it is known.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ..core import Adam, Work, check
from ..data import (
    BalancedTest,
    ByDomain,
    Counted,
    Dataset,
    Digits,
    Dirichlet,
    Features,
    Noisy,
    Partition,
    PerClass,
    Split,
)
from ..data.world import Examples
from ..experiment.names import allow
from ..models.frozen import Frozen, Projection
from ..ops.noise import Kind
from .federations import DIGIT5, DOMAINNET, OFFICE10
from .record import SMOKE_ROUNDS, Cell, Derived, Named, Recipe, Scale, Training, method

OPT, WORK = Adam(lr=1e-3, weight_decay=1e-4), Work(epochs=1, batch=32)
ROUNDS, LONGER = 50, {"fedavg": 200, "local": 100}
"""Rounds: FedPCL's in the published scripts, which methods without a script get as well; and those of other scripts."""
COHORT = 20
"""How many clients the published FedAvg draws per round, where there are more."""
BACKBONES = ("efficientnet-lite0", "efficientnet-lite1", "efficientnet-lite2")
STAND_INS = ("drawings", "machines", "animals")
"""Weights that a run with the published code's settings may bring, in place of the paper's QuickDraw, Aircraft, Birds:
files of a folder (`weights=FOLDER`), which benchmarks/stand_ins.py makes."""
Shift = Literal["feature", "label", "both"]
Shares = tuple[float, float, float]
KITS = {"Digit-5": DIGIT5, "Office-10": OFFICE10, "DomainNet": DOMAINNET}
SIDES = {"Digit-5": 64, "Office-10": 128, "DomainNet": 128}
"""Pixels that the backbones see."""
PIXELS = {"Digit-5": 32, "Office-10": 64, "DomainNet": 64}
"""Pixels of the images as they are read."""
ALONE = {"Digit-5": "MNIST-M", "Office-10": "Caltech", "DomainNet": "Real"}
"""The one domain of label shift."""
SHIFTS: dict[Shift, str] = {
    "feature": "feature shift non-IID",
    "label": "label shift non-IID",
    "both": "feature & label shift non-IID",
}
KINDS = {"single": 1, "multi": 3}


TEN, HUNDRED = PerClass(train=10, val=0, test=90), Counted(train=100, val=50, most=0.75)
"""Ten training images per class of Digit-5 (Table 8), and about a hundred of any class (Tables 9 and 10)."""
SKEWED = {
    "Digit-5": BalancedTest(train=10, test=90),
    "Office-10": BalancedTest(train=10, test=100, most=0.2),
}
"""Both shifts (Table 10), as the published loader deals: training images in a mix of the client's own, and up to a
hundred test images of every class; of Office-10 a fifth is for testing. Our smallest class of digits has 106 images."""
QUARTER = (0.25, 0.05, 0.7)
"""Feature shift on other sets, which the paper does not have."""
SIDE, EACH = 64, 150
"""In the published code: the pixels that backbones see; here the images of a class and domain of Digit-5 that are read,
from the first one on, which are as many as its clients could use."""
TRAINED = {5: 1 / 11, 10: 1 / 11, 20: 1 / 5.5, 40: 1 / 3, 80: 1 / 1.5}
"""Label shift in the published code: the share of their digits that so many clients train on, ten of a class each on
average; of Caltech's training file, which is `CALTECH` of it, a half. It deals MNIST-M's test file, which has 9,001
images there and fewer in ours, so that both files are dealt here."""
CALTECH = 0.8


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
PLAIN = "FedPCL, equations"
"""Beside the tables of the published code: FedPCL by the paper's equations."""


@dataclass(frozen=True)
class First(Dataset):
    """The first examples of every class and domain of a data set, in the order of its files."""

    data: Dataset = Digits()
    each: int = EACH

    def __post_init__(self) -> None:
        super().__post_init__()
        check.whole(self, "each", 1)

    def load(self) -> Examples:
        found = self.data.load()
        group = found.domain * len(found.classes) + found.y
        rows = torch.cat([(group == g).nonzero().flatten()[: self.each] for g in group.unique().tolist()]).sort()[0]
        return replace(found, x=found.x[rows], y=found.y[rows], domain=found.domain[rows])


allow(First)


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
class Bits(Frozen):
    """Frozen encoders of which no more is seen than whether a feature is above zero.

    The published ResNet scales its pooled features [B, 512, 1, 1] to length one along the last axis, where each is
    alone: it becomes 1, or stays 0. EfficientNet-Lites end in a ReLU6 as ResNets in a ReLU, so the same can be done.
    """

    def fuse(self, parts: Sequence[Tensor]) -> Tensor:
        return super().fuse([(p > 0).to(p.dtype) for p in parts])


allow(Bits)


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
    norm: Literal["none", "batch"] = "none"
    """What follows the projection: nothing, as the numbers of parameters imply, or batch norm, as Table 7 has it."""
    balanced: bool | None = None
    """Under both shifts: whether clients are tested on all classes alike, as by the published loader, or on their own
    mix of classes, as in an earlier version; None: alike on Digit-5, which alone was measured again since."""
    bits: bool = False
    """Whether features are 0 or 1, as the published code has them."""
    code: Literal["paper", "released"] = "paper"
    """`released`: bits, classifier, pixels, and how images are dealt and tested on, all as in the published code."""
    weights: tuple[str, ...] = ()
    """ResNet-18s by name (models/encoders.py) that stand in for the paper's, on images of the pixels that are read;
    empty: `BACKBONES`, on enlarged ones."""

    def training(self, trained: Named, scale: Scale, **fields: Any) -> Training:
        """One training of this setting, on features that are computed once."""
        kit, label = KITS[self.data], self.shift == "label"
        only = (ALONE[self.data],) if label else ()
        own: dict[str, Any] = {"size": PIXELS[self.data]} if scale == "paper" else {}
        released = self.code == "released" and scale == "paper"
        own |= {"part": "test"} if own and self.data == "Digit-5" and not label else {}
        images: Dataset = kit.federation(scale, only=only)
        partition, clients, split = self._dealt(images.clients, scale)
        images = replace(images, fraction=1.0, partition=ByDomain(), clients=1, **own)
        if released and self.data == "Digit-5":
            each = round(10 * clients / TRAINED[clients]) if label else EACH
            images = First(ByDomain(), 1, data=images, each=each)
        if self.noise is not None:
            kind, s, p = self.noise
            images = Noisy(data=images, kind=kind, s=s, p=p)
        data = Features(
            partition, clients, split, fraction=self._share(scale), data=images, encoder=self.encoder(scale)
        )
        if released:
            fields = {"rounds": self._rounds(trained)} | fields
            small = self.data == "Office-10" and self.shift == "both"
            trained = trained.but(work=replace(trained.record.work, batch=16)) if small else trained
        elif scale == "paper":
            fields = {"rounds": LONGER.get(trained.name, ROUNDS)} | fields
        if scale == "paper" and trained.name == "fedavg" and clients > COHORT:
            fields["participation"] = COHORT / clients
        model = Projection(norm=self.norm, head="released" if self.code == "released" else self.head)
        return Training(trained.at(scale), data, model, **{"rounds": SMOKE_ROUNDS} | fields)

    def _rounds(self, trained: Named) -> int:
        """Those of the published scripts, which give FedPCL more on Office-10 and under both shifts."""
        more = trained.name == "fedpcl" and (self.data == "Office-10" or self.shift == "both")
        return 2 * ROUNDS if more else LONGER.get(trained.name, ROUNDS)

    def encoder(self, scale: Scale) -> Frozen:
        """The frozen backbones."""
        released = self.code == "released"
        kind = Bits if self.bits or released else Frozen
        if scale == "smoke":
            return kind(tuple(_stub(b) for b in self.backbones))
        names, width = (self.weights, None) if self.weights else (BACKBONES, 512)
        size = SIDE if released else (PIXELS if self.weights else SIDES)[self.data]
        return kind(tuple(names[b] for b in self.backbones), size=size, width=width)

    def _share(self, scale: Scale) -> float:
        """Of how much of the images clients hold a part."""
        if scale == "paper" and self.code == "released":
            return CALTECH if self.shift == "label" and self.data == "Office-10" else 1.0
        many = (self.clients or 0) > 20
        return 1.0 if scale == "paper" or many else 0.5

    def _dealt(self, domains: int, scale: Scale) -> tuple[Partition, int, Shares | Split]:
        """Who gets what, and how much of it is for training."""
        paper = scale == "paper"
        if paper and self.code == "released" and self.shift != "feature":
            return self._released(domains)
        if self.shift == "label" and self.clients is None:
            partition = Dirichlet(self.alpha, "natural", floor=110 if paper else 20)
            return partition, 5, HUNDRED if paper else (0.3, 0.05, 0.65)
        if self.shift == "label":
            return Dirichlet(self.alpha), self.clients or 5, HUNDRED if paper else (0.4, 0.05, 0.55)
        split: Shares | Split = (0.3, 0.1, 0.6)
        alike = self.data == "Digit-5" if self.balanced is None else self.balanced
        if paper and self.shift == "both" and alike:
            return ByDomain(), domains, SKEWED[self.data]
        if paper:
            split = HUNDRED if self.shift == "both" else TEN if self.data == "Digit-5" else QUARTER
        return ByDomain(alpha=None if self.shift == "feature" else 1.0), domains, split

    def _released(self, domains: int) -> tuple[Partition, int, Shares | Split]:
        """The same by the published loader, under label shift and under both."""
        if self.shift == "both":
            split = SKEWED[self.data] if self.data == "Digit-5" else replace(SKEWED["Office-10"], clients=domains)
            return ByDomain(), domains, split
        clients = self.clients or 5
        share = TRAINED[clients] if self.data == "Digit-5" else 0.5
        floor = 30 if clients <= COHORT else math.ceil(WORK.batch / share)  # many have less: each needs a whole batch
        return Dirichlet(self.alpha, "natural", floor=floor), clients, (share, 0.0, 1 - share)


@dataclass(frozen=True)
class TableVersion:
    """In which version the tables are run: the setting of all federations, the paper's rows, and others beside them."""

    setting: FrozenFederation
    rows: Mapping[str, Named]
    beside: Mapping[str, Named]

    def at(self, data: str = "Digit-5", shift: Shift = "both", backbones: int = 3, **changes: Any) -> FrozenFederation:
        """The setting on a data set, under a shift, with so many backbones."""
        return replace(self.setting, data=data, shift=shift, backbones=tuple(range(backbones)), **changes)

    @property
    def plain(self) -> Named:
        """FedPCL by the paper's equations."""
        return self.beside.get(PLAIN, self.rows["FedPCL"])

    @property
    def released(self) -> bool:
        """Whether it is that of the published code."""
        return self.setting.code == "released"


ORDINARY = TableVersion(FrozenFederation(), ROWS, BESIDE)
"""The paper's equations, and an ordinary classifier."""
TAKING = frozenset(f"fedpcl/table{n}" for n in (2, 3, 5, 6, 11, 12, 13, 14, 15))
"""Tables that a user's ResNet-18s may replace the EfficientNets of."""
WEIGHTS_NOTE = (
    f"weights=FOLDER brings {', '.join(STAND_INS)} (NAME.safetensors, of benchmarks/stand_ins.py) in place of the "
    "paper's ResNet-18s, on images that are not enlarged; without it EfficientNet-Lites stand in."
)


def taking(recipe: Recipe) -> Recipe:
    """A table whose backbones a user may bring, as `STAND_INS` are named."""
    if recipe.name not in TAKING:
        return recipe

    def make(scale: Scale, backbones: tuple[str, ...] = ()) -> Iterator[Cell | Derived]:
        version = replace(ORDINARY, setting=replace(ORDINARY.setting, weights=backbones))
        yield from recipe.make(scale, version)

    return replace(recipe, make=make, notes=(*recipe.notes, WEIGHTS_NOTE), starts=True, takes=STAND_INS)


def released(weights: tuple[str, ...] = ()) -> TableVersion:
    """The published code: its settings, its FedPCL, no last, smaller batch, and clients that count alike in means."""
    every = {**ROWS, "FedPCL": BESIDE[RELEASED], PLAIN: ROWS["FedPCL"]}
    rows = {n: m.but(work=replace(WORK, drop_last=True)) for n, m in every.items()}
    rows = {n: m.but(weights="uniform") if hasattr(m.record, "weights") else m for n, m in rows.items()}
    beside = {PLAIN: rows.pop(PLAIN)}
    return TableVersion(FrozenFederation(code="released", weights=weights), rows, beside)
