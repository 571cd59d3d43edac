"""FedSPL on PACS, beside the paper's rows: what its parts do by themselves, and what the settings of training do.

`fedspl/pacs` has the trainings of Tables 1 and 4 (recipes/fedspl.py), controls that the paper does not have, and what
the models know of their own domains' validation examples. `fedspl/rates` trains FedAvg without Photo at the paper's and
the released rate, with images as they are and enlarged to nearer the size of pre-training.
"""

from __future__ import annotations

from dataclasses import replace

from ..core import SGD
from ..shifts import Original
from .federations import PACS4
from .fedspl import ABLATION, BATCH, FEDAVG, FMR, LITE, NOTES, RATE, ROWS, Cells, cells, fitted, stream, training
from .record import NONE, Cell, Derived, Line, Recipe, Scale, adapter, key

CONTROLS: dict[str, Line] = {
    "BN": replace(FEDAVG, adapter=adapter("bn")),
    "FMR, BN": replace(FMR, adapter=adapter("bn")),
    "ATP, not adapted": replace(ROWS["ATP"], adapter=NONE),
    "FedSPL, released": Line(FMR.method.but(variant="released"), adapter("mbsl", variant="released", views=5)),
}
"""Not in the paper: what a test batch's statistics do by themselves, ATP's shorter training, and FedSPL as its code has
it, whose teacher moves in every step."""
ORDER: tuple[str, ...] = (
    "FedAvg",
    "BN",
    "Tent",
    "T3A",
    "MBSL",
    "FMR",
    "FMR, BN",
    "FedSPL",
    "GA",
    "ATP, not adapted",
    "ATP",
)
ORDER += ("FedSPL, released",)
LINES = {name: {**ROWS, **ABLATION, **CONTROLS}[name] for name in ORDER}


def pacs(scale: Scale, backbone: str | None = None) -> Cells:
    """Each domain left out in turn, and what the models know of their own domains' validation examples."""
    known = set()
    for row, line in LINES.items():
        own = list(cells(scale, PACS4, {row: line}, backbone=backbone, dataset="PACS"))
        if row in ("FMR", "MBSL"):
            own = [replace(c, key=key(method=row, domain=c.column), table="fedspl/table4") for c in own]
        yield from own
        if line.method not in known:  # every training once
            known.add(line.method)
            yield from _validated([c for c in own if isinstance(c, Cell)])


def _validated(own: list[Cell]) -> Cells:
    columns = [f"{c.column} validation" for c in own]
    for cell, column in zip(own, columns, strict=True):
        yield Cell(cell.row, column, cell.training, stream=Original(batch=BATCH), examples="validation")
    yield Derived(own[0].row, "validation", tuple(columns))


def rates(scale: Scale) -> Cells:
    """FedAvg without Photo at two rates of local training and two sizes of what the network sees."""
    for size in (64, 128):
        for opt in (SGD(lr=0.2), RATE):
            start = replace(LITE, size=size)
            line = fitted(Line(FEDAVG.method.but(opt=opt)), scale, PACS4, start)
            trained, row = training(scale, line, PACS4, "Photo", start), f"{size} pixels, rate {opt.lr:g}"
            yield Cell(row, "Photo", trained, line.personal, line.adapter, stream(line))
            yield Cell(row, "Photo validation", trained, stream=Original(batch=BATCH), examples="validation")


RECIPES = (
    Recipe("fedspl/pacs", "PACS, with controls", pacs, "fedspl/table1", NOTES, pace=2.0, starts=True),
    Recipe(
        "fedspl/rates",
        "Rate and image size of local training, on PACS without Photo",
        rates,
        None,
        ("Numbers of ours alone: the paper has no such table.", *NOTES[:2]),
        pace=2.0,
    ),
)
