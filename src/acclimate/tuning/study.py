"""optuna's study of a search: which point is tried next, and what came out of those before it."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from .journal import NoLock, mend
from .outcome import Trial
from .plan import SearchPlan
from .space import Choice, Point, Range, Space


def optuna() -> Any:
    """The package, or an error that names the extra."""
    try:
        found = importlib.import_module("optuna")
    except ImportError as e:
        raise ImportError("a search needs optuna: pip install 'acclimate[tune]'") from e
    found.logging.set_verbosity(found.logging.WARNING)
    return found


def trial_folder(number: int) -> Path:
    """A trial's folder below that of the search."""
    return Path("trials") / f"{number:03d}"


class Study:
    """The study that the journal in a search's folder holds; trials are known by their numbers, from 0."""

    def __init__(self, plan: SearchPlan) -> None:
        self.plan, self.optuna = plan, optuna()
        self.seed = plan.first.seed
        journal, file = importlib.import_module("optuna.storages.journal"), plan.path / "journal.log"
        mend(file, len(plan.space.dims))
        backend = journal.JournalFileBackend(str(file), lock_obj=NoLock())
        storage = self.optuna.storages.JournalStorage(backend)
        self.study = self.optuna.create_study(
            storage=storage, study_name="acclimate", direction="maximize", load_if_exists=True
        )
        self.distributions = {d.key: self._distribution(d) for d in plan.space.dims}

    def left(self) -> list[int]:
        """The numbers of the trials that have no result yet."""
        done = {t.number for t in self.study.trials if t.state.is_finished()}
        return [n for n in range(self.plan.total) if n not in done]

    def point(self, number: int) -> Point:
        """The point of a trial: that of one that was interrupted, or a new proposal."""
        return self.plan.space.point(self._asked(number).params)

    def add(self, number: int, note: dict[str, Any], score: float | None) -> None:
        """Keep the result of a trial; `note` has what optuna has no place for."""
        self.study.set_user_attr(str(number), note)
        self.study.tell(number, 0.0 if score is None else score)  # a failed one counts as the worst

    def trials(self) -> list[Trial]:
        """The trials that are finished."""
        notes = self.study.user_attrs
        return [_trial(t, notes[str(t.number)], self.plan.space) for t in self.study.trials if t.state.is_finished()]

    def _distribution(self, dim: Choice | Range) -> Any:
        kinds = self.optuna.distributions
        if isinstance(dim, Choice):
            return kinds.CategoricalDistribution(dim.values)
        if dim.whole:
            return kinds.IntDistribution(int(dim.low), int(dim.high), log=dim.log)
        return kinds.FloatDistribution(dim.low, dim.high, log=dim.log)

    def _proposer(self, number: int) -> Any:
        """A sampler seeded by the trial's number: what it proposes depends on finished trials, not on this process."""
        samplers, seed = self.optuna.samplers, (100_003 * self.seed + number) % 2**32  # numpy's seeds end there
        return samplers.RandomSampler(seed=seed) if self.plan.sampler == "random" else samplers.TPESampler(seed=seed)

    def _asked(self, number: int) -> Any:
        known = self.study.trials
        if number < len(known) and known[number].state.name == "RUNNING":
            return known[number]
        if self.plan.sampler == "grid" and number == len(known):  # else it was queued before an interruption
            self.study.enqueue_trial(list(self.plan.space.points())[number])
        self.study.sampler = self._proposer(number)
        return self.study.ask(self.distributions)


def _trial(frozen: Any, note: dict[str, Any], space: Space) -> Trial:
    """optuna's record of a finished trial as ours."""
    failed, twin = note.get("failed"), note.get("same_as")
    return Trial(
        number=frozen.number,
        values=space.point(frozen.params),
        score=None if failed or frozen.value is None else round(frozen.value, 6),
        seeds=tuple(note.get("seeds", ())),
        path=trial_folder(frozen.number if twin is None else twin).as_posix(),
        failed=failed,
        same_as=twin,
    )
