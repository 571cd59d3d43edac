"""FedTHE's tables and figures. Jiang & Lin, ICLR 2023: CIFAR-10 and ImageNet-32 under BRFL's five test streams."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from ..core.local import Work
from ..core.optim import Adam, Optimizer
from ..core.task import Model
from ..data import STL10, Dataset, Dirichlet, ImageNet32, ImageNetVariant
from ..models import CCT, CNN, ResNet20
from ..ops.augment import FlipCrop
from ..shifts import Interleaved, Mixture, Natural, Original, Shift
from .brfl import (
    ABLATIONS,
    LINES,
    MOMENTUM,
    NO_NUMBERS,
    PRINTED,
    RATE,
    STRONG,
    TRAININGS,
    Cells,
    Setting,
    cells,
    lines,
    methods,
    printed,
    streams,
    where_of,
)
from .few import Few
from .fixed import FixedHeads
from .record import SMOKE_ROUNDS, Cell, Derived, Line, Named, Recipe, Scale, Training, key

# --- tables ---------------------------------------------------------------------------------------------------------


def table1(scale: Scale) -> Cells:
    """14 methods at two levels of label skew."""
    for alpha in (0.1, 1.0):
        where = where_of(alpha)
        yield from cells(scale, Setting(alpha), printed(), f"{where} ", partition=where)


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
        data: Dataset = ImageNet32(Dirichlet(alpha), 20, augment=FlipCrop(), shared=True)
        training = Training(trained, data, ResNet20(width=4.0), 300)
        shifted = {n: Natural(source=ImageNetVariant(variant=v, shared=True)) for n, v in IMAGENETS.items()}  # type: ignore[arg-type]
    else:
        training = Setting(alpha, model=ResNet20()).training(trained, scale)
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
            trained, tests = Setting().training(line.method, scale), streams(scale)
            for column, stream in tests.items():
                place = key(design_choice=number, partition=where, stream=column)
                yield Cell(row, column, trained, line.personal, line.adapter, stream, key=place)
            place = key(design_choice=number, partition=where, stream="average")
            yield Derived(row, "average", tuple(tests), key=place)

    return make


def table4(scale: Scale) -> Cells:
    """13 methods under weak label skew."""
    rows = {n: line for n, line in printed().items() if n != "kNN-Per"}
    yield from cells(scale, Setting(10.0), rows, partition=where_of(10.0))


MODELS: dict[str, tuple[Model, Optimizer, float]] = {
    "ResNet20-GN": (ResNet20(), MOMENTUM, 0.1),
    "CCT4": (CCT(), Adam(lr=1e-3, weight_decay=5e-4), 0.01),
    "CNN": (CNN(bias=False), RATE, 0.1),
}
"""The paper's architectures, each with its optimiser and FedTHE's rate."""


def _architecture(name: str) -> tuple[Model, dict[str, Line]]:
    model, rate, the = MODELS[name]
    return model, lines(methods(rate), rate, the)


def table6(scale: Scale) -> Cells:
    """Seven methods with two other architectures."""
    for name in ("ResNet20-GN", "CCT4"):
        model, rows = _architecture(name)
        setting, where = Setting(1.0, model=model), where_of(1.0)
        yield from cells(scale, setting, printed(*STRONG, rows=rows), f"{name} ", model=name, partition=where)


def table7(scale: Scale) -> Cells:
    """Both shifts on the same samples: corrupted examples of other clients."""
    for name, alpha in (("CCT4", 1.0), ("ResNet20-GN", 1.0), ("CNN", 0.1), ("CNN", 1.0)):
        model, rows = _architecture(name)
        for row, line in printed(*STRONG, rows=rows).items():
            small, where = line.at(scale), where_of(alpha)
            trained = Setting(alpha, model=model).training(small.method, scale)
            place = key(method=row, model=name, partition=where, stream="corrupted+out-of-client")
            yield Cell(row, f"{name} {where}", trained, small.personal, small.adapter, Interleaved(), key=place)


def table8(scale: Scale) -> Cells:
    """Corruption from mild to severe."""
    for row, line in printed("MEMO (P)", "FedTHE").items():
        small = line.at(scale)
        for alpha in (0.1, 1.0):
            trained, where = Setting(alpha).training(small.method, scale), where_of(alpha)
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
            yield from cells(scale, Setting(alpha), rows, f"{where_of(alpha)} {epochs} epochs ", **fields)


def table10(scale: Scale) -> Cells:
    """Smaller test sets; what is cut off goes to validation, so that training stays the same."""
    for share in (1.0, 0.75, 0.5):
        for alpha in (1.0, 0.1):
            setting = Setting(alpha, split=(0.6, 0.4 - 0.2 * share, 0.2 * share))
            fields: dict[str, Any] = {"test_size_fraction": share, "partition": where_of(alpha)}
            yield from cells(scale, setting, printed("FedTHE"), f"{where_of(alpha)} size {share:g} ", **fields)


def table11(scale: Scale) -> Cells:
    """Smaller training sets."""
    for share in (1.0, 0.75, 0.5):
        for alpha in (1.0, 0.1):
            setting = Setting(alpha, split=(0.6 * share, 0.8 - 0.6 * share, 0.2))
            fields: dict[str, Any] = {"train_size_fraction": share, "partition": where_of(alpha)}
            rows, prefix = printed("MEMO (P)", "FedTHE"), f"{where_of(alpha)} size {share:g} "
            yield from cells(scale, setting, rows, prefix, **fields)


def table12(scale: Scale) -> Cells:
    """100 clients."""
    rows = printed("FedAvg + FT", "FedRoD", "MEMO (P)", "FedTHE", "FedTHE+")
    yield from cells(scale, Setting(clients=100), rows, partition=where_of(0.1))


def _sampled(share: float) -> Callable[[Scale], Cells]:
    rows = printed("FedAvg + FT", "FedRoD", "kNN-Per", "MEMO (P)", "FedTHE", "FedTHE+")
    fields: dict[str, Any] = {"sampling_ratio": share, "partition": where_of(0.1)}
    return lambda scale: cells(scale, Setting(participation=share), rows, **fields)


# --- figures --------------------------------------------------------------------------------------------------------


def figure2(scale: Scale) -> Cells:
    """Personalised methods, and test-time adaptation on top of one."""
    names = ("FedAvg", "FedRep", "FedRoD", "APFL", "Ditto", "FedAvg + FT", "TTT", "MEMO (P)", "T3A")
    yield from _unprinted(cells(scale, Setting(), printed(*names)))


def figure5(scale: Scale) -> Cells:
    """The mean over the five streams, with two architectures."""
    for name in ("ResNet20-GN", "CCT4"):
        model, rows = _architecture(name)
        own = list(_unprinted(cells(scale, Setting(1.0, model=model), printed(*STRONG, rows=rows), f"{name} ")))
        yield from own
        for row in STRONG:
            yield Derived(row, f"{name} mean", tuple(c.column for c in own if c.row == row))


def figure6(scale: Scale) -> Cells:
    """Linear probing, fine-tuning, and one after the other."""
    rows = {"LP": LINES["fedavg+lp"], "FT": LINES["fedavg+ft"], "LP-FT": LINES["fedavg+lp-ft"]}
    yield from _unprinted(cells(scale, Setting(10.0), rows, only=("original", "corrupted", "natural")))
    other = STL10(part="test", size=32) if scale == "paper" else Few(style="clutter")
    for row, line in rows.items():
        small = line.at(scale)
        trained = Setting(10.0).training(small.method, scale)
        yield Cell(row, "STL10", trained, small.personal, small.adapter, Natural(source=other))


def _curves(
    alpha: float, names: tuple[str, ...], tests: tuple[str, ...], rounds: int = 100
) -> Callable[[Scale], Cells]:
    """Learning curves, at five rounds."""

    def make(scale: Scale) -> Cells:
        last, count = (rounds, 5) if scale == "paper" else (SMOKE_ROUNDS, 2)
        points = [last * i // count for i in range(1, count + 1)]
        setting = Setting(alpha, rounds=rounds, every=points[0])
        for cell in cells(scale, setting, printed(*names), only=tests):
            for point in points:
                column = f"{cell.column}, round {point}"
                yield replace(cell, column=column, measure=f"round:{point}", key=None)

    return make


FOUR = ("original", "corrupted", "natural", "out-of-client")
BEST = ("FedAvg", "FedAvg + FT", "FedRoD", "MEMO (P)", "FedTHE", "FedTHE+")
SHARES = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)


def figure14(scale: Scale) -> Cells:
    """One weight of the global head for all clients and samples, against FedTHE's."""
    for alpha in (0.1, 1.0):
        rows = {f"e = {e:g}": Line(TRAININGS["fedthe"], _fixed(e)) for e in SHARES} | printed("FedTHE", "FedTHE+")
        yield from _unprinted(cells(scale, Setting(alpha), rows, f"{where_of(alpha)} ", only=("mixture",)))


def _fixed(e: float) -> Named:
    return Named("adapter", "fixed heads", base=FixedHeads(e))


def figure15(scale: Scale) -> Cells:
    """One weight of the global model (all of it) for all clients, against FedTHE's."""
    for alpha in (0.1, 1.0):
        rows = {f"e = {e:g}": Line(TRAININGS["apfl"].but(alpha=1 - e, adapt_alpha=False)) for e in SHARES}
        rows |= printed("FedTHE", "FedTHE+")
        yield from _unprinted(cells(scale, Setting(alpha), rows, f"{where_of(alpha)} ", only=("mixture",)))


def figure16(scale: Scale) -> Cells:
    """FedTHE's two weights of the history."""
    line, grid = LINES["fedthe"], (0.01, 0.05, 0.1, 0.3, 0.5)
    rows = {
        f"alpha {a:g}, beta {b:g}": replace(line, adapter=line.adapter.but(alpha=a, beta=b))
        for a in grid[: len(grid) if scale == "paper" else 2]
        for b in (0.1, 0.3, 0.5)
    }
    yield from _unprinted(cells(scale, Setting(), rows))


def figure17(scale: Scale) -> Cells:
    """The mean weight of the personal head on each stream."""
    yield from _traced(scale, {"FedTHE": LINES["fedthe"]})


def figure19(scale: Scale) -> Cells:
    """The same with and without the history of the stream."""
    yield from _traced(scale, {"with history": LINES["fedthe"], "without": LINES["fedthe-no-history"]})


def _traced(scale: Scale, rows: Mapping[str, Line]) -> Cells:
    for cell in cells(scale, Setting(), rows):
        yield replace(cell, measure="trace:personal_weight", key=None)


def _unprinted(made: Iterator[Cell]) -> Iterator[Cell]:
    """Without keys: the paper prints none of these numbers."""
    yield from (replace(c, key=None) for c in made)


NATURAL_LEFT = "The natural stream needs CIFAR-10.1; without it the mixture is of the other three."
LP_FT = "Design choice 2 (test-time LP-FT on MEMO) is left out: the paper does not spell it out."
RECIPES = (
    Recipe(
        "fedthe/table1",
        "14 methods on five streams, CIFAR-10, Dir(0.1) and Dir(1.0)",
        table1,
        "fedthe/table1",
        (NATURAL_LEFT,),
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
    Recipe(
        "fedthe/figure2",
        "Personalised methods and test-time adaptation under shift",
        figure2,
        None,
        (f"{NO_NUMBERS} Table 1 has these methods.",),
    ),
    Recipe(
        "fedthe/figure5",
        "The mean over five streams, by architecture",
        figure5,
        None,
        (f"{NO_NUMBERS} Table 6 has the streams one by one.",),
    ),
    Recipe(
        "fedthe/figure6",
        "LP, FT and LP-FT, in and out of distribution (Figures 6 and 7)",
        figure6,
        None,
        (NO_NUMBERS, "The paper starts from MoCo's ResNet-50; here the start is FedAvg's model, at Dir(10)."),
    ),
    Recipe(
        "fedthe/figure8",
        "Learning curves on the mixture, Dir(0.1)",
        _curves(0.1, tuple(PRINTED), ("mixture",)),
        None,
        (NO_NUMBERS,),
    ),
    Recipe(
        "fedthe/figure9",
        "Learning curves on the mixture, Dir(1.0)",
        _curves(1.0, tuple(PRINTED), ("mixture",)),
        None,
        (NO_NUMBERS,),
    ),
    Recipe(
        "fedthe/figure10",
        "Learning curves on the other streams, Dir(0.1)",
        _curves(0.1, BEST, FOUR),
        None,
        (NO_NUMBERS,),
    ),
    Recipe(
        "fedthe/figure11",
        "Learning curves on the other streams, Dir(1.0)",
        _curves(1.0, BEST, FOUR),
        None,
        (NO_NUMBERS,),
    ),
    Recipe(
        "fedthe/figure12",
        "500 rounds on the mixture, Dir(0.1)",
        _curves(0.1, BEST, ("mixture",), 500),
        None,
        (NO_NUMBERS,),
    ),
    Recipe(
        "fedthe/figure13",
        "1000 rounds on the mixture, Dir(0.1)",
        _curves(0.1, BEST, ("mixture",), 1000),
        None,
        (NO_NUMBERS,),
    ),
    Recipe(
        "fedthe/figure14",
        "Heads mixed with one weight",
        figure14,
        None,
        (NO_NUMBERS, "The bound with every client's best weight, chosen on its test labels, is not there."),
    ),
    Recipe(
        "fedthe/figure15",
        "Models mixed with one weight",
        figure15,
        None,
        (NO_NUMBERS, "APFL with a fixed weight; the bound with every client's best weight is not there."),
    ),
    Recipe(
        "fedthe/figure16",
        "FedTHE's alpha and beta",
        figure16,
        None,
        (f"{NO_NUMBERS} Nor are the grid's values in the text.",),
    ),
    Recipe(
        "fedthe/figure17",
        "Weight of the personal head, by stream",
        figure17,
        None,
        (f"{NO_NUMBERS} Means stand for its densities.",),
    ),
    Recipe(
        "fedthe/figure19",
        "Weight of the personal head without history",
        figure19,
        None,
        (f"{NO_NUMBERS} Means stand for its densities.",),
    ),
)
OMITTED = {
    "fedthe/figure1": "a drawing of the setting",
    "fedthe/figure3": "a drawing of the method",
    "fedthe/figure4": "a drawing of the benchmark",
    "fedthe/figure7": "part of fedthe/figure6: the same with a weaker start",
    "fedthe/figure18": "a t-SNE picture; `acclimate run ... analysis=true` draws it in the report",
}
