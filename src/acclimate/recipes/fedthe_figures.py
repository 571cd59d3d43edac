"""FedTHE's figures: learning curves, mixtures with one weight, and what FedTHE's weights do. See fedthe.py."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from ..data import STL10
from ..shifts import Natural
from .brfl import LINES, NO_NUMBERS, PRINTED, STRONG, TRAININGS, Cells, Setting, architecture, cells, printed, where_of
from .few import Few
from .fixed import FixedHeads
from .record import SMOKE_ROUNDS, Cell, Derived, Line, Named, Recipe, Scale


def figure2(scale: Scale) -> Cells:
    """Personalised methods, and test-time adaptation on top of one."""
    names = ("FedAvg", "FedRep", "FedRoD", "APFL", "Ditto", "FedAvg + FT", "TTT", "MEMO (P)", "T3A")
    yield from _unprinted(cells(scale, Setting(), printed(*names)))


def figure5(scale: Scale) -> Cells:
    """The mean over the five streams, with two architectures."""
    for name in ("ResNet20-GN", "CCT4"):
        model, rows = architecture(name)
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


ALPHA_GRID, BETA_GRID = (0.05, 0.1, 0.2), (0.1, 0.2, 0.3, 0.4, 0.5)
"""Appendix C.2."""


def figure16(scale: Scale) -> Cells:
    """FedTHE's two weights of the history."""
    line = LINES["fedthe"]
    rows = {
        f"alpha {a:g}, beta {b:g}": replace(line, adapter=line.adapter.but(alpha=a, beta=b))
        for a in ALPHA_GRID
        for b in BETA_GRID
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


RECIPES = (
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
        (NO_NUMBERS, "The grid is Appendix C.2's; the text on the figure also speaks of an alpha of 0.01."),
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
