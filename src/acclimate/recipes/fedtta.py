"""FedTTA's tables and figures. Ye et al., 2023: half of the clients train, the others join later with unlabelled data.

Hyper-parameters are the paper's appendix, Table 4, read from the published numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Any

from ..core import SGD, Model, Work
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
from ..shifts import NewClients
from . import published
from .once import TentOnce
from .record import SMOKE_ROUNDS, Cell, Line, Named, Recipe, Scale, Training, adapter, key, method

CLIP = 10.0
"""Of every net's gradient, as in the released code: with the paper's rates alone FedTTA is not finite after a round on
CIFAR-10, nor are clients of several models."""
WORK = Work(iterations=20, batch=64, clip=CLIP)
SPLIT = (0.85, 0.15, 0.0)
WHOLE = 4096
"""A batch as large as any client's set: adaptation is on all of it at once."""
EVERY = 10
"""Rounds between two looks."""
STEPS = 50
LENET, PERCEPTRON = CNN(hidden=512), MLP()
Cells = Iterator[Cell]
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
        return SGD(lr=r[row][parameter])

    def fedtta(row: str, **more: Any) -> Named:
        own = {"inner_lr": r[row]["eta_inner"], "opt": sgd(row, "eta_outer"), "net_opt": sgd(row, "eta_adapt")}
        return method("fedtta", **own, work=work, **more)

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
    """TENT on all parameters, one step on the whole set."""
    return Named("adapter", "tent once", base=TentOnce(SGD(lr=lr)))


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
        """Figure 5's rows: TENT on FedMD, and HeteroFedTTA by lambda."""
        own = {"opt": SGD(lr=self.outer), "net_opt": SGD(lr=self.adapt), "work": self.work}
        own |= {"join_epochs": self.join_epochs}
        rows = {"TENT": Line(method("fedmd", **own), tent(self.outer))}
        for lam in LAMBDAS:
            trained = method("heterofedtta", lam=lam, inner_lr=self.inner, **own)
            rows[f"lambda {lam:g}"] = Line(trained, adapter("fedtta", clip=CLIP))
        return rows


SMOKE_SEVERAL = Several(Mixed((MLP((16,)), MLP((24,)), MLP((32,)))), share=0.2, inner=0.1, adapt=0.01, join_epochs=20)
"""For the embedded digits: gentler rates, and more passes over a public set that is small."""


@dataclass(frozen=True)
class World:
    """One column of Table 1: who trains and who joins, on what, with which model, how long."""

    data: Dataset
    model: Model
    rounds: int

    def at(self, scale: Scale) -> World:
        """At smoke scale the same clients on the embedded digits."""
        if scale == "paper":
            return self
        partition = self.data.partition if isinstance(self.data.partition, Pathological | Dirichlet | IID) else HALF
        small = replace(_digits(partition), angles=self.data.angles, new_angles=self.data.new_angles)
        return World(replace(small, new_partition=self.data.new_partition), MLP((32,)), SMOKE_ROUNDS)

    def training(self, trained: Named, scale: Scale, looks: bool = True) -> Training:
        """One training, with looks for the best round."""
        every = (EVERY if scale == "paper" else SMOKE_ROUNDS // 2) if looks else None
        return Training(trained, self.data, self.model, self.rounds, every=every)


HALF = Pathological()


def _digits(partition: Partition) -> Dataset:
    return Digits(partition, 6, SPLIT, new_clients=6, fraction=0.2)


def _halves(data: Dataset, partition: Partition = HALF) -> Dataset:
    """50 clients that train, 50 that join, at most two classes each."""
    return replace(data, partition=partition, clients=50, new_clients=50, split=SPLIT)


WORLDS: dict[str, World] = {
    "MNIST": World(_halves(MNIST()), PERCEPTRON, 200),
    "CIFAR-10": World(_halves(CIFAR10()), LENET, 1000),
    "FEMNIST": World(FEMNIST(NaturalUsers(), 92, SPLIT, new_clients=93), LENET, 200),
    "CIFAR-100": World(_halves(CIFAR100(), BySuperclass()), LENET, 1500),
    "Fashion-MNIST": World(_halves(FashionMNIST()), LENET, 300),
}


def _rows(dataset: str, scale: Scale) -> dict[str, Line]:
    return {n: line.at(scale) for n, line in lines(rates(dataset) if scale == "paper" else SMOKE_RATES).items()}


def _both(row: str, column: str, training: Training, line: Line, **place: Any) -> Cells:
    """Validation data of the training clients, and the newcomers at the round where that is best."""
    for split, measure in (("validation", "validation"), ("test", "best")):
        stream = NewClients(batch=WHOLE)
        where = key(**place, split=split) if place else None
        name = f"{column} {split}".strip()
        yield Cell(row, name, training, line.personal, line.adapter, stream, measure, where)


def table1(scale: Scale) -> Cells:
    """14 methods on five data sets."""
    for dataset, world in WORLDS.items():
        if scale == "smoke" and dataset != "MNIST":  # they would all be the same world
            continue
        for row, line in _rows(dataset, scale).items():
            training = world.at(scale).training(line.method, scale)
            yield from _both(row, dataset, training, line, method=row, dataset=dataset)


ALPHAS = (0.01, 0.03, 0.05, 0.1, 0.3, 0.5)
ONE_NUMBER = ("FedAvg", "FedProx", "SCAFFOLD", "AFL", "FedGMA", "FedADG", "FedSR")
"""Rows with one test number for every alpha: they answer all newcomers alike."""


def table2(scale: Scale) -> Cells:
    """Newcomers with more or less label skew than the clients that trained."""
    for row, line in _rows("CIFAR-10", scale).items():
        for alpha in ALPHAS if scale == "paper" else (0.1, 0.5):
            if row in ONE_NUMBER and alpha != 0.1:
                continue
            data = replace(_halves(CIFAR10(), Dirichlet(0.1)), new_partition=Dirichlet(alpha))
            training = World(data, LENET, 1000).at(scale).training(line.method, scale)
            validation, test = _both(row, f"alpha {alpha:g}", training, line)
            if alpha == 0.1:
                yield replace(validation, column="validation", key=key(method=row, split="validation"))
            printed: Any = "all" if row in ONE_NUMBER else alpha
            yield replace(test, key=key(method=row, split="test", alpha=printed))


def figure2(scale: Scale) -> Cells:
    """What more steps of adaptation do to accuracy, entropy and the learned loss."""
    line = _rows("CIFAR-10", scale)["FedTTA"]
    training = WORLDS["CIFAR-10"].at(scale).training(line.method, scale, looks=False)
    measures = {"accuracy": "accuracy", "entropy": "trace:entropy", "learned loss": "trace:learned_loss"}
    for steps in (1, 2, 5, 8, 11, 12, 15, 20, 30, 50) if scale == "paper" else (1, 5, 20):
        for column, measure in measures.items():
            adapted = line.adapter.but(steps=steps)
            yield Cell(f"{steps} steps", column, training, line.personal, adapted, NewClients(batch=WHOLE), measure)


def figure3(scale: Scale) -> Cells:
    """Smaller sets of newcomers."""
    for row in ("FedTTA", "FedTTA-Prox", "FedTTA++", "TENT", "ODPFL-HN"):
        line = _rows("CIFAR-10", scale)[row]
        training = WORLDS["CIFAR-10"].at(scale).training(line.method, scale)
        for share in (0.1, 0.2, 0.4, 0.6, 0.8, 1.0) if scale == "paper" else (0.5, 1.0):
            stream = NewClients(batch=WHOLE, share=share)
            place = key(where="Section 4.4, Figure 3", method=row, test_size_fraction=share)
            yield Cell(row, f"share {share:g}", training, line.personal, line.adapter, stream, "best", place)


ROTATED = MNIST(
    IID(), 25, SPLIT, new_clients=25, fraction=1000 / 70000, angles=(0.0, 30.0, 60.0), new_angles=(15.0, 45.0)
)


def figure4(scale: Scale) -> Cells:
    """Newcomers whose digits are rotated by other angles."""
    for row, line in _rows("MNIST", scale).items():
        line = replace(line, method=line.method.but(work=replace(WORK, batch=16)).at(scale))
        training = World(ROTATED, PERCEPTRON, 200).at(scale).training(line.method, scale)
        place = {"where": "Section 4.5, Figure 4", "method": row, "dataset": "rotated MNIST"}
        yield from _both(row, "", training, line, **place)


def figure5(scale: Scale) -> Cells:
    """Clients of three architectures who exchange logits, for several weights of the base model's distillation."""
    paper = scale == "paper"
    several, world, count = (Several() if paper else SMOKE_SEVERAL), WORLDS["CIFAR-10"].at(scale), 5 if paper else 2
    points = [world.rounds * i // count for i in range(1, count + 1)]
    model: Any = several.models
    for row, line in several.lines().items():
        small = line.at(scale)
        training = Training(small.method, several.data(world.data), model, world.rounds, every=points[0])
        for point in points:
            stream, measure = NewClients(batch=WHOLE), f"round:{point}"
            yield Cell(row, f"round {point}", training, small.personal, small.adapter, stream, measure)


NUMBERS = "fedtta/text_numbers"
BOUNDED = "Gradients of training are clipped at 10, as in FedTTA's released code; the paper does not say so."
RECIPES = (
    Recipe(
        "fedtta/table1",
        "14 methods on five data sets: training clients and newcomers",
        table1,
        "fedtta/table1",
        (
            "Newcomers at the round of best validation accuracy, as in the paper.",
            "At smoke scale one data set stands for all.",
            BOUNDED,
        ),
    ),
    Recipe("fedtta/table2", "Newcomers with other label skew", table2, "fedtta/table2", (BOUNDED,)),
    Recipe(
        "fedtta/figure2",
        "Accuracy, entropy and learned loss over 50 steps",
        figure2,
        None,
        ("The figure shows one client, whose entropy is least at step 12; here are means over newcomers.", BOUNDED),
    ),
    Recipe(
        "fedtta/figure3",
        "Smaller sets of newcomers",
        figure3,
        NUMBERS,
        ("The text gives two points of three curves.", BOUNDED),
    ),
    Recipe(
        "fedtta/figure4",
        "Rotated MNIST: newcomers at other angles",
        figure4,
        NUMBERS,
        (
            "25 + 25 clients, as in the appendix; the text says 50 + 50. Batches of 16: clients have 17 examples.",
            BOUNDED,
        ),
    ),
    Recipe(
        "fedtta/figure5",
        "Clients of three architectures",
        figure5,
        None,
        (
            "The figure prints no numbers.",
            "Gradients are clipped at 10, at test time too, as released; the paper does not say so.",
        ),
        pace=6.0,  # every client digests 6,000 images in every round: 133 TFLOP for all
    ),
)
OMITTED = {"fedtta/figure1": "a drawing of the method"}
