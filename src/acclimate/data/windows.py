"""Time series and sensors: windows of a table whose rows are readings, one after the other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from ..core import check, rng
from ..ops.layout import counted
from . import dates
from .cache import Parsed
from .columns import MOST, ValueColumn, carried
from .dataset import Inputs
from .fitting import in_order, refuse_split
from .group_partitions import ByClient, NaturalUsers
from .order import dated, grouped, times
from .partition import Partition
from .raw import Raw, RawWindows
from .tables import TableRows
from .world import Examples, Feature, World


@dataclass(frozen=True)
class Windows(TableRows):
    """Windows of readings [sensors, window]. A window lies in one client's series and has one label throughout.

    Every client trains on the earlier windows of each class and is tested on the later ones. Windows that overlap with
    those of another part are left out, so that no reading is in two parts. A missing reading is the last one before it.
    """

    window: int = 128
    """How many readings a window has."""
    stride: int = 0
    """How many readings further the next window begins; 0: half a window where clients are named, else a window."""

    needs: ClassVar[str] = "CSV or Parquet file of readings with a column of labels"

    @classmethod
    def of(cls, frame: Any, **settings: Any) -> Any:
        """Windows of a data frame (pandas, polars) or a dict of columns: `Windows.of(frame, label="activity")`.

        Label, client, domain and time may be in the frame's index. An index of dates, periods or durations is the time
        where none is named.
        """
        if not settings.get("time"):
            frame, settings["time"] = dated(frame)
        return super().of(frame, **settings)

    def __post_init__(self) -> None:
        check.whole(self, "window", 2)
        check.whole(self, "stride", 0)
        super().__post_init__()
        refuse_split(self)
        if self.overlapping and not (self._named_series(self.partition) and self._named_series(self.new_partition)):
            raise check.FieldError(
                f"Windows: stride={self.stride} makes windows of {self.window} that overlap, which dealing would "
                "spread over clients; set data.client and keep partition=by-client (new_partition too), or set "
                "data.stride to the window",
                "stride",
            )

    @property
    def step(self) -> int:
        """How many readings further the next window begins."""
        named = self._named_series(self.partition) and self._named_series(self.new_partition)
        return self.stride or (max(self.window // 2, 1) if named else self.window)

    @property
    def overlapping(self) -> bool:
        return self.step < self.window

    def _named_series(self, partition: Partition | None) -> bool:
        """Whether it deals whole series to clients; None deals as the other partition does."""
        return bool(self.client) and isinstance(partition, ByClient | NaturalUsers | None)

    def inputs(self) -> Inputs:
        return "windows"

    def _parsed(self, table: Mapping[str, ValueColumn], where: str) -> Parsed:
        rows = super()._parsed(self._carried(table, where), where)
        assert isinstance(rows.x, np.ndarray)
        series = rows.users if rows.users is not None else np.zeros(len(rows.y), np.int64)
        starts = self._starts(series, rows, where)
        if len(starts) * self.window * rows.x.shape[1] > MOST:
            raise ValueError(f"{where}: {len(starts):,} windows of {self.window} are too many; raise data.stride")
        order = np.concatenate([np.flatnonzero(series == s) for s in np.unique(series)])
        own = order[starts]
        x = np.stack([rows.x[order[a : a + self.window]].T for a in starts])
        users = None if rows.users is None else rows.users[own]
        about = (rows.classes, rows.domain[own], rows.domains, np.zeros(len(own), bool), users, rows.user_names)
        notes = (*rows.notes, *self._about_time(table, series))
        return Parsed(x, rows.y[own], *about, rows.features, notes)

    def _about_time(self, table: Mapping[str, ValueColumn], series: np.ndarray) -> list[str]:
        """What to say about time: columns that are it and count as sensors, and gaps that windows go on over."""
        whose = [np.flatnonzero(series == s) for s in np.unique(series)]
        roles = (self.label, self.client, self.domain, self.time)
        rising = [
            c.name
            for c in table.values()
            if c.name not in roles and c.numbers is not None and all((np.diff(c.numbers[r]) > 0).all() for r in whose)
        ]
        notes = [
            f"{n!r} only rises, as time does: name it (data.time={n}), or leave it out (data.drop)" for n in rising
        ]
        values = times(table[self.time]) if self.time else None
        steps = [] if values is None else [np.diff(values[r]) for r in whose]
        usual = [float(np.median(s)) for s in steps]
        gaps = sum(int((s > 10 * u).sum()) for s, u in zip(steps, usual, strict=True) if u > 0)
        many = counted(gaps, "time")
        notes += [f"{self.time!r} leaves more than ten steps out {many}: windows go on as if it did not"] * bool(gaps)
        if usual and max(usual) > 1.5 * min(usual) > 0:
            notes.append(f"steps of {self.time!r} are up to {max(usual) / min(usual):.1f} times as long in some series")
        return notes

    def _carried(self, table: Mapping[str, ValueColumn], where: str) -> dict[str, ValueColumn]:
        """The table without gaps: every series is filled by its own readings."""
        series, names = grouped(table[self.client], where, "client") if self.client else (None, ())
        everything = np.arange(len(table[self.label]))
        rows = [everything] if series is None else [np.flatnonzero(series == s) for s in range(len(names))]
        out = dict(table)
        for name, column in table.items():
            if name in (self.label, self.client, self.domain, self.time) or column.numbers is None:
                continue
            values = column.numbers.copy()
            for own, whose in zip(rows, names or ("",), strict=True):
                values[own] = carried(ValueColumn(name, values[own]), f"client {whose!r}" if whose else "")
            out[name] = ValueColumn(name, values, unit=column.unit)
        return out

    def _options(self) -> dict[str, Any]:
        return {**super()._options(), "step": self.step}  # where stride is 0, it depends on the partition

    def _starts(self, series: np.ndarray, rows: Parsed, where: str) -> np.ndarray:
        """Where windows begin, among readings that are ordered by series: each inside a run of one label."""
        starts, begin, names = list[int](), 0, rows.user_names or ("all",)
        for s in np.unique(series):
            own = np.flatnonzero(series == s)
            if len(own) < self.window:
                raise ValueError(
                    f"{where}: the series {names[s]!r} has {len(own)} readings, fewer than a window of {self.window}; "
                    "lower data.window, or leave the series out"
                )
            marks = rows.y[own] * len(rows.domains) + rows.domain[own]
            edges = [0, *(np.flatnonzero(np.diff(marks)) + 1).tolist(), len(own)]
            for a, b in zip(edges, edges[1:], strict=False):
                starts += [begin + i for i in range(a, b - self.window + 1, self.step)]
            begin += len(own)
        if not starts:
            raise ValueError(
                f"{where}: no {self.window} readings in a row have one label, so there is no window; lower data.window"
            )
        return np.array(starts)

    def _inputs(self, inputs: list[ValueColumn], where: str) -> tuple[np.ndarray, tuple[Feature, ...]]:
        if words := next((c for c in inputs if c.numbers is None), None):
            is_time = bool(dates.read(words, False, where).unit)
            dated = f", or name it as the column of time, data.time={words.name}" if is_time else ""
            mixed = f", or name it if it tells whose a reading is, data.client={words.name}" * (
                not (self.client or dated) and len(words.words) > 1
            )
            raise ValueError(
                f"{where}: the column {words.name!r} holds words, and readings are numbers; leave it out with "
                f"data.drop={words.name}{dated}{mixed}"
            )
        x = np.stack([c.numbers for c in inputs if c.numbers is not None], 1).astype(np.float32)
        return x, tuple(Feature(c.name) for c in inputs)

    def raw(self, world: World, client: int | None) -> Raw | None:
        own = world.scales[-1 if client is None else client] if world.scales else None
        sensors = tuple(f.column for f in world.examples.features)
        return RawWindows(sensors, self.window, own, self.client, self.time)

    def _cut(self, examples: Examples, rows: Tensor, key: rng.Key) -> tuple[Tensor, Tensor, Tensor]:
        gap = -(-self.window // self.step) - 1
        y = examples.y[rows]
        parts = [in_order(rows[y == c], self.split, gap) for c in y.unique().tolist()]
        train, val, test = (torch.cat(p) for p in zip(*parts, strict=True))
        return train, val, test

    def fitted(self, world: World) -> World:
        world = super().fitted(world)
        used = sum(len(r) for part in (world.train, world.val, world.test, world.new, (world.held,)) for r in part)
        if not sum(map(len, world.test)) and self.split[2] > 0:  # type: ignore[index]
            raise ValueError(
                f"Windows: window={self.window} leaves no window to test on, as windows must not overlap with those "
                "for training; lower data.window, or raise data.stride towards it"
            )
        left = len(world.examples.y) - used if self.overlapping else 0
        overlap = f"{left} windows that overlap with those of another part are left out" if left else ""
        said = (*world.notes, "earlier windows of a class train, later ones test", *filter(None, (overlap,)))
        return replace(world, notes=said) if self.fraction == 1 else world
