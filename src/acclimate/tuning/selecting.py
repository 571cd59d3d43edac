"""Settings of adapters, chosen by a strategy that needs no test labels: one training per seed, all candidates on it.

The search of `tune` judges on validation data; this looks at the unlabelled test streams as a client would. Their
labels are read for accuracies, which tell the gap to the oracle, and by the strategy `oracle`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .. import store
from ..core import Adapter
from ..eval import Selection
from ..experiment import ConfigError, Experiment, labels
from ..experiment.settings import expand
from ..ops.selection import STRATEGIES, Strategy
from ..running import run as api
from ..running.select import check, select
from ..running.watch import Watch
from .outcome import RUN_FILES, with_method
from .space import Point, Range, Setting, Space, parse, to_toml

SCHEMA = "acclimate.select/1"


@dataclass(frozen=True)
class Candidate:
    """An adapter, and the settings that name it alone."""

    adapter: Adapter
    settings: tuple[tuple[str, Any], ...]


@dataclass(frozen=True)
class Selected:
    """What a strategy chose, and on what grounds."""

    path: Path
    """The folder of select.json and best.toml."""
    strategy: str
    name: str
    """The candidate with the highest score, mean over streams and seeds."""
    settings: tuple[tuple[str, Any], ...]
    """The settings that name it."""
    selection: Selection
    """Choices and gaps stream by stream, of all seeds."""


def choose(
    settings: Iterable[Setting], out: str | Path, strategies: Sequence[str], seeds: int = 1, watch: Watch | None = None
) -> Selected:
    """Train once per seed, choose between all adapters that the settings name, and write select.json and best.toml.

    The first of the strategies chooses; the others stand beside it in the table. `adapters=none,tent` with
    `adapters.tent.opt.lr=0.001,0.01` are three candidates. The streams are those of the experiment.
    """
    if wrong := [s for s in strategies or [""] if s not in STRATEGIES]:
        raise ConfigError(f"--select {wrong[0]} is not possible; allowed: {', '.join(STRATEGIES)}")
    asked = [s for s in STRATEGIES if s in strategies]
    path, space, watch = Path(out), _checked(parse(settings)), watch or Watch()
    _refuse_used(path)
    found = _candidates(space)
    if len(found) < 2:
        raise ConfigError(f"--select: {next(iter(found))} is the only candidate; name adapters, or values of a setting")
    experiments = api.with_seeds([space.experiment(space.corner)], seeds)
    for experiment in experiments:
        if experiment.backend.conducted() is not None:
            raise ConfigError(f"backend={labels.name(experiment.backend)} cannot choose: its clients hold the data")
    _check_start(experiments[0], asked)
    watch.suite(len(experiments))
    selection = Selection()
    for experiment in experiments:
        selection += _selected(experiment, [c.adapter for c in found.values()], asked, watch)
    name = selection.overall(strategies[0])
    choice = Selected(path, strategies[0], name, found[name].settings, selection)
    _write(choice, space, experiments, list(found))
    return choice


def _checked(space: Space) -> Space:
    """Refuse a space that would need several trainings, or has no end."""
    for dim in space.dims:
        if not dim.key.startswith("adapters."):
            raise ConfigError(
                f"{dim.key}: --select chooses between settings of adapters, such as adapters.tent.opt.lr=0.001,0.01; "
                "search over those of training without it"
            )
        if isinstance(dim, Range):
            raise ConfigError(f"{dim.key} is a range, which has no end; list its values with commas for --select")
    return space


def _check_start(experiment: Experiment, strategies: list[Strategy]) -> None:
    """Refuse streams that cannot be made, and strategies that they cannot serve, before anything is trained."""
    world = experiment.data.world(experiment.seed)
    check(world, api.streams_of(world, experiment.streams), strategies)


def _refuse_used(path: Path) -> None:
    used = [name for name in (*RUN_FILES, "tune.json", "select.json") if (path / name).exists()]
    if used:
        raise store.RunError(f"--out {path} holds {used[0]} already; choose another --out")


def _candidates(space: Space) -> dict[str, Candidate]:
    """Every adapter of every point, once, by the name that tables have for it."""
    found: list[Candidate] = []
    for point in space.points():
        for i, adapter in enumerate(space.experiment(point).adapters):
            if adapter not in [c.adapter for c in found]:  # not a set: a record of a user need not be hashable
                found.append(Candidate(adapter, _naming(space, point, i)))
    return dict(zip(labels.distinct([c.adapter for c in found]), found, strict=True))


def _naming(space: Space, point: Point, place: int) -> tuple[tuple[str, Any], ...]:
    """The settings that make the adapter in this place and no other; a user's own is named as it was typed.

    Fields are set by the name of the entry as it was before: `tent` with params=all is called `tent-all` after it.
    """
    given = dict(space.settings(point))
    bare = expand([(k, v) for k, v in given.items() if not k.startswith("adapters.")])[0].adapters
    word, typed = labels.name(bare[place]), given.get("adapters", ())
    names = typed if isinstance(typed, list) else [name for name in str(typed).split(",") if name] if typed else []
    own = [(k, v) for k, v in given.items() if k.startswith(f"adapters.{word}.")]
    return ("adapters", names[place] if names else word), *own


def _selected(experiment: Experiment, adapters: list[Adapter], strategies: list[Strategy], watch: Watch) -> Selection:
    fit = api.train(experiment, watch)
    try:
        return select(fit, adapters, strategies=strategies)
    finally:
        fit.engine.close()
        watch.done()


def _write(choice: Selected, space: Space, experiments: list[Experiment], names: list[str]) -> None:
    card = {
        "schema": SCHEMA,
        "command": store.command_line(),
        "environment": store.environment(api.device_of(experiments[0].device)),
        **space.card,
        "strategy": choice.strategy,
        "seeds": [e.seed for e in experiments],
        "candidates": names,
        "chosen": {"adapter": choice.name, "settings": [list(s) for s in choice.settings]},
        "accuracy": choice.selection.accuracy(choice.strategy),
        "gap": choice.selection.gap(choice.strategy),
        "selection": choice.selection.to_dict(),
    }
    rest = [(k, v) for k, v in space.fixed if k != "adapters" and not k.startswith("adapters.")]
    head = f"{choice.name}: chosen by {choice.strategy} of {len(names)} candidates"
    store.write(choice.path / "select.json", json.dumps(card, indent=1) + "\n")
    store.write(choice.path / "best.toml", to_toml(with_method([*rest, *choice.settings]), head))
