"""The search: optuna proposes, trials train and are scored on validation data, the best becomes best.toml.

The folder holds journal.log (optuna's own record), trials/NNN (run folders), tune.json, best.toml and report.html.
A search that was stopped goes on with the same command: finished trials are not run again, the one at hand goes on
from its checkpoint, and the proposals are those of a search that was not stopped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from .. import store
from ..core import NonFinite
from ..running.watch import Watch
from ..shifts import Original, Shift
from . import outcome, trials
from .grids import Grid
from .outcome import Search, Trial
from .plan import Sampler, SearchPlan, sampling, space_of
from .space import Point, Setting
from .study import Study, optuna, trial_folder
from .trials import ahead as look_ahead


def tune(
    settings: Iterable[Setting],
    out: str | Path,
    trials: int | None = None,
    seeds: int = 1,
    sampler: Sampler = "auto",
    on: Sequence[Shift] = (Original(),),
    grid: Grid | None = None,
    watch: Watch | None = None,
    after_trial: Callable[[Search, int], None] = lambda search, total: None,
) -> Search:
    """Search over settings (commas are choices, `a..b` and `a..b:log` ranges) and write all of it below `out`.

    A trial's score is the validation accuracy at its validation-selected round: mean over clients, over the streams
    `on` that are made of the validation examples, and over `seeds`; with the experiment's personaliser and its first
    adapter. Settings win over those of `grid`. `after_trial` is called with the search and how many trials there will
    be.
    """
    space, path, watch = space_of(settings, grid), Path(out), watch or Watch()
    optuna()  # a missing package is named before anything is checked
    plan = SearchPlan(space, path, *sampling(space, trials, sampler, path), seeds, tuple(on), grid)
    plan.check()
    with store.locked(path, "search"):
        study = Study(plan)
        _write(plan, study)  # before the first trial: what is stopped in it is known as this search
        left = study.left()
        watch.suite(len(left) * seeds)
        if plan.sampler == "grid":
            points = list(plan.space.points())
            coming = {path / trial_folder(n): plan.experiments(points[n]) for n in left}
            look_ahead(coming, watch)
        for number in left:
            _run(plan, study, number, watch)
            after_trial(_write(plan, study), plan.total)
        return _write(plan, study)


def _run(plan: SearchPlan, study: Study, number: int, watch: Watch) -> None:
    """Run one trial, or go on with it, and keep its result."""
    point = study.point(number)
    if (twin := _twin(study, number, point)) is not None:
        study.add(number, {"same_as": twin.number, "failed": twin.failed, "seeds": twin.seeds}, twin.score)
    else:
        study.add(number, *_scored(plan, number, point, watch))


def _scored(plan: SearchPlan, number: int, point: Point, watch: Watch) -> tuple[dict[str, Any], float | None]:
    try:
        found = trials.run(plan.experiments(point), plan.path / trial_folder(number), plan.on, watch)
    except (NonFinite, ArithmeticError) as e:
        return {"failed": str(e), "seeds": []}, None
    return {"seeds": [asdict(s) for s in found]}, sum(s.accuracy for s in found) / len(found)


def _twin(study: Study, number: int, point: Point) -> Trial | None:
    """An earlier trial of the same point: a training is deterministic, so its score would be the same."""
    same = [t for t in study.trials() if t.number < number and t.values == point and t.same_as is None]
    return same[0] if same else None


def _write(plan: SearchPlan, study: Study) -> Search:
    return outcome.write(plan.path, plan.card, plan.space, plan.total, study.trials())
