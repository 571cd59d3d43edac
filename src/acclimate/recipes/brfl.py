"""What FedTHE's tables are made of: the methods that BRFL compares, its federations, and its five test streams."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ..core import SGD, Adam, Model, Optimizer, Work
from ..data import CIFAR10, CIFAR10_1, Dataset, Digits, Dirichlet
from ..models import CCT, CNN, ResNet20
from ..ops.augment import FlipCrop
from ..shifts import Corrupted, Mixture, Natural, Original, OutOfClient, Shift
from .federations import Few
from .record import SMOKE_ROUNDS, Cell, Derived, Line, Named, Scale, Training, adapter, key, method, personal

RATE = SGD(lr=0.01, weight_decay=5e-4)
MOMENTUM = SGD(lr=0.01, weight_decay=5e-4, momentum=0.9)
ONE, CHUNK = Work(epochs=1), 32
SMOKE_SHARE = 0.1
"""How much of the embedded digits smoke scale uses; half of it with models that take longer."""
Cells = Iterator[Cell | Derived]


def methods(rate: Optimizer = RATE, work: Work = Work()) -> dict[str, Named]:
    """What is trained, with the optimiser and the local work of a table."""
    plain = {"opt": rate, "work": work}
    ditto = replace(rate, weight_decay=0.0)
    the = {"opt": rate, "head_opt": rate, "work": work, "head_work": replace(work, epochs=1)}
    return {
        "local": method("local", **plain),
        "fedavg": method("fedavg", **plain),
        "fedavg-balanced": method("fedavg", **plain, balanced=True),
        "gma": method("gma", **plain),
        "apfl": method("apfl", **plain),
        "fedrep": method("fedrep", **plain, head_work=work),
        "ditto": method("ditto", opt=ditto, work=work, personal_work=replace(work, epochs=1)),
        "ditto-untied": method("ditto", lam=0.0, opt=ditto, work=work, personal_work=replace(work, epochs=1)),
        "fedrod": method("fedrod", **plain),
        "fedttt": method("fedttt", **plain),
        "fedthe": method("fedthe", **the),
        "fedthe-unbalanced": method("fedthe", **the, balanced=False),
    }


def lines(
    trained: Mapping[str, Named], rate: Optimizer = RATE, the_lr: float = 0.1, work: Work = ONE
) -> dict[str, Line]:
    """Every row of Tables 1, 3 and 13: what is trained, and how it is personalised and adapted."""
    the = adapter("the", opt=Adam(lr=the_lr))
    plus = adapter("theplus", the=the.record, chunk=CHUNK)
    memo = adapter("memo", chunk=CHUNK)
    tune = personal("finetune", opt=rate, work=work)
    fedavg, fedthe, unbalanced = trained["fedavg"], trained["fedthe"], trained["fedthe-unbalanced"]
    return {
        "local": Line(trained["local"]),
        "fedavg": Line(fedavg),
        "gma": Line(trained["gma"]),
        "memo-g": Line(fedavg, memo),
        "fedavg+ft": Line(fedavg, personal=tune),
        "fedavg+lp": Line(fedavg, personal=tune.but(parts="head")),
        "fedavg+lp-ft": Line(fedavg, personal=tune.but(parts="head-then-all")),
        "apfl": Line(trained["apfl"]),
        "fedrep": Line(trained["fedrep"]),
        "ditto": Line(trained["ditto"]),
        "ditto-untied": Line(trained["ditto-untied"]),
        "fedrod": Line(trained["fedrod"]),
        "knn-per": Line(fedavg, adapter("knn"), personal("memory")),
        "ttt": Line(trained["fedttt"], adapter("ttt")),
        "memo-p": Line(fedavg, memo, tune),
        "t3a": Line(fedavg, adapter("t3a", per="sample"), tune),
        "tsa": Line(fedthe, adapter("tsa")),
        "tsa-2-heads": Line(unbalanced, adapter("tsa")),
        "fedavg-balanced+ft": Line(trained["fedavg-balanced"], personal=tune),
        "fedavg-balanced+balanced-ft": Line(trained["fedavg-balanced"], personal=tune.but(balanced=True)),
        "2-heads": Line(unbalanced, the.but(steps=0)),
        "2-heads-balanced": Line(fedthe, the.but(steps=0)),
        "fa": Line(fedthe, the.but(loss="fa")),
        "em": Line(fedthe, the.but(loss="em")),
        "fa+em": Line(fedthe, the.but(loss="sum")),
        "fedthe": Line(fedthe, the),
        "fedthe-batch-wise": Line(fedthe, the.but(per="batch")),
        "fedthe-no-history": Line(fedthe, the.but(history=False)),
        "fedthe-unbalanced": Line(unbalanced, the),
        "fedthe+": Line(fedthe, plus),
        "fedthe+-unbalanced": Line(unbalanced, plus),
    }


TRAININGS = methods()
LINES = lines(TRAININGS)
MODELS: dict[str, tuple[Model, Optimizer, float]] = {
    "ResNet20-GN": (ResNet20(), MOMENTUM, 0.1),
    "CCT4": (CCT(), Adam(lr=1e-3, weight_decay=5e-4), 0.01),
    "CNN": (CNN(bias=False), RATE, 0.1),
}
"""The paper's architectures, each with its optimiser and FedTHE's rate."""


def architecture(name: str) -> tuple[Model, dict[str, Line]]:
    """A model and the rows as it takes them."""
    model, rate, the = MODELS[name]
    return model, lines(methods(rate), rate, the)


ABLATIONS = {1: "memo-p", 3: "tsa-2-heads", 15: "fedavg-balanced+ft", 16: "fedavg-balanced+balanced-ft", 4: "2-heads"}
ABLATIONS |= {5: "2-heads-balanced", 6: "fa", 7: "em", 8: "fa+em", 9: "fedthe", 10: "fedthe-batch-wise"}
ABLATIONS |= {11: "fedthe-no-history", 12: "fedthe-unbalanced", 13: "fedthe+", 14: "fedthe+-unbalanced"}
"""Table 13's design choices; Table 3 has all but 15 and 16."""
PRINTED = {
    "FedAvg": "fedavg",
    "GMA": "gma",
    "MEMO (G)": "memo-g",
    "FedAvg + FT": "fedavg+ft",
    "APFL": "apfl",
    "FedRep": "fedrep",
    "Ditto": "ditto",
    "FedRoD": "fedrod",
    "kNN-Per": "knn-per",
    "TTT": "ttt",
    "MEMO (P)": "memo-p",
    "T3A": "t3a",
    "FedTHE": "fedthe",
    "FedTHE+": "fedthe+",
}
"""The rows of the paper's tables, as it prints them."""
BESIDE = {"Local training": "local", "Ditto, not tied": "ditto-untied", "TSA on FedTHE's two heads": "tsa"}
"""Rows that the paper's Table 1 does not have. In its released code Ditto's tie never acts."""
STRONG = ("FedAvg + FT", "FedRoD", "FedRep", "MEMO (P)", "T3A", "FedTHE", "FedTHE+")


@dataclass(frozen=True)
class LabelSkew:
    """What a half of a table has in common: a federation with label skew, its model, and for how long it is trained."""

    alpha: float = 0.1
    clients: int = 20
    participation: float = 1.0
    split: tuple[float, float, float] = (0.6, 0.2, 0.2)
    rounds: int = 100
    every: int | None = None
    model: Model = CNN(bias=False)

    def training(self, trained: Named, scale: Scale) -> Training:
        """One training of this setting. Pixels have CIFAR-10's mean and deviation taken out, as in the released code;
        Appendix C.1 has 0.5 for both."""
        partition = Dirichlet(self.alpha, "brfl")
        if scale == "paper":
            data: Dataset = CIFAR10(partition, self.clients, self.split, augment=FlipCrop())
            return Training(trained, data, self.model, self.rounds, self.participation, self.every)
        clients = 6 if self.clients > 20 else 4
        share = SMOKE_SHARE if isinstance(self.model, CNN) else SMOKE_SHARE / 2
        data = Digits(partition, clients, self.split, fraction=share)
        every = None if self.every is None else SMOKE_ROUNDS // 2
        return Training(trained, data, _small(self.model), SMOKE_ROUNDS, self.participation, every)


def _small(model: Model) -> Model:
    """The same kind of model, for 16 x 16 pixels and a laptop."""
    if isinstance(model, ResNet20):
        return replace(model, width=0.25)
    return CCT(layers=1, dim=16, stem=8) if isinstance(model, CCT) else CNN((4, 8), 16, 3, bias=False)


def streams(scale: Scale, severity: int = 5) -> dict[str, Shift]:
    """BRFL's streams by their names in the paper."""
    natural = Natural(source=CIFAR10_1() if scale == "paper" else Few(style="sketch"))
    parts = (Original(), Corrupted(severity=severity), OutOfClient(), natural)
    named = dict(zip(("original", "corrupted", "out-of-client", "natural"), parts, strict=True))
    return {**named, "mixture": Mixture(parts=parts)}


def cells(
    scale: Scale,
    setting: LabelSkew,
    rows: Mapping[str, Line],
    prefix: str = "",
    only: tuple[str, ...] = (),
    **fields: Any,
) -> Iterator[Cell]:
    """Every row on every stream; `fields` are the published numbers' own, besides method and stream."""
    for row, line in rows.items():
        small = line.at(scale)
        trained = setting.training(small.method, scale)
        for name, stream in streams(scale).items():
            if not only or name in only:
                place = key(method=row, stream=name, **fields)
                yield Cell(row, prefix + name, trained, small.personal, small.adapter, stream, key=place)


def printed(*names: str, rows: Mapping[str, Line] = LINES) -> dict[str, Line]:
    """These rows of the paper's tables; all where none is named."""
    return {n: rows[(PRINTED | BESIDE)[n]] for n in names or PRINTED}


def where_of(alpha: float) -> str:
    """A level of label skew as the published numbers name it."""
    return f"dir({alpha:.1f})"
