"""Why Fashion-MNIST differs from FedTTA's Table 1: a row per hypothesis, with one thing otherwise than in the table.

Ye et al., 2023. The rule of validation is in the columns: newcomers at the round of best validation accuracy (as the
paper says), at the last round, and at the round where they themselves are best (as the released code prints). How much
seeds differ is seen with `--seeds 3`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from ..core import Constant
from ..data import Pathological
from ..models import CNN
from ..shifts import NewClients
from .fedtta import COLUMNS, SMOKE_RATES, Column, lines, rates
from .fedtta_tables import BOUNDED, WHOLE
from .record import Cell, Line, Named, Recipe, Scale

DATASET = "Fashion-MNIST"
ROWS = ("FedAvg", "TENT", "FedTTA", "FedTTA-Prox", "FedTTA++")
READS = {"validation": "validation", "test": "best", "last round": "accuracy", "highest": "highest"}
"""Columns of a method, and what they read."""
Changes = Mapping[str, Any]


@dataclass(frozen=True)
class Hypothesis:
    """What a row has otherwise than Table 1: fields of these records, where they have them."""

    column: Changes = field(default_factory=dict)
    """Model and rounds."""
    data: Changes = field(default_factory=dict)
    opts: Changes = field(default_factory=dict)
    """All optimisers of training."""
    net_opt: Changes = field(default_factory=dict)
    """The adaptation net's alone."""
    work: Changes = field(default_factory=dict)
    method: Changes = field(default_factory=dict)
    adapter: Changes = field(default_factory=dict)

    def world(self, column: Column) -> Column:
        """The column of Table 1 with what this row has otherwise."""
        return replace(column, data=replace(column.data, **self.data), **self.column)

    def line(self, line: Line) -> Line:
        """A row of Table 1 with what this row has otherwise."""
        record = line.method.record
        own = {"opt": self.opts, "net_opt": {**self.opts, **self.net_opt}, "work": self.work}
        inner = {n: replace(getattr(record, n), **change) for n, change in own.items() if hasattr(record, n)}
        return replace(
            line, method=_but(line.method, **inner, **self.method), adapter=_but(line.adapter, **self.adapter)
        )


def _but(named: Named, **changes: Any) -> Named:
    """With those fields changed that the record has."""
    known = {f.name for f in fields(named.record)}
    return named.but(**{n: v for n, v in changes.items() if n in known})


CONSTANT: dict[str, Any] = {"opts": {"schedule": Constant()}, "method": {"inner_schedule": Constant()}}
UNPADDED: dict[str, Any] = {"column": {"model": CNN(hidden=512)}}
HYPOTHESES: dict[str, Hypothesis] = {
    "as in Table 1": Hypothesis(),
    "no padding, constant rates": Hypothesis(**UNPADDED, **CONSTANT),
    "constant rates": Hypothesis(**CONSTANT),
    "no padding": Hypothesis(**UNPADDED),
    "weight decay": Hypothesis(opts={"weight_decay": 1e-4}),
    "momentum of the net": Hypothesis(net_opt={"momentum": 0.9}),
    "weight decay and momentum": Hypothesis(opts={"weight_decay": 1e-4}, net_opt={"momentum": 0.9}),
    "training bounded by 1": Hypothesis(work={"clip": 1.0}),
    "free steps at test time": Hypothesis(adapter={"clip": None}),
    "twice the rounds": Hypothesis(column={"rounds": 2 * COLUMNS[DATASET].rounds}),
    "10 iterations of batch 25": Hypothesis(work={"iterations": 10, "batch": 25}),
    "clients count by examples": Hypothesis(method={"weights": "samples"}),
    "norm over the set": Hypothesis(adapter={"norm": "set"}),
    "released divergence": Hypothesis(method={"variant": "released"}),
    "shards in order": Hypothesis(data={"partition": Pathological(shards="in-order")}),
    "pixels in 0..1": Hypothesis(data={"mean": (), "std": ()}),
}
"""By row. Weight decay, the net's momentum, the released work and divergence are the released code's defaults."""


def fashion(scale: Scale) -> Iterator[Cell]:
    """FedAvg, TENT and the three FedTTAs under every hypothesis."""
    table, stream = lines(rates(DATASET) if scale == "paper" else SMOKE_RATES), NewClients(batch=WHOLE)
    for row, otherwise in HYPOTHESES.items():
        world = otherwise.world(COLUMNS[DATASET]).at(scale)
        for name in ROWS if scale == "paper" or otherwise == Hypothesis() else ROWS[-1:]:
            line = otherwise.line(table[name]).at(scale)
            training = world.training(line.method, scale)
            for column, measure in READS.items():
                yield Cell(row, f"{name} {column}", training, line.personal, line.adapter, stream, measure)


RECIPES: tuple[Recipe, ...] = (
    Recipe(
        "fedtta/fashion",
        "Why Fashion-MNIST differs: a row per hypothesis",
        fashion,
        None,
        (
            "Numbers of ours alone: the first row is that of Table 1, and every other row has one thing otherwise.",
            "`highest` is the best round of newcomers themselves, as the released code prints; it is no fair result.",
            BOUNDED,
        ),
        pace=0.35,
    ),
)
