"""The base record of data of numbers, from tables and sensors: filled and scaled by training rows alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias, cast

import numpy as np
import torch
from torch import Tensor

from ..core import check
from ..ops.layout import counted, some
from . import dates, remarks
from .dataset import CountedClients, Dataset
from .group_partitions import ByClient, NaturalUsers
from .partition import Partition
from .raw import Raw, RawRows
from .splits import Split
from .world import Examples, Feature, Scale, World

Missing: TypeAlias = Literal["mark", "median", "mean", "refuse"]
"""What becomes of a missing number: the training rows' median and a mark, one of these alone, or an error."""
MANY = 20
"""A column of more different words gets a note."""


@dataclass(frozen=True)
class Measured(CountedClients):
    """Data of numbers. Whatever is fitted to it (medians, scales, known words) is fitted to training rows alone."""

    partition: Partition = ByClient()
    """Clients are those that the data names; where it names none, it is dealt by Dirichlet(0.1)."""
    clients: int = 0
    """How many clients train; 0: all that the data names. Where it names none 10, or of fewer examples so many that
    each trains on 32, but at least 2."""
    scale: Literal["all", "client", "none"] = "all"
    """Numbers less their mean and divided by their deviation: over the training rows of all clients, of each client on
    its own (newcomers, who have none, by those of all), or not at all."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check.choices(self)

    def _pool(self) -> Examples | None:
        """The examples, where they can be read already."""
        return None

    def _named(self) -> int | None:
        """How many clients the data names, or can be dealt to; None where it is not there."""
        found = self._pool()
        if found is None:
            return None
        kept = [i for i, name in enumerate(found.domains) if name not in self.held_out]
        rows = torch.isin(found.domain, torch.tensor(kept)).nonzero().flatten()
        names = isinstance(self.partition, ByClient | NaturalUsers)
        named = self.partition.count(found.pool(rows)) if names else 0  # type: ignore[attr-defined]
        return named or self.sharers(len(rows))

    def fitted(self, world: World) -> World:
        if not world.examples.x.is_floating_point():
            return world
        world = _filled(world, self._missing())
        if self.scale == "none" or world.mean:
            return world
        numbers = torch.tensor([f.measured for f in world.examples.features])
        numbers = numbers if len(numbers) else torch.ones(world.shape[0], dtype=torch.bool)
        train = torch.cat(world.train)
        mean, std = moments(world.examples.x[train], numbers)
        if self.scale == "all":
            return replace(world, mean=tuple(mean.tolist()), std=tuple(std.tolist()))
        each = [moments(world.examples.x[rows], numbers) for rows in world.train]
        x, shape = world.examples.x.clone(), (-1, *[1] * (world.examples.x.dim() - 2))
        x = (x - mean.view(shape)) / std.view(shape)
        for (m, s), parts in zip(each, zip(world.train, world.val, world.test, strict=True), strict=True):
            own = torch.cat(parts)
            x[own] = (world.examples.x[own] - m.view(shape)) / s.view(shape)
        scales = tuple(Scale(tuple(m.tolist()), tuple(s.tolist())) for m, s in (*each, (mean, std)))
        return replace(world, examples=replace(world.examples, x=x), scales=scales)

    def _missing(self) -> Missing:
        """What becomes of missing numbers, where there can be some."""
        return "mark"

    def raw(self, world: World, client: int | None) -> Raw | None:
        found = super().raw(world, client)
        own = world.scales[-1 if client is None else client] if world.scales else None
        return replace(found, scale=own) if isinstance(found, RawRows) else found


@dataclass(frozen=True)
class Filled(Measured):
    """Data whose rows may lack numbers."""

    missing: Missing = check.later("mark")
    """What becomes of a missing number. `mark`: the median of the training rows, and an input that says where it was
    missing; `median` or `mean`: that of the training rows alone; `refuse`: an error, also of a live model that meets
    one. A missing word is all zeros, and refused with `refuse` alone."""

    def _missing(self) -> Missing:
        return self.missing

    def raw(self, world: World, client: int | None) -> Raw | None:
        found = super().raw(world, client)
        return replace(found, refuses=self.missing == "refuse") if isinstance(found, RawRows) else found

    def _refuse_missing(self, column: str, gone: np.ndarray, where: str) -> None:
        """An error that names a column which lacks cells, where that is asked for."""
        if self.missing == "refuse" and gone.any():
            raise ValueError(
                f"{where}: the column {column!r} has no value in {counted(int(gone.sum()), 'row')}, the first of them "
                f"row {int(gone.argmax()) + 1}, and data.missing=refuse; fill them, leave the column out, or choose "
                "data.missing=mark, median or mean"
            )


def moments(x: Tensor, numbers: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and deviation of every column or sensor of x [N, C, ...]; 0 and 1 where it is no number or never changes."""
    over = [d for d in range(x.dim()) if d != 1]
    mean, std = x.double().mean(over), x.double().std(over, correction=0)
    flat = (std <= 1e-7 * mean.abs()) | ~numbers | ~torch.isfinite(std)
    return torch.where(numbers & torch.isfinite(mean), mean, 0.0).float(), torch.where(flat, 1.0, std).float()


def _filled(world: World, missing: Missing) -> World:
    """Missing numbers get the median or mean of the training rows, and columns that are 0 in all of these go."""
    x, features, notes = world.examples.x, world.examples.features, [*world.notes, *world.examples.notes]
    if x.dim() != 2 or not features:
        return replace(world, notes=tuple(notes))
    x, train = x.clone(), torch.cat(world.train)
    fills, since = dict[int, float](), dict[int, str]()
    marks = {f.column: i for i, f in enumerate(features) if f.kind == "missing"}
    for i, f in enumerate(features):
        if f.measured:
            gone = x[:, marks[f.column]] > 0 if f.column in marks else torch.zeros(len(x), dtype=torch.bool)
            known = x[train[~gone[train]], i]
            if f.kind == "date" and len(known):
                first = known.min().floor()
                x[:, i], known = x[:, i] - first, known - first
                since[i] = dates.iso(cast(float, dates.days(f.word)) + float(first))
            found = known.double().mean() if missing == "mean" else known.median()
            fills[i] = float(found) if len(known) else 0.0
            x[gone, i] = fills[i]
    unmarked = () if missing in ("mark", "refuse") else marks.values()
    kept = [i for i, f in enumerate(features) if f.measured or bool((x[train, i] > 0).any() and i not in unmarked)]
    unknown = sorted({(f.column, f.word) for i, f in enumerate(features) if f.kind == "word" and i not in kept})
    if marks:
        notes.append(
            f"{counted(len(marks), 'column has', 'columns have')} missing values ({some(list(marks), 4)}): filled with "
            f"the {'mean' if missing == 'mean' else 'median'} of the training rows, "
            f"{'not marked' if unmarked else 'marked where training rows lack some'} (data.missing)"
        )
    if unknown:
        words = some([f"{column}={word}" for column, word in unknown], 4)
        notes.append(f"words that no training row has count as unknown, all zeros: {words}")
    filled = [f._replace(fill=fills.get(i, 0.0), word=since.get(i, f.word)) for i, f in enumerate(features)]
    notes += _about([filled[i] for i in kept], x[train][:, kept], world.examples.y[train])
    constants = [tuple(v[i] for i in kept) if v else () for v in (world.mean, world.std)]
    examples = replace(world.examples, x=x[:, kept], features=tuple(f for i, f in enumerate(filled) if i in kept))
    return replace(world, examples=examples, mean=constants[0], std=constants[1], notes=tuple(notes))


def _about(features: Sequence[Feature], rows: Tensor, y: Tensor) -> list[str]:
    """What to know about columns, of which these are the training rows: dates, many words, no change, the label."""
    notes = [f"{f.column!r} holds dates: read as days since {f.word}" for f in features if f.kind == "date"]
    notes += [f"{f.column!r} holds times: read as hours since midnight" for f in features if f.kind == "time"]
    words = Counter(f.column for f in features if f.kind == "word")
    notes += [f"{c!r} has {n} different words, an input each (data.drop)" for c, n in words.items() if n > MANY]
    same = (rows == rows[:1]).all(0).tolist()
    varied = {f.column for f, flat in zip(features, same, strict=True) if not flat}
    if flat := [c for c in dict.fromkeys(f.column for f in features) if c not in varied]:
        notes.append(f"the same in all training rows, which tells nothing: {some(flat, 4)} (data.drop)")
    if telling := [c for c in varied if _tells(c, features, rows, y)]:
        notes.append(
            f"the class of every training row follows from {some(sorted(telling), 4)}; leave it out if it is known "
            "only once the class is (data.drop)"
        )
    return notes


def _tells(column: str, features: Sequence[Feature], rows: Tensor, y: Tensor) -> bool:
    """Whether the values of a column go with one class each."""
    own = rows[:, [i for i, f in enumerate(features) if f.column == column and f.kind != "missing"]]
    known = own.any(1) if own.shape[1] > 1 else torch.ones(len(own), dtype=torch.bool)
    values = own.argmax(1) if own.shape[1] > 1 else own.flatten()
    return bool(known.any()) and remarks.tells(values[known].numpy(), y[known].numpy())


def in_order(rows: Tensor, shares: tuple[float, float, float] | Split, gap: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Rows cut in the order of time: the first share for training, the next for validation, the last for testing.

    `gap` rows are left out between two parts.
    """
    assert not isinstance(shares, Split)
    rows = rows.sort().values
    a, b = round(len(rows) * shares[0]), round(len(rows) * (shares[0] + shares[1]))
    first = b + gap if b > a else a + gap  # without validation rows there is one border, not two
    return rows[:a], rows[a + gap : b], rows[first:]


def refuse_split(record: Dataset) -> None:
    """Only shares can be cut in the order of time."""
    if isinstance(record.split, Split):
        name = type(record).__name__
        raise check.FieldError(
            f"{name}: split={record.split!r} cannot be cut in the order of time; give three shares, 0.6,0.2,0.2",
            "split",
        )
