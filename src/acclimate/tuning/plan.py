"""What a search is going to do: its space, its sampler and how many trials. Refuses what cannot be searched."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch

from .. import store
from ..experiment import ConfigError, Experiment, labels
from ..running import run as api
from ..running.check import check_clients
from ..shifts import Shift
from . import outcome, trials
from .grids import Grid
from .space import Point, Setting, Space, parse

TRIALS = 20
"""How many trials there are where nobody says a number and the space is not a small grid."""
Sampler = Literal["auto", "tpe", "random", "grid"]
SAMPLERS = ("auto", "tpe", "random", "grid")


@dataclass(frozen=True)
class SearchPlan:
    """A search that can be run."""

    space: Space
    path: Path
    """The folder of the search."""
    sampler: Sampler
    """Which of optuna's samplers proposes points; never `auto`."""
    total: int
    """How many trials there will be."""
    seeds: int
    """How many seeds every trial has."""
    on: tuple[Shift, ...]
    """The streams that are made of the validation examples and scored."""
    grid: Grid | None

    @property
    def first(self) -> Experiment:
        """The experiment at the first point, which shares its seed and device with all others."""
        return self.space.experiment(self.space.corner)

    @property
    def device(self) -> torch.device:
        """The device that all trials run on."""
        return api.device_of(self.first.device)

    def experiments(self, point: Point) -> list[Experiment]:
        """The experiments of one trial, one per seed."""
        return api.with_seeds([self.space.experiment(point)], self.seeds)

    @property
    def card(self) -> dict[str, Any]:
        """What tune.json says of a search before its first trial."""
        grid, first = self.grid, self.first
        scored = {"adapter": labels.label(first.adapters[0]), "streams": labels.distinct(self.on)}
        return {
            "schema": outcome.SCHEMA,
            "command": store.command_line(),
            "environment": store.environment(self.device),
            **self.space.card,
            "grid": None if grid is None else {"name": grid.name, "place": grid.place, "note": grid.note},
            "sampler": self.sampler,
            "strategy": "source",
            "seeds": [first.seed + s for s in range(self.seeds)],
            "score": {"data": "validation", "round": "validation-selected", **scored},
        }

    def check(self) -> None:
        """Refuse what does not fit together, and a folder that holds something else, before anything is trained."""
        if self.seeds < 1:
            raise ConfigError(f"--seeds {self.seeds} must be at least 1")
        tried = self.space.experiments()
        for experiment in tried:
            trials.check(experiment, self.on)
        outcome.refuse_another(self.path, self.card)
        if not outcome.begun(self.path):  # a search that has begun passed this then
            check_clients([replace(e, seed=e.seed + s) for e in tried for s in range(self.seeds)])
            for kind in self.space.kinds():
                trials.check_start(kind, self.on)


def space_of(settings: Iterable[Setting], grid: Grid | None) -> Space:
    """The space of the settings and, for what they do not name, of the grid."""
    own = list(settings)
    named = {s[0] if isinstance(s, tuple) else s.partition("=")[0].strip() for s in own}
    space = parse([*(p for p in (grid.settings if grid else ()) if p[0] not in named), *own])
    if not space.dims:
        raise ConfigError("there is nothing to search: give some setting several values, such as method.mu=0.01,0.1")
    return space


def sampling(space: Space, asked: int | None, sampler: Sampler, path: Path) -> tuple[Sampler, int]:
    """Which sampler, and how many trials: a space of choices that is small enough is walked through."""
    if sampler == "auto" and outcome.begun(path):
        sampler = outcome.read(path).get("sampler", "auto")  # more trials of a search are drawn alike
    if sampler not in SAMPLERS:
        raise ConfigError(f"--sampler {sampler} is not possible; allowed: {', '.join(SAMPLERS)}")
    if asked is not None and asked < 1:
        raise ConfigError(f"--trials {asked} must be at least 1")
    if sampler == "grid":
        space.points()  # refuses ranges
        return "grid", int(min(space.size, asked or space.size))
    total = asked or TRIALS
    if sampler == "auto":
        return ("grid", int(space.size)) if space.size <= total else ("tpe", total)
    return sampler, total
