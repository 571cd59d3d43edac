"""FedSPL on PACS, beside the paper's rows: what its parts do by themselves, and what the settings of training do.

`fedspl/pacs` has the trainings of Tables 1 and 4 (recipes/fedspl.py), controls that the paper does not have, and what
the models know of their own domains' validation examples. Results of it that are named `converted` are of an earlier
setting: 64 pixels as they are, a rate of 0.2, 40 rounds, no augmentation. `fedspl/rates` changes rate and size alone.
`fedspl/tenfold` is `fedspl/pacs` with ten times the released rate, for a tenth of the paper's rounds: the stand-in as
it is, or a ResNet with `weights=FILE`.
"""

from __future__ import annotations

from dataclasses import replace

from ..core import SGD, Work
from ..models import Pretrained, encoders
from ..shifts import Original, UnseenDomain
from .federations import DIGIT5, PACS4
from .fedspl import (
    ABLATION,
    BATCH,
    FEDAVG,
    FMR,
    LITE,
    NOTES,
    RATE,
    ROWS,
    SHORT,
    Cells,
    Start,
    cells,
    fitted,
    start_of,
    training,
)
from .record import NONE, Cell, Derived, Line, Recipe, Scale, Training, adapter, key

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


def pacs(scale: Scale, backbone: str | None = None, start: Start | None = None) -> Cells:
    """Each domain left out in turn, and what the models know of their own domains' validation examples."""
    known = set()
    for row, line in LINES.items():
        own = list(cells(scale, PACS4, {row: line}, backbone=backbone, start=start, dataset="PACS"))
        if row in ("FMR", "MBSL"):
            own = [replace(c, key=key(method=row, domain=c.column), table="fedspl/table4") for c in own]
        yield from own
        if line.method not in known:  # every training once
            known.add(line.method)
            yield from _validated([c for c in own if isinstance(c, Cell)])


def tenfold(scale: Scale, backbone: str | None = None) -> Cells:
    """The same at ten times the rate."""
    return pacs(scale, start=replace(LITE, rate=10.0) if backbone is None else replace(SHORT, backbone=backbone))


def _validated(own: list[Cell]) -> Cells:
    columns = [f"{c.column} validation" for c in own]
    for cell, column in zip(own, columns, strict=True):
        yield Cell(cell.row, column, cell.training, stream=Original(batch=BATCH), examples="validation")
    yield Derived(own[0].row, "validation", tuple(columns))


TRIED: dict[str, tuple[SGD, int | None]] = {
    "rate 0.02": (SGD(lr=0.02), None),
    "rate 0.05": (SGD(lr=0.05), None),
    "rate 0.2": (SGD(lr=0.2), None),
    "rate 0.2, 128 pixels": (SGD(lr=0.2), 128),
    "released rate": (RATE, None),
    "released rate, 128 pixels": (RATE, 128),
    "ten times the released rate, 128 pixels": (replace(RATE, lr=10 * RATE.lr), 128),
    "thirty times the released rate, 128 pixels": (replace(RATE, lr=30 * RATE.lr), 128),
}
"""Optimisers, and to what size the network sees 64-pixel images enlarged; None: as they are."""


def rates(scale: Scale) -> Cells:
    """FedAvg without Photo for 15 rounds, without augmentation: its rate, and the size of what the network sees."""
    for row, (opt, size) in TRIED.items():
        line = Line(FEDAVG.method.but(opt=opt, work=Work(epochs=1, batch=64))).at(scale)
        trained = training(scale, line, PACS4, "Photo", LITE)
        if scale == "paper":
            data = PACS4.federation(scale, "Photo", mean=encoders.LITE[0], std=encoders.LITE[1])
            trained = Training(line.method, data, Pretrained(LITE.backbone, size=size), 15)
        yield Cell(row, "Photo", trained, line.personal, line.adapter, UnseenDomain(batch=BATCH))
        yield Cell(row, "Photo validation", trained, stream=Original(batch=BATCH), examples="validation")


def rates_digits(scale: Scale) -> Cells:
    """FedAvg without MNIST as in Table 3, at three rates."""
    start = start_of(DIGIT5, None)
    for row, rate in (("rate 0.001", 1.0), ("rate 0.01", 10.0), ("rate 0.2", 200.0)):
        own = replace(start, rate=rate)
        line = fitted(FEDAVG, scale, DIGIT5, own)
        trained = training(scale, line, DIGIT5, DIGIT5.left_out(scale)[0], own)
        yield Cell(row, "validation", trained, stream=Original(batch=BATCH), examples="validation")


SHORT_NOTE = (
    "PACS at 64 pixels, 20 rounds, batches of 64: shown at 128 to an EfficientNet-Lite0 with ImageNet weights, or with "
    "weights=FILE at 224 to that ResNet. The paper has 224 pixels, 200 rounds, batches of 128."
)
TAUGHT_NOTE = "MBSL has batches of 64 at 8e-4, four times the released 16 at 2e-4."
RECIPES = (
    Recipe("fedspl/pacs", "PACS, with controls", pacs, "fedspl/table1", NOTES, pace=2.0, starts=True),
    Recipe(
        "fedspl/tenfold",
        "PACS, with controls, at ten times the released rate",
        tenfold,
        "fedspl/table1",
        (SHORT_NOTE, "Local training has a rate of 1e-2, all else as in `fedspl/pacs`.", TAUGHT_NOTE),
        pace=2.0,
        starts=True,
    ),
    Recipe(
        "fedspl/rates-digits",
        "The rate of local training, on Digit-5 without MNIST",
        rates_digits,
        None,
        ("Numbers of ours alone, on validation examples of the training domains: the paper has no such table.",),
        pace=2.0,
    ),
    Recipe(
        "fedspl/rates",
        "The rate and the image size of local training, on PACS without Photo",
        rates,
        None,
        (
            "Numbers of ours alone: the paper has no such table.",
            "An EfficientNet-Lite0 with ImageNet weights, 15 rounds, batches of 64, no augmentation, six tenths train.",
        ),
        pace=2.0,
    ),
)
