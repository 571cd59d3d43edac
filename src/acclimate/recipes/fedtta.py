"""What FedTTA's tables are made of: its methods and rates, and federations of which half of the clients join later.

Ye et al., 2023. Hyper-parameters are the paper's appendix, Table 4, read from the published numbers. What the paper
does not say is as in the released code: padded convolutions, bounded gradients, and rates that fall. The baselines are
not in that code; their rates fall alike, so that no row trains longer at full rate than another. The tables are in
fedtta_tables.py.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

from ..core import SGD, Model, StepDecay, Work
from ..data import (
    CIFAR10,
    CIFAR100,
    FEMNIST,
    IID,
    MNIST,
    BySuperclass,
    Dataset,
    Digits,
    Dirichlet,
    FashionMNIST,
    NaturalUsers,
    Partition,
    Pathological,
    Public,
)
from ..models import CNN, MLP, Mixed
from . import published
from .adapters import TentOnce
from .record import SMOKE_ROUNDS, Line, Named, Scale, Training, adapter, method

CLIP = 10.0
"""Bound of every net's gradient, as in the released code: with the paper's rates alone FedTTA is not finite after a
round on CIFAR-10, nor are clients of several models."""
DECAY = StepDecay(every=10, gamma=0.99)
"""How all rates of training fall, as released. FedTTA's step at test time has the inner rate of the last round."""
WORK = Work(iterations=20, batch=64, clip=CLIP)
SPLIT = (0.85, 0.15, 0.0)
EVERY = 10
"""Rounds between two looks."""
STEPS = 50
LENET, PERCEPTRON = CNN(hidden=512, padding=2), MLP()
Rates = dict[str, dict[str, float]]
"""By method as printed, then by parameter."""
SMOKE_RATES: Rates = {
    "FedAvg": {"eta": 0.1},
    "FedProx": {"eta": 0.1, "mu": 0.001},
    "SCAFFOLD": {"eta_l": 0.1, "eta_g": 1.0},
    "AFL": {"gamma_omega": 0.1, "gamma_lambda": 0.1},
    "FedGMA": {"eta_l": 0.1, "eta_g": 1.0, "tau": 0.1},
    "FedADG": {"eta_f": 0.1},
    "FedSR": {"eta": 0.1},
    "PFL-Sampled": {"eta": 0.1},
    "PFL-Ensemble": {"eta": 0.1},
    "ODPFL-HN": {"eta_local": 0.1, "eta_encoder": 0.1, "eta_hn": 0.1},
    "TENT": {"eta": 0.1},
    "FedTTA": {"eta_inner": 0.1, "eta_outer": 0.1, "eta_adapt": 0.01},
    "FedTTA-Prox": {"eta_inner": 0.1, "eta_outer": 0.1, "eta_adapt": 0.01, "mu": 0.001},
    "FedTTA++": {"patience": 1},
}
"""Chosen on the validation data of the embedded digits."""


def rates(dataset: str) -> Rates:
    """The paper's hyper-parameters; those of ODPFL-HN on CIFAR-100, which it does not print, are CIFAR-10's."""
    out: Rates = {}
    for row in published.table("fedtta/appendix_table4")["rows"]:
        if row["dataset"] == dataset:
            out.setdefault(row["method"], {})[row["parameter"]] = row["value"]
    return {"ODPFL-HN": rates("CIFAR-10")["ODPFL-HN"], **out} if dataset == "CIFAR-100" else out


def lines(r: Rates, work: Work = WORK) -> dict[str, Line]:
    """Table 1's rows. Clients count as one each, as in Algorithm 1; but AFL learns their weights."""

    def sgd(row: str, parameter: str = "eta") -> SGD:
        return SGD(lr=r[row][parameter], schedule=DECAY)

    def fedtta(row: str, **more: Any) -> Named:
        rate = {"inner_lr": r[row]["eta_inner"], "inner_schedule": DECAY}
        opts = {"opt": sgd(row, "eta_outer"), "net_opt": sgd(row, "eta_adapt")}
        return method("fedtta", **rate, **opts, work=work, **more)

    def mean(name: str, opt: SGD, **more: Any) -> Named:
        return method(name, opt=opt, work=work, weights="uniform", **more)

    fedavg = mean("fedavg", sgd("FedAvg"))
    prox = fedtta("FedTTA-Prox", mu=r["FedTTA-Prox"]["mu"])
    odpfl, gma, scaffold = r["ODPFL-HN"], r["FedGMA"], r["SCAFFOLD"]
    hyper = {"encoder_opt": SGD(lr=odpfl["eta_encoder"]), "hyper_opt": SGD(lr=odpfl["eta_hn"])}
    return {
        "FedAvg": Line(fedavg),
        "FedProx": Line(mean("fedprox", sgd("FedProx"), mu=r["FedProx"]["mu"])),
        "SCAFFOLD": Line(
            method("scaffold", opt=sgd("SCAFFOLD", "eta_l"), server_lr=float(scaffold["eta_g"]), work=work)
        ),
        "AFL": Line(method("afl", opt=sgd("AFL", "gamma_omega"), lambda_lr=r["AFL"]["gamma_lambda"], work=work)),
        "FedGMA": Line(mean("gma", sgd("FedGMA", "eta_l"), server_lr=float(gma["eta_g"]), tau=gma["tau"])),
        "FedADG": Line(mean("fedadg", sgd("FedADG", "eta_f"))),
        "FedSR": Line(mean("fedsr", sgd("FedSR"))),
        "PFL-Sampled": Line(mean("pfl-sampled", sgd("PFL-Sampled"))),
        "PFL-Ensemble": Line(mean("pfl-ensemble", sgd("PFL-Ensemble"))),
        "ODPFL-HN": Line(method("odpfl", opt=sgd("ODPFL-HN", "eta_local"), work=work, **hyper), adapter("odpfl")),
        "TENT": Line(fedavg, tent(r["TENT"]["eta"])),
        "FedTTA": Line(fedtta("FedTTA"), adapter("fedtta")),
        "FedTTA-Prox": Line(prox, adapter("fedtta")),
        "FedTTA++": Line(prox, adapter("fedtta", steps=STEPS, patience=int(r["FedTTA++"]["patience"]))),
    }


def tent(lr: float) -> Named:
    """TENT on all parameters, one step on the whole set; its rate does not fall, as no code of this row is released."""
    return Named("adapter", "tent once", TentOnce(SGD(lr=lr)))


LAMBDAS = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)


@dataclass(frozen=True)
class Several:
    """Figure 5's setting: which models clients have, what is public, how they train and how newcomers learn.

    The models are Table 3's, the rates those of Sec. 4.6; the paper is silent about the rest, which is as released.
    """

    models: Mixed = Mixed()
    share: float = 0.1
    """How much of the data is public."""
    inner: float = 0.5
    outer: float = 0.1
    """Also the rate of FedMD and of TENT."""
    adapt: float = 0.005
    work: Work = WORK
    join_epochs: int = 2
    """How often newcomers pass over the public set; clients do it once in a round."""

    def data(self, data: Dataset) -> Public:
        """The same federation after a share of the examples has become public."""
        own = {f.name: getattr(data, f.name) for f in fields(Dataset)}
        return Public(**own, data=data, share=self.share)

    def lines(self) -> dict[str, Line]:
        """Figure 5's rows: TENT on FedMD, FedMD by itself (not in the paper), and HeteroFedTTA by lambda."""
        opts = {"opt": SGD(lr=self.outer, schedule=DECAY), "net_opt": SGD(lr=self.adapt, schedule=DECAY)}
        own = {**opts, "inner_schedule": DECAY, "work": self.work, "join_epochs": self.join_epochs}
        fedmd = method("fedmd", **own)
        rows = {"TENT": Line(fedmd, tent(self.outer)), "FedMD": Line(fedmd)}
        for lam in LAMBDAS:
            trained = method("heterofedtta", lam=lam, inner_lr=self.inner, **own)
            rows[f"lambda {lam:g}"] = Line(trained, adapter("fedtta"))
        return rows


WIDTHS = Mixed(tuple(MLP((units, units)) for units in (100, 200, 400)))
"""The paper's network for MNIST with half, as many and twice as many units, as Table 3 has CIFAR-10's."""
SMOKE_SEVERAL = Several(Mixed((MLP((16,)), MLP((24,)), MLP((32,)))), share=0.2, inner=0.1, adapt=0.01, join_epochs=20)
"""For the embedded digits: gentler rates, and more passes over a public set that is small."""


@dataclass(frozen=True)
class Column:
    """What a column of Table 1 is measured in: who trains and who joins, on what, with which model, how long."""

    data: Dataset
    model: Model
    rounds: int

    def at(self, scale: Scale) -> Column:
        """At smoke scale the same clients on the embedded digits."""
        if scale == "paper":
            return self
        partition = self.data.partition if isinstance(self.data.partition, Pathological | Dirichlet | IID) else HALF
        small = replace(_digits(partition), angles=self.data.angles, new_angles=self.data.new_angles)
        return Column(replace(small, new_partition=self.data.new_partition), MLP((32,)), SMOKE_ROUNDS)

    def training(self, trained: Named, scale: Scale, looks: bool = True) -> Training:
        """One training, with looks for the best round."""
        every = (EVERY if scale == "paper" else SMOKE_ROUNDS // 2) if looks else None
        return Training(trained, self.data, self.model, self.rounds, every=every)


HALF = Pathological()


def _digits(partition: Partition) -> Dataset:
    return Digits(partition, 6, SPLIT, new_clients=6, fraction=0.2)


def halves(data: Dataset, partition: Partition = HALF) -> Dataset:
    """50 clients that train, 50 that join, at most two classes each."""
    return replace(data, partition=partition, clients=50, new_clients=50, split=SPLIT)


COLUMNS: dict[str, Column] = {
    "MNIST": Column(halves(MNIST()), PERCEPTRON, 200),
    "CIFAR-10": Column(halves(CIFAR10()), LENET, 1000),
    "FEMNIST": Column(FEMNIST(NaturalUsers(), 92, SPLIT, new_clients=93), LENET, 200),
    "CIFAR-100": Column(halves(CIFAR100(), BySuperclass()), LENET, 1500),
    "Fashion-MNIST": Column(halves(FashionMNIST()), LENET, 300),
}
DIGITS = Column(Digits(HALF, 20, SPLIT, new_clients=20), MLP((64,)), 40)
"""Not the paper's: the embedded set."""
