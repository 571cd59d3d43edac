"""FedTHE's tables. Jiang & Lin, ICLR 2023: CIFAR-10 and ImageNet-32 under BRFL's five test streams.

The figures are in fedthe_figures.py; both are made of what brfl.py has.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ..core import Work
from ..data import Dataset, Dirichlet, ImageNet32, ImageNetVariant
from ..models import ResNet20
from ..ops.augment import FlipCrop
from ..shifts import Interleaved, Mixture, Natural, Original, Shift
from . import fedthe_figures
from .brfl import (
    ABLATIONS,
    BESIDE,
    LINES,
    MOMENTUM,
    PRINTED,
    STRONG,
    Cells,
    LabelSkew,
    architecture,
    cells,
    lines,
    methods,
    printed,
    streams,
    where_of,
)
from .federations import Few
from .record import Cell, Derived, Named, Recipe, Scale, Training, key


def table1(scale: Scale) -> Cells:
    """14 methods at two levels of label skew, and three more."""
    for alpha in (0.1, 1.0):
        where = where_of(alpha)
        yield from cells(scale, LabelSkew(alpha), printed(*PRINTED, *BESIDE), f"{where} ", partition=where)


IMAGENETS = {"ImageNet-A": "a", "ImageNet-V2": "v2", "ImageNet-R": "r"}


def _imagenet(alpha: float) -> Callable[[Scale], Cells]:
    work = Work(batch=128)
    rows = lines(methods(MOMENTUM, work), MOMENTUM, work=Work(epochs=1, batch=128))

    def make(scale: Scale) -> Cells:
        where = where_of(alpha)
        for row in STRONG:
            line = rows[PRINTED[row]].at(scale)
            trained, tests = _imagenet_world(line.method, alpha, scale)
            columns = []
            for (name, test_set), stream in tests.items():
                column = f"{name} {test_set}" if test_set else name
                columns.append(column)
                place = key(method=row, partition=where, stream=name, test_set=test_set)
                yield Cell(row, column, trained, line.personal, line.adapter, stream, key=place)
            yield Derived(row, "average", tuple(columns), key=key(method=row, partition=where, stream="average"))

    return make


def _imagenet_world(trained: Named, alpha: float, scale: Scale) -> tuple[Training, dict[tuple[str, str | None], Shift]]:
    if scale == "paper":
        data: Dataset = ImageNet32(Dirichlet(alpha, "brfl"), 20, augment=FlipCrop(), shared=True)
        training = Training(trained, data, ResNet20(width=4.0), 300)
        shifted = {n: Natural(source=ImageNetVariant(variant=v, shared=True)) for n, v in IMAGENETS.items()}  # type: ignore[arg-type]
    else:
        training = LabelSkew(alpha, model=ResNet20()).training(trained, scale)
        styles = dict(zip(IMAGENETS, ("sketch", "textured", "faded"), strict=True))
        shifted = {n: Natural(source=Few(style=style)) for n, style in styles.items()}
    own: dict[tuple[str, str | None], Shift] = {("original", "ImageNet"): Original()}
    own |= {("natural", n): s for n, s in shifted.items()}
    return training, own | {("mixture", None): Mixture(parts=tuple(own.values()))}


def _ablation(*left_out: int) -> Callable[[Scale], Cells]:
    def make(scale: Scale) -> Cells:
        for number, name in ABLATIONS.items():
            if number in left_out:
                continue
            row, line, where = f"{number}: {name}", LINES[name].at(scale), where_of(0.1)
            trained, tests = LabelSkew().training(line.method, scale), streams(scale)
            for column, stream in tests.items():
                place = key(design_choice=number, partition=where, stream=column)
                yield Cell(row, column, trained, line.personal, line.adapter, stream, key=place)
            place = key(design_choice=number, partition=where, stream="average")
            yield Derived(row, "average", tuple(tests), key=place)

    return make


def table4(scale: Scale) -> Cells:
    """13 methods under weak label skew."""
    rows = {n: line for n, line in printed().items() if n != "kNN-Per"}
    yield from cells(scale, LabelSkew(10.0), rows, partition=where_of(10.0))


def table6(scale: Scale) -> Cells:
    """Seven methods with two other architectures, and their means, which Figure 5 shows."""
    for name in ("ResNet20-GN", "CCT4"):
        model, rows = architecture(name)
        setting, where = LabelSkew(1.0, model=model), where_of(1.0)
        own = list(cells(scale, setting, printed(*STRONG, rows=rows), f"{name} ", model=name, partition=where))
        yield from own
        for row in STRONG:
            yield Derived(row, f"{name} mean", tuple(c.column for c in own if c.row == row))


def table7(scale: Scale) -> Cells:
    """Both shifts on the same samples: corrupted examples of other clients."""
    for name, alpha in (("CCT4", 1.0), ("ResNet20-GN", 1.0), ("CNN", 0.1), ("CNN", 1.0)):
        model, rows = architecture(name)
        for row, line in printed(*STRONG, rows=rows).items():
            small, where = line.at(scale), where_of(alpha)
            trained = LabelSkew(alpha, model=model).training(small.method, scale)
            place = key(method=row, model=name, partition=where, stream="corrupted+out-of-client")
            yield Cell(row, f"{name} {where}", trained, small.personal, small.adapter, Interleaved(), key=place)


def table8(scale: Scale) -> Cells:
    """Corruption from mild to severe."""
    for row, line in printed("MEMO (P)", "FedTHE").items():
        small = line.at(scale)
        for alpha in (0.1, 1.0):
            trained, where = LabelSkew(alpha).training(small.method, scale), where_of(alpha)
            for severity in (1, 2, 3, 4, 5):
                for name in ("corrupted", "mixture"):
                    place = key(method=row, partition=where, stream=name, severity=severity)
                    stream, column = streams(scale, severity)[name], f"{where} {name} {severity}"
                    yield Cell(row, column, trained, small.personal, small.adapter, stream, key=place)


def table9(scale: Scale) -> Cells:
    """More epochs of personalisation: of the fine-tuning, or of the personal head."""
    for epochs in (2, 4, 8):
        work = Work(epochs=epochs)
        memo, the = LINES["memo-p"], LINES["fedthe"]
        rows = {
            "MEMO (P)": replace(memo, personal=memo.personal.but(work=work)),
            "FedTHE": replace(the, method=the.method.but(head_work=work)),
        }
        for alpha in (1.0, 0.1):
            fields: dict[str, Any] = {"personalization_epochs": epochs, "partition": where_of(alpha)}
            yield from cells(scale, LabelSkew(alpha), rows, f"{where_of(alpha)} {epochs} epochs ", **fields)


def _shares(train: float, test: float) -> tuple[float, float, float]:
    """Training, validation and test, without the errors of sums: whole sets are Table 1's, so their training is too."""
    return round(train, 6), round(1 - train - test, 6), round(test, 6)


def table10(scale: Scale) -> Cells:
    """Smaller test sets; what is cut off goes to validation, so that training stays the same."""
    for share in (1.0, 0.75, 0.5):
        for alpha in (1.0, 0.1):
            setting = LabelSkew(alpha, split=_shares(0.6, 0.2 * share))
            fields: dict[str, Any] = {"test_size_fraction": share, "partition": where_of(alpha)}
            yield from cells(scale, setting, printed("FedTHE"), f"{where_of(alpha)} size {share:g} ", **fields)


def table11(scale: Scale) -> Cells:
    """Smaller training sets."""
    for share in (1.0, 0.75, 0.5):
        for alpha in (1.0, 0.1):
            setting = LabelSkew(alpha, split=_shares(0.6 * share, 0.2))
            fields: dict[str, Any] = {"train_size_fraction": share, "partition": where_of(alpha)}
            rows, prefix = printed("MEMO (P)", "FedTHE"), f"{where_of(alpha)} size {share:g} "
            yield from cells(scale, setting, rows, prefix, **fields)


def table12(scale: Scale) -> Cells:
    """100 clients."""
    rows = printed("FedAvg + FT", "FedRoD", "MEMO (P)", "FedTHE", "FedTHE+")
    yield from cells(scale, LabelSkew(clients=100), rows, partition=where_of(0.1))


def _sampled(share: float) -> Callable[[Scale], Cells]:
    rows = printed("FedAvg + FT", "FedRoD", "kNN-Per", "MEMO (P)", "FedTHE", "FedTHE+")
    fields: dict[str, Any] = {"sampling_ratio": share, "partition": where_of(0.1)}
    return lambda scale: cells(scale, LabelSkew(participation=share), rows, **fields)


NATURAL_LEFT = "The natural stream needs CIFAR-10.1; without it the mixture is of the other three."
LP_FT = "Design choice 2 (test-time LP-FT on MEMO) is left out: the paper does not spell it out."
RECIPES = (
    Recipe(
        "fedthe/table1",
        "14 methods on five streams, CIFAR-10, Dir(0.1) and Dir(1.0)",
        table1,
        "fedthe/table1",
        (NATURAL_LEFT, "Local training, Ditto without its tie and TSA are not in the paper's table."),
    ),
    Recipe("fedthe/table2", "ImageNet-32 and its natural shifts, Dir(1.0)", _imagenet(1.0), "fedthe/table2", pace=60.0),
    Recipe("fedthe/table3", "Step by step from two heads to FedTHE+", _ablation(15, 16), "fedthe/table3", (LP_FT,)),
    Recipe("fedthe/table4", "13 methods on five streams, Dir(10)", table4, "fedthe/table4"),
    Recipe("fedthe/table5", "ImageNet-32 and its natural shifts, Dir(0.1)", _imagenet(0.1), "fedthe/table5", pace=60.0),
    Recipe("fedthe/table6", "ResNet20-GN and CCT4, Dir(1.0)", table6, "fedthe/table6", pace=5.0),
    Recipe("fedthe/table7", "Corruption and label shift at once", table7, "fedthe/table7"),
    Recipe("fedthe/table8", "Corruption severity from 1 to 5", table8, "fedthe/table8"),
    Recipe("fedthe/table9", "2, 4 and 8 epochs of personalisation", table9, "fedthe/table9"),
    Recipe("fedthe/table10", "Test sets cut to 0.75 and 0.5", table10, "fedthe/table10"),
    Recipe("fedthe/table11", "Training sets cut to 0.75 and 0.5", table11, "fedthe/table11"),
    Recipe("fedthe/table12", "100 clients", table12, "fedthe/table12"),
    Recipe(
        "fedthe/table13", "Table 3 and two more places of balanced softmax", _ablation(), "fedthe/table13", (LP_FT,)
    ),
    Recipe("fedthe/table14", "A tenth of the clients per round", _sampled(0.1), "fedthe/table14"),
    Recipe("fedthe/table15", "Two fifths of the clients per round", _sampled(0.4), "fedthe/table15"),
    *fedthe_figures.RECIPES,
)
OMITTED = fedthe_figures.OMITTED
