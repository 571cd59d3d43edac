"""FedSPL's tables and figures. Liang et al., AAAI 2025: PACS, Office-Home and Digit-5, one domain left out in turn."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from ..core import SGD, Work
from ..ops.augment import Views
from ..shifts import UnseenDomain
from .federations import DIGIT5, OFFICEHOME, PACS4, RESNET18, RESNET50, RESNET_NOTE, Kit, small_cnn
from .record import SMOKE_ROUNDS, Cell, Derived, Line, Recipe, Scale, Training, adapter, key, method, personal

RATE, WORK, ROUNDS = SGD(lr=0.2), Work(epochs=1, batch=128), 200
BATCH = 128
"""Of the test streams: the paper's only batch size."""
LOSSES = ("strong", "weak", "contrast")
Cells = Iterator[Cell | Derived]


def _plain(name: str) -> Line:
    """A method with the paper's rate and local work, tested as it is."""
    return Line(method(name, opt=RATE, work=WORK))


FEDAVG, FMR = _plain("fedavg"), _plain("fedspl")
ROWS: dict[str, Line] = {
    **{printed: _plain(printed.lower()) for printed in ("FedAvg", "FedProx", "FedCSA", "FedNova", "AM", "RSC")},
    **{printed: _plain(printed.lower()) for printed in ("FedSAM", "HarmoFL", "Scaffold", "ELCFS", "GA")},
    "DSBN": replace(_plain("dsbn"), adapter=adapter("bn")),
    "SHOT": replace(FEDAVG, adapter=adapter("shot")),
    "Tent": replace(FEDAVG, adapter=adapter("tent")),
    "T3A": replace(FEDAVG, adapter=adapter("t3a")),
    "MEMO": replace(FEDAVG, adapter=adapter("memo", chunk=32)),
    "EM": replace(FEDAVG, adapter=adapter("em")),
    "BBSE": replace(FEDAVG, adapter=adapter("bbse"), personal=personal("confusion")),
    "Surgical": replace(FEDAVG, adapter=adapter("surgical")),
    "ATP": Line(method("fedatp", opt=RATE, work=WORK, rate_work=replace(WORK, epochs=5)), adapter("atp")),
    "FedSPL": replace(FMR, adapter=adapter("mbsl")),
}
TABLE1: tuple[str, ...] = (
    "FedAvg",
    "FedProx",
    "FedCSA",
    "FedNova",
    "AM",
    "RSC",
    "FedSAM",
    "HarmoFL",
    "Scaffold",
    "ELCFS",
    "GA",
    "DSBN",
)
TABLE1 += ("Tent", "ATP", "FedSPL")
ABLATION: dict[str, Line] = {
    "Fedavg": FEDAVG,
    "FMR": FMR,
    "MBSL": replace(FEDAVG, adapter=adapter("mbsl")),
    "FedSPL": ROWS["FedSPL"],
}
"""Table 4: the training part, the test-time part, and both."""
TABLE3: tuple[str, ...] = (
    "FedAvg",
    "FedProx",
    "AM",
    "RSC",
    "Scaffold",
    "GA",
    "SHOT",
    "Tent",
    "T3A",
    "MEMO",
    "EM",
    "BBSE",
    "Surgical",
)
TABLE3 += ("ATP", "FedSPL")


STAGES = ("layer1", "layer2")
"""Where the released code exchanges values: after a ResNet's first two stages."""


def _training(scale: Scale, line: Line, kit: Kit, held: str) -> Training:
    data, rounds = kit.federation(scale, held), ROUNDS if scale == "paper" else SMOKE_ROUNDS
    named = line.method.lasting(rounds)
    if scale == "smoke":
        return Training(named, data, small_cnn("batch"), rounds)
    placed = named.but(after=STAGES) if named.name == "fedspl" else named
    return Training(placed, data, RESNET50 if kit is OFFICEHOME else RESNET18, rounds)


def _unmirrored(line: Line, scale: Scale, kit: Kit) -> Line:
    """MBSL must not mirror digits, which also stand in for all else at smoke scale."""
    if line.adapter.name != "mbsl" or (scale == "paper" and kit.mirrored):
        return line
    return replace(line, adapter=line.adapter.but(augment=Views(flip=False)))


Train = Callable[[Scale, Line, Kit, str], Training]
"""The training of a row, at a scale, without one of the domains."""


def cells(
    scale: Scale, kit: Kit, rows: Mapping[str, Line], prefix: str = "", train: Train = _training, **fields: object
) -> Cells:
    """Every row on every domain that is left out, and the mean over them."""
    for row, line in rows.items():
        small, left_out = _unmirrored(line.at(scale), scale, kit), kit.left_out(scale)
        columns = [prefix + d for d in left_out]
        for domain, column in zip(left_out, columns, strict=True):
            place, trained = key(method=row, domain=domain, **fields), train(scale, small, kit, domain)
            stream = UnseenDomain(batch=BATCH)
            yield Cell(row, column, trained, small.personal, small.adapter, stream, key=place)
        yield Derived(row, f"{prefix}Avg", tuple(columns), key=key(method=row, domain="Avg", **fields))


def table1(scale: Scale) -> Cells:
    """15 methods on PACS and Office-Home."""
    rows = {name: ROWS[name] for name in TABLE1}
    yield from cells(scale, PACS4, rows, "PACS ", dataset="PACS")
    yield from cells(scale, OFFICEHOME, rows, "OfficeHome ", dataset="OfficeHome")


def table2(scale: Scale) -> Cells:
    """Every combination of the three test-time losses."""
    fields = dict(zip(("loss_strong", "loss_weak", "loss_contrastive"), LOSSES, strict=True))
    for number in (0, 1, 2, 4, 3, 5, 6, 7):  # the paper's order: none, one, two, all
        chosen = tuple(loss for i, loss in enumerate(LOSSES) if number >> i & 1)
        line = replace(FMR, adapter=adapter("mbsl", losses=chosen)) if chosen else FMR
        row = " + ".join(chosen) or "none"
        on = {field: loss in chosen for field, loss in fields.items()}
        for cell in cells(scale, PACS4, {row: line}):
            place = key(**on, domain=cell.column)
            yield replace(cell, key=place)


def table3(scale: Scale) -> Cells:
    """15 methods on Digit-5. SHOT's own paper has another weight of the pseudo-labels there."""
    rows = {name: ROWS[name] for name in TABLE3}
    yield from cells(scale, DIGIT5, rows | {"SHOT": replace(FEDAVG, adapter=adapter("shot", beta=0.1))})


def table4(scale: Scale) -> Cells:
    """FedSPL's two parts, on and off."""
    yield from cells(scale, PACS4, ABLATION)


def figure3(scale: Scale) -> Cells:
    """After how many passes over the test set FedSPL has converged."""
    for epochs in (1, 2, 3, 5, 10, 25) if scale == "paper" else (1, 2, 3):
        line = replace(FMR, adapter=adapter("mbsl", epochs=epochs))
        yield from (replace(c, key=None) for c in cells(scale, PACS4, {f"{epochs} iterations": line}))


def figure4(scale: Scale) -> Cells:
    """Rates and batch sizes at test time, with Sketch left out."""
    rates, sizes = ((2e-5, 2e-4, 2e-3, 2e-2), (8, 16, 32, 64, 128)) if scale == "paper" else ((2e-4, 2e-2), (4, 8))
    for rate in rates:
        for size in sizes:
            opt = SGD(lr=rate, momentum=0.9, nesterov=True, weight_decay=1e-4)
            line = _unmirrored(replace(FMR, adapter=adapter("mbsl", opt=opt, batch=size)).at(scale), scale, PACS4)
            trained = _training(scale, line, PACS4, "Sketch")
            yield Cell(
                f"rate {rate:g}", f"batch {size}", trained, line.personal, line.adapter, UnseenDomain(batch=BATCH)
            )


SIZE_NOTE = "Images are 64 pixels wide; the paper does not say, and ImageNet's 224 are likely."
RECIPES: tuple[Recipe, ...] = (
    Recipe("fedspl/table1", "15 methods, PACS and Office-Home", table1, "fedspl/table1", (RESNET_NOTE, SIZE_NOTE)),
    Recipe("fedspl/table2", "FedSPL's three losses, on and off", table2, "fedspl/table2", (RESNET_NOTE, SIZE_NOTE)),
    Recipe("fedspl/table3", "15 methods, Digit-5", table3, "fedspl/table3", (RESNET_NOTE,)),
    Recipe("fedspl/table4", "FedSPL's two parts, on and off", table4, "fedspl/table4", (RESNET_NOTE, SIZE_NOTE)),
    Recipe(
        "fedspl/figure3",
        "Convergence within 25 iterations",
        figure3,
        None,
        ("The figure prints no numbers; the text says 2 to 3 iterations.", RESNET_NOTE, SIZE_NOTE),
    ),
    Recipe(
        "fedspl/figure4",
        "Rate and batch size at test time",
        figure4,
        None,
        ("The figure prints no numbers; the grid is ours.", RESNET_NOTE, SIZE_NOTE),
    ),
)
RECIPES = tuple(replace(recipe, pace=2.0) for recipe in RECIPES)
OMITTED = {
    "fedspl/figure1": "a drawing of the setting",
    "fedspl/figure2": "a drawing of the method",
}
