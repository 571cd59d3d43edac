"""FedTHE's tables and figures. Jiang & Lin, ICLR 2023: CIFAR-10 and ImageNet-32 under BRFL's five test streams.

`TRAININGS` and `LINES` are also what benchmarks/fedthe_cifar10.py runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ..core.local import Work
from ..core.optim import SGD, Adam, Optimizer
from ..core.task import Model
from ..data import CIFAR10, CIFAR10_1, STL10, Dataset, Digits, Dirichlet, ImageNet32, ImageNetVariant
from ..models import CCT, CNN, ResNet20
from ..ops.augment import FlipCrop
from ..shifts import Corrupted, Interleaved, Mixture, Natural, Original, OutOfClient, Shift
from .few import Few
from .fixed import FixedHeads
from .record import SMOKE_ROUNDS, Cell, Derived, Line, Named, Recipe, Scale, Training, adapter, key, method, personal

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
        "fedrod": Line(trained["fedrod"]),
        "knn-per": Line(fedavg, adapter("knn"), personal("memory")),
        "ttt": Line(trained["fedttt"], adapter("ttt")),
        "ttt-episodic": Line(trained["fedttt"], adapter("ttt", online=False, chunk=CHUNK)),
        "memo-p": Line(fedavg, memo, tune),
        "t3a": Line(fedavg, adapter("t3a"), tune),
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
TABLE1: tuple[str, ...] = (
    "local",
    "fedavg",
    "gma",
    "memo-g",
    "fedavg+ft",
    "fedavg+lp",
    "fedavg+lp-ft",
    "apfl",
    "fedrep",
    "ditto",
)
TABLE1 += ("fedrod", "knn-per", "ttt", "ttt-episodic", "memo-p", "t3a", "tsa", "fedthe", "fedthe+")
"""The rows that the benchmark runs for Table 1; some of them are not in the paper."""
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
STRONG = ("FedAvg + FT", "FedRoD", "FedRep", "MEMO (P)", "T3A", "FedTHE", "FedTHE+")
NO_NUMBERS = "The figure prints no numbers."


@dataclass(frozen=True)
class Setting:
    """What a half of a table has in common: the federation, the model, and for how long it is trained."""

    alpha: float = 0.1
    clients: int = 20
    participation: float = 1.0
    split: tuple[float, float, float] = (0.6, 0.2, 0.2)
    rounds: int = 100
    every: int | None = None
    model: Model = CNN(bias=False)

    def training(self, trained: Named, scale: Scale) -> Training:
        """One training of this setting."""
        if scale == "paper":
            partition = Dirichlet(self.alpha)
            data: Dataset = CIFAR10(partition, self.clients, self.split, augment=FlipCrop())
            return Training(trained, data, self.model, self.rounds, self.participation, self.every)
        clients = 6 if self.clients > 20 else 4
        share = SMOKE_SHARE if isinstance(self.model, CNN) else SMOKE_SHARE / 2
        data = Digits(Dirichlet(self.alpha), clients, self.split, fraction=share)
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
    setting: Setting,
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
    return {n: rows[PRINTED[n]] for n in names or PRINTED}


def _partition(alpha: float) -> str:
    return f"dir({alpha:.1f})"


# --- tables ---------------------------------------------------------------------------------------------------------


def table1(scale: Scale) -> Cells:
    """14 methods at two levels of label skew."""
    for alpha in (0.1, 1.0):
        where = _partition(alpha)
        yield from cells(scale, Setting(alpha), printed(), f"{where} ", partition=where)


IMAGENETS = {"ImageNet-A": "a", "ImageNet-V2": "v2", "ImageNet-R": "r"}


def _imagenet(alpha: float) -> Callable[[Scale], Cells]:
    work = Work(batch=128)
    rows = lines(methods(MOMENTUM, work), MOMENTUM, work=Work(epochs=1, batch=128))

    def make(scale: Scale) -> Cells:
        where = _partition(alpha)
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
            row, line, where = f"{number}: {name}", LINES[name].at(scale), _partition(0.1)
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
    yield from cells(scale, Setting(10.0), rows, partition=_partition(10.0))


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
        setting, where = Setting(1.0, model=model), _partition(1.0)
        yield from cells(scale, setting, printed(*STRONG, rows=rows), f"{name} ", model=name, partition=where)


def table7(scale: Scale) -> Cells:
    """Both shifts on the same samples: corrupted examples of other clients."""
    for name, alpha in (("CCT4", 1.0), ("ResNet20-GN", 1.0), ("CNN", 0.1), ("CNN", 1.0)):
        model, rows = _architecture(name)
        for row, line in printed(*STRONG, rows=rows).items():
            small, where = line.at(scale), _partition(alpha)
            trained = Setting(alpha, model=model).training(small.method, scale)
            place = key(method=row, model=name, partition=where, stream="corrupted+out-of-client")
            yield Cell(row, f"{name} {where}", trained, small.personal, small.adapter, Interleaved(), key=place)


def table8(scale: Scale) -> Cells:
    """Corruption from mild to severe."""
    for row, line in printed("MEMO (P)", "FedTHE").items():
        small = line.at(scale)
        for alpha in (0.1, 1.0):
            trained, where = Setting(alpha).training(small.method, scale), _partition(alpha)
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
            fields: dict[str, Any] = {"personalization_epochs": epochs, "partition": _partition(alpha)}
            yield from cells(scale, Setting(alpha), rows, f"{_partition(alpha)} {epochs} epochs ", **fields)


def table10(scale: Scale) -> Cells:
    """Smaller test sets; what is cut off goes to validation, so that training stays the same."""
    for share in (1.0, 0.75, 0.5):
        for alpha in (1.0, 0.1):
            setting = Setting(alpha, split=(0.6, 0.4 - 0.2 * share, 0.2 * share))
            fields: dict[str, Any] = {"test_size_fraction": share, "partition": _partition(alpha)}
            yield from cells(scale, setting, printed("FedTHE"), f"{_partition(alpha)} size {share:g} ", **fields)


def table11(scale: Scale) -> Cells:
    """Smaller training sets."""
    for share in (1.0, 0.75, 0.5):
        for alpha in (1.0, 0.1):
            setting = Setting(alpha, split=(0.6 * share, 0.8 - 0.6 * share, 0.2))
            fields: dict[str, Any] = {"train_size_fraction": share, "partition": _partition(alpha)}
            rows, prefix = printed("MEMO (P)", "FedTHE"), f"{_partition(alpha)} size {share:g} "
            yield from cells(scale, setting, rows, prefix, **fields)


def table12(scale: Scale) -> Cells:
    """100 clients."""
    rows = printed("FedAvg + FT", "FedRoD", "MEMO (P)", "FedTHE", "FedTHE+")
    yield from cells(scale, Setting(clients=100), rows, partition=_partition(0.1))


def _sampled(share: float) -> Callable[[Scale], Cells]:
    rows = printed("FedAvg + FT", "FedRoD", "kNN-Per", "MEMO (P)", "FedTHE", "FedTHE+")
    fields: dict[str, Any] = {"sampling_ratio": share, "partition": _partition(0.1)}
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
        yield from _unprinted(cells(scale, Setting(alpha), rows, f"{_partition(alpha)} ", only=("mixture",)))


def _fixed(e: float) -> Named:
    return Named("adapter", "fixed heads", base=FixedHeads(e))


def figure15(scale: Scale) -> Cells:
    """One weight of the global model (all of it) for all clients, against FedTHE's."""
    for alpha in (0.1, 1.0):
        rows = {f"e = {e:g}": Line(TRAININGS["apfl"].but(alpha=1 - e, adapt_alpha=False)) for e in SHARES}
        rows |= printed("FedTHE", "FedTHE+")
        yield from _unprinted(cells(scale, Setting(alpha), rows, f"{_partition(alpha)} ", only=("mixture",)))


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
