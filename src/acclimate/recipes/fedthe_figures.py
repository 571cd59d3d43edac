"""FedTHE's figures: learning curves, mixtures with one weight, and what FedTHE's weights do. See fedthe.py.

The figures print no numbers. Those that show one thing in several settings are one recipe.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from ..data import STL10
from ..shifts import Natural
from .adapters import FixedHeads
from .brfl import LINES, PRINTED, TRAININGS, Cells, LabelSkew, cells, printed, where_of
from .federations import Few
from .record import SMOKE_ROUNDS, Cell, Line, Named, Recipe, Scale

NO_NUMBERS = "The figure prints no numbers."


def figure6(scale: Scale) -> Cells:
    """Linear probing, fine-tuning, and one after the other."""
    rows = {"LP": LINES["fedavg+lp"], "FT": LINES["fedavg+ft"], "LP-FT": LINES["fedavg+lp-ft"]}
    yield from _unprinted(cells(scale, LabelSkew(10.0), rows, only=("original", "corrupted", "natural")))
    other = STL10(part="test", size=32) if scale == "paper" else Few(style="clutter")
    for row, line in rows.items():
        small = line.at(scale)
        trained = LabelSkew(10.0).training(small.method, scale)
        yield Cell(row, "STL10", trained, small.personal, small.adapter, Natural(source=other))


FOUR = ("original", "corrupted", "natural", "out-of-client")
BEST = ("FedAvg", "FedAvg + FT", "FedRoD", "MEMO (P)", "FedTHE", "FedTHE+")
SHARES = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)


def figure8(scale: Scale) -> Cells:
    """Learning curves at five points: on the mixture for all methods, and for some of them on the other streams too."""
    last, count = (100, 5) if scale == "paper" else (SMOKE_ROUNDS, 2)
    points = [last * i // count for i in range(1, count + 1)]
    for alpha in (0.1, 1.0):
        setting, prefix = LabelSkew(alpha, every=points[0]), f"{where_of(alpha)} "
        for cell in cells(scale, setting, printed(*PRINTED), prefix, only=("mixture", *FOUR)):
            for point in points if cell.row in BEST or cell.column.endswith("mixture") else ():
                column = f"{cell.column}, round {point}"
                yield replace(cell, column=column, measure=f"round:{point}", key=None)


def figure14(scale: Scale) -> Cells:
    """One weight of the global head, or of the global model, for all clients and samples, against FedTHE's weights."""
    fedthe, apfl = TRAININGS["fedthe"], TRAININGS["apfl"]
    for alpha in (0.1, 1.0):
        rows = {f"heads, e = {e:g}": Line(fedthe, _fixed(e)) for e in SHARES}
        rows |= {f"models, e = {e:g}": Line(apfl.but(alpha=1 - e, adapt_alpha=False)) for e in SHARES}
        rows |= printed("FedTHE", "FedTHE+")
        yield from _unprinted(cells(scale, LabelSkew(alpha), rows, f"{where_of(alpha)} ", only=("mixture",)))


def _fixed(e: float) -> Named:
    return Named("adapter", "fixed heads", FixedHeads(e))


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
    yield from _unprinted(cells(scale, LabelSkew(), rows))


def figure17(scale: Scale) -> Cells:
    """The mean weight of the personal head on each stream, with and without the history of the stream."""
    rows: Mapping[str, Line] = {"with history": LINES["fedthe"], "without": LINES["fedthe-no-history"]}
    for cell in cells(scale, LabelSkew(), rows):
        yield replace(cell, measure="trace:personal_weight", key=None)


def _unprinted(made: Iterator[Cell]) -> Iterator[Cell]:
    """Without keys: the paper prints none of these numbers."""
    yield from (replace(c, key=None) for c in made)


RECIPES = (
    Recipe(
        "fedthe/figure6",
        "LP, FT and LP-FT, in and out of distribution (Figures 6 and 7)",
        figure6,
        None,
        (NO_NUMBERS, "The paper starts from MoCo's ResNet-50; here the start is FedAvg's model, at Dir(10)."),
    ),
    Recipe(
        "fedthe/figure8",
        "Learning curves at Dir(0.1) and Dir(1.0) (Figures 8 to 13)",
        figure8,
        None,
        (NO_NUMBERS, "Figures 12 and 13 are the mixture at Dir(0.1) with --rounds 500 and --rounds 1000."),
    ),
    Recipe(
        "fedthe/figure14",
        "Heads, and models, mixed with one weight (Figures 14 and 15)",
        figure14,
        None,
        (NO_NUMBERS, "Models are APFL's with a fixed weight. The bound with every client's best weight is not there."),
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
        "Weight of the personal head, by stream, with and without history (Figures 17 and 19)",
        figure17,
        None,
        (f"{NO_NUMBERS} Means stand for its densities.",),
    ),
)
OMITTED = {
    "fedthe/figure1": "a drawing of the setting",
    "fedthe/figure2": "rows of fedthe/table1",
    "fedthe/figure3": "a drawing of the method",
    "fedthe/figure4": "a drawing of the benchmark",
    "fedthe/figure5": "the means of fedthe/table6",
    "fedthe/figure7": "part of fedthe/figure6: the same with a weaker start",
    "fedthe/figure9": "part of fedthe/figure8",
    "fedthe/figure10": "part of fedthe/figure8",
    "fedthe/figure11": "part of fedthe/figure8",
    "fedthe/figure12": "part of fedthe/figure8, with --rounds 500",
    "fedthe/figure13": "part of fedthe/figure8, with --rounds 1000",
    "fedthe/figure15": "part of fedthe/figure14",
    "fedthe/figure18": "a t-SNE picture; `acclimate run ... analysis=true` draws it in the report",
    "fedthe/figure19": "part of fedthe/figure17",
}
