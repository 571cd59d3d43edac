"""FedTTA's tables and figures. Ye et al., 2023: half of the clients train, others join later without labels."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from ..core import Work
from ..data import CIFAR10, IID, MNIST, Dirichlet
from ..shifts import NewClients
from .fedtta import (
    COLUMNS,
    DIGITS,
    LENET,
    PERCEPTRON,
    SMOKE_RATES,
    SMOKE_SEVERAL,
    SPLIT,
    WIDTHS,
    WORK,
    Column,
    Several,
    halves,
    lines,
    rates,
)
from .record import NONE, Cell, Line, Recipe, Scale, Training, key
from .streams import Redealt

WHOLE = 4096
"""A batch as large as any client's set: adaptation is on all of it at once."""
Cells = Iterator[Cell]
NOT_ADAPTED = "FedTTA, not adapted"
"""A row that the paper does not have: FedTTA's model as it is."""


def _rows(dataset: str, scale: Scale) -> dict[str, Line]:
    return {n: line.at(scale) for n, line in lines(rates(dataset) if scale == "paper" else SMOKE_RATES).items()}


def _both(row: str, column: str, training: Training, line: Line, last: bool = False, **place: Any) -> Cells:
    """Validation data of the training clients, and the newcomers at the round where that is best, and at the last."""
    reads = {"validation": "validation", "test": "best"} | ({"last round": "accuracy"} if last else {})
    for split, measure in reads.items():
        stream = NewClients(batch=WHOLE)
        where = key(**place, split=split) if place else None
        name = f"{column} {split}".strip()
        yield Cell(row, name, training, line.personal, line.adapter, stream, measure, where)


def table1(scale: Scale) -> Cells:
    """14 methods on five data sets, and FedTTA without its step."""
    for dataset, world in COLUMNS.items():
        if scale == "smoke" and dataset != "MNIST":  # they would all be the same world
            continue
        rows = _rows(dataset, scale)
        rows[NOT_ADAPTED] = replace(rows["FedTTA"], adapter=NONE)
        for row, line in rows.items():
            training = world.at(scale).training(line.method, scale)
            yield from _both(row, dataset, training, line, last=True, method=row, dataset=dataset)


def steps(scale: Scale) -> Cells:
    """What more steps at test time, slower steps and patience do to FedTTA, on the embedded digits."""
    work = Work(iterations=10, batch=32, clip=10.0)
    table = lines(SMOKE_RATES, work)
    tta, slow = table["FedTTA"], SMOKE_RATES["FedTTA"]["eta_inner"] / 10
    hows: dict[str, dict[str, Any]] = {
        "norm over the set": {"norm": "set"},
        "5 steps": {"steps": 5},
        "50 steps": {"steps": 50},
        "50 slow steps": {"steps": 50, "lr": slow},
        "50 steps, patience 1": {"steps": 50, "patience": 1},
        "50 steps, patience 5": {"steps": 50, "patience": 5},
        "50 slow steps, patience 1": {"steps": 50, "lr": slow, "patience": 1},
        "50 slow steps, patience 5": {"steps": 50, "lr": slow, "patience": 5},
    }
    rows = {row: table[row] for row in ("FedAvg", "TENT", "FedTTA", "FedTTA-Prox")}
    rows |= {NOT_ADAPTED: replace(tta, adapter=NONE)}
    rows |= {"FedTTA, first order": replace(tta, method=tta.method.but(order="first"))}
    rows |= {f"FedTTA, {name}": replace(tta, adapter=tta.adapter.but(**how)) for name, how in hows.items()}
    for row, line in rows.items():
        small = line.at(scale)
        training = DIGITS.at(scale).training(small.method, scale)
        yield from _both(row, "", training, small, last=True)


ALPHAS = (0.01, 0.03, 0.05, 0.1, 0.3, 0.5)
ONE_NUMBER = ("FedAvg", "FedProx", "SCAFFOLD", "AFL", "FedGMA", "FedADG", "FedSR")
"""Rows with one test number for every alpha: they answer all newcomers alike."""


def table2(scale: Scale) -> Cells:
    """Newcomers with more or less label skew than the clients that trained, in one training for all of them."""
    data = replace(halves(CIFAR10(), Dirichlet(0.1)), new_partition=Dirichlet(0.1))
    for row, line in _rows("CIFAR-10", scale).items():
        training = Column(data, LENET, 1000).at(scale).training(line.method, scale)
        for alpha in ALPHAS if scale == "paper" else (0.1, 0.5):
            if row in ONE_NUMBER and alpha != 0.1:
                continue
            stream = Redealt(batch=WHOLE, partition=Dirichlet(alpha))
            validation, test = (replace(c, stream=stream) for c in _both(row, f"alpha {alpha:g}", training, line))
            if alpha == 0.1:
                yield replace(validation, column="validation", key=key(method=row, split="validation"))
            printed: Any = "all" if row in ONE_NUMBER else alpha
            yield replace(test, key=key(method=row, split="test", alpha=printed))


def figure2(scale: Scale) -> Cells:
    """What more steps of adaptation do to accuracy, entropy and the learned loss."""
    line = _rows("CIFAR-10", scale)["FedTTA"]
    training = COLUMNS["CIFAR-10"].at(scale).training(line.method, scale, looks=False)
    measures = {"accuracy": "accuracy", "entropy": "trace:entropy", "learned loss": "trace:learned_loss"}
    for steps in (1, 2, 5, 8, 11, 12, 15, 20, 30, 50) if scale == "paper" else (1, 5, 20):
        for column, measure in measures.items():
            adapted = line.adapter.but(steps=steps)
            yield Cell(f"{steps} steps", column, training, line.personal, adapted, NewClients(batch=WHOLE), measure)


def figure3(scale: Scale) -> Cells:
    """Smaller sets of newcomers."""
    for row in ("FedTTA", "FedTTA-Prox", "FedTTA++", "TENT", "ODPFL-HN"):
        line = _rows("CIFAR-10", scale)[row]
        training = COLUMNS["CIFAR-10"].at(scale).training(line.method, scale)
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
        training = Column(ROTATED, PERCEPTRON, 200).at(scale).training(line.method, scale)
        place: dict[str, Any] = {"where": "Section 4.5, Figure 4", "method": row, "dataset": "rotated MNIST"}
        yield from _both(row, "", training, line, **place)


def figure5(scale: Scale) -> Cells:
    """Clients of three architectures who exchange logits, for several weights of the base model's distillation."""
    paper = scale == "paper"
    several, world = (Several() if paper else SMOKE_SEVERAL), COLUMNS["CIFAR-10"].at(scale)
    yield from _several(several, world, world.rounds, 5 if paper else 2, {"": "round"}, scale)


def hetero_mnist(scale: Scale) -> Cells:
    """Figure 5 on MNIST, with fully connected networks, by round."""
    paper = scale == "paper"
    several, world = Several(WIDTHS) if paper else SMOKE_SEVERAL, COLUMNS["MNIST"].at(scale)
    last, count = (100, 4) if paper else (world.rounds, 1)
    yield from _several(several, world, last, count, {" validation": "validation", " test": "round"}, scale)


def _several(several: Several, world: Column, last: int, count: int, reads: dict[str, str], scale: Scale) -> Cells:
    """By row and look: clients and newcomers. HeteroFedTTA's newcomers also before they adapt; and at the end how good
    the ensembles are that newcomers learn from, on the public set."""
    points = [last * i // count for i in range(1, count + 1)]
    model, stream = several.models, NewClients(batch=WHOLE)
    for row, line in several.lines().items():
        line = line.at(scale)
        training = Training(line.method, several.data(world.data), model, last, every=points[0])
        how = (training, line.personal, line.adapter, stream)
        for point in points:
            for column, word in reads.items():
                yield Cell(row, f"round {point}{column}", *how, f"{word}:{point}")
            if line.adapter.name == "fedtta":
                column = f"round {point} not adapted"
                yield Cell(row, column, training, line.personal, NONE, stream, f"round:{point}")
        for name in line.method.record.uplink:
            yield Cell(row, f"ensemble, {name}", *how, f"ensemble:{name}")


NUMBERS = "fedtta/text_numbers"
BOUNDED = (
    "Gradients are clipped at 10, convolutions pad by 2 and rates fall by 1% every ten rounds, as in FedTTA's released "
    "code; the paper does not say so."
)
RECIPES: tuple[Recipe, ...] = (
    Recipe(
        "fedtta/table1",
        "14 methods on five data sets: training clients and newcomers",
        table1,
        "fedtta/table1",
        (
            "Newcomers at the round of best validation accuracy, as in the paper.",
            "At smoke scale one data set stands for all.",
            f"`{NOT_ADAPTED}` and the last round are not in the paper.",
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
            "FedMD, newcomers that have not adapted, and ensembles are not in the paper.",
            BOUNDED,
        ),
        pace=6.0,  # every client digests 6,000 images in every round: 133 TFLOP for all
    ),
)
RECIPES += (
    Recipe(
        "fedtta/steps",
        "More steps at test time, slower ones, and patience, on the embedded digits",
        steps,
        None,
        ("Numbers of ours alone, on the embedded digits: the paper has no such table.", BOUNDED),
    ),
    Recipe(
        "fedtta/hetero-mnist",
        "Clients of three architectures on MNIST",
        hetero_mnist,
        None,
        (
            "Numbers of ours alone: the paper has this experiment on CIFAR-10, as curves (Figure 5).",
            BOUNDED,
        ),
    ),
)
OMITTED = {"fedtta/figure1": "a drawing of the method"}
