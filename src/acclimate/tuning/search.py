"""The search: optuna proposes, trials train and are scored on validation data, the best becomes best.toml.

The folder holds journal.log (optuna's own record), trials/NNN (run folders), tune.json, best.toml and report.html.
A search that was stopped goes on with the same command: finished trials are not run again, the one at hand goes on
from its checkpoint, and the proposals are those of a search that was not stopped.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from .. import store
from ..core import NonFinite
from ..experiment import ConfigError, Experiment, catalogue
from ..running import run as api
from ..running.watch import Watch
from ..shifts import Original, Shift
from . import trials
from .grids import Grid
from .section import page
from .space import Choice, Point, Range, Setting, Space, parse, to_toml

SCHEMA = "acclimate.tune/1"
TRIALS = 20
"""Trials of a search that has no end of its own."""
RUN_FILES = ("config.json", "index.json", "results.json")
"""What a run or a folder of runs is known by."""
Sampler = Literal["auto", "tpe", "random", "grid"]
SAMPLERS = ("auto", "tpe", "random", "grid")


@dataclass(frozen=True)
class Trial:
    """One point of the space and how it did."""

    number: int
    values: Point
    score: float | None
    """Mean over seeds; None where it failed."""
    seeds: tuple[dict[str, Any], ...]
    """Per seed: `seed`, `accuracy`, `round`, `seconds`."""
    path: str
    """Its folder below that of the search."""
    failed: str | None = None
    """Why it has no score."""
    same_as: int | None = None
    """An earlier trial with the same values, whose score it has: it was not run."""


@dataclass(frozen=True)
class Search:
    """A search and its trials so far."""

    path: Path
    card: dict[str, Any]
    """tune.json."""

    @property
    def trials(self) -> list[Trial]:
        """In the order in which they were run."""
        return [Trial(**{**t, "seeds": tuple(t["seeds"])}) for t in self.card["trials"]]

    @property
    def best(self) -> Trial | None:
        """The trial with the highest score, the first of equals."""
        scored = [t for t in self.trials if t.score is not None]
        return max(scored, key=lambda t: (t.score, -t.number), default=None)


def tune(
    settings: Iterable[Setting],
    out: str | Path,
    trials: int | None = None,
    seeds: int = 1,
    sampler: Sampler = "auto",
    on: Sequence[Shift] = (Original(),),
    grid: Grid | None = None,
    watch: Watch | None = None,
    told: Callable[[Search, int], None] = lambda search, total: None,
) -> Search:
    """Search over settings (commas are choices, `a..b` and `a..b:log` ranges) and write all of it below `out`.

    A trial's score is the validation accuracy at its validation-selected round: mean over clients, over the streams
    `on` that are made of the validation examples, and over `seeds`; with the experiment's personaliser and its first
    adapter. Settings win over those of `grid`. `told` is called after every trial, with the search and how many there
    will be.
    """
    study = _Study(_space(settings, grid), Path(out), trials, seeds, sampler, tuple(on), grid)
    watch = watch or Watch()
    try:
        study.write()  # before the first trial: what is stopped in it is known as this search
        left = study.left()
        watch.suite(len(left) * seeds)
        for number in left:
            study.run(number, watch)
            told(study.write(), study.total)
        return study.write()
    finally:
        study.close()


def _space(settings: Iterable[Setting], grid: Grid | None) -> Space:
    own = list(settings)
    said = {s[0] if isinstance(s, tuple) else s.partition("=")[0].strip() for s in own}
    space = parse([*(p for p in (grid.settings if grid else ()) if p[0] not in said), *own])
    if not space.dims:
        raise ConfigError("there is nothing to search: give some setting several values, such as method.mu=0.01,0.1")
    return space


def optuna() -> Any:
    """The package, or an error that names the extra."""
    try:
        found = importlib.import_module("optuna")
    except ImportError as e:
        raise ImportError("a search needs optuna: pip install 'acclimate[tune]'") from e
    found.logging.set_verbosity(found.logging.WARNING)
    return found


class _Study:
    """optuna's study with what acclimate knows of it."""

    def __init__(
        self,
        space: Space,
        path: Path,
        trials_: int | None,
        seeds: int,
        sampler: Sampler,
        on: tuple[Shift, ...],
        grid: Grid | None,
    ) -> None:
        self.optuna = optuna()
        self.space, self.path, self.seeds, self.on, self.grid = space, path, seeds, on, grid
        self.sampler, self.total = _plan(space, trials_, self._begun() if sampler == "auto" else sampler)
        if seeds < 1:
            raise ConfigError(f"--seeds {seeds} must be at least 1")
        first = space.experiment(space.corner)
        for experiment in space.experiments():
            trials.check(experiment, on)
        self.seed, self.device = first.seed, api.device_of(first.device)
        self.scored = {"adapter": catalogue.label(first.adapters[0]), "streams": catalogue.distinct(on)}
        self._refuse_another()
        if not (self.path / "tune.json").exists():  # else it was found out then
            for kind in space.kinds():
                trials.check_adapter(kind)
        self._alone = _alone(path)
        journal = importlib.import_module("optuna.storages.journal")
        backend = journal.JournalFileBackend(str(path / "journal.log"), lock_obj=_NoLock())
        storage = self.optuna.storages.JournalStorage(backend)
        self.study = self.optuna.create_study(
            storage=storage, study_name="acclimate", direction="maximize", load_if_exists=True
        )
        self.distributions = {d.key: self._distribution(d) for d in space.dims}

    def close(self) -> None:
        """Let another search have the folder."""
        self._alone.close()

    # --- which trials ----------------------------------------------------------------------------------------------

    def left(self) -> list[int]:
        """The numbers of the trials that have no result yet."""
        done = {t.number for t in self.study.trials if t.state.is_finished()}
        return [n for n in range(self.total) if n not in done]

    def _distribution(self, dim: Choice | Range) -> Any:
        kinds = self.optuna.distributions
        if isinstance(dim, Choice):
            return kinds.CategoricalDistribution(dim.values)
        if dim.whole:
            return kinds.IntDistribution(int(dim.low), int(dim.high), log=dim.log)
        return kinds.FloatDistribution(dim.low, dim.high, log=dim.log)

    def _proposer(self, number: int) -> Any:
        """A sampler seeded by the trial's number: what it proposes depends on finished trials, not on this process."""
        samplers, seed = self.optuna.samplers, 100_003 * self.seed + number
        return samplers.RandomSampler(seed=seed) if self.sampler == "random" else samplers.TPESampler(seed=seed)

    def _asked(self, number: int) -> Any:
        """The trial of this number: the one that was interrupted, or a new proposal."""
        known = self.study.trials
        if number < len(known) and known[number].state.name == "RUNNING":
            return known[number]
        if self.sampler == "grid" and number == len(known):  # else it was queued before an interruption
            self.study.enqueue_trial(list(self.space.points())[number])
        self.study.sampler = self._proposer(number)
        return self.study.ask(self.distributions)

    # --- running them ----------------------------------------------------------------------------------------------

    def run(self, number: int, watch: Watch) -> None:
        """Run one trial, or go on with it, and tell optuna."""
        trial = self._asked(number)
        point = self.space.point(trial.params)
        if (twin := self._twin(number, point)) is not None:
            note, score = {"same_as": twin.number, "failed": twin.failed, "seeds": twin.seeds}, twin.score
        else:
            note, score = self._scored(number, point, watch)
        self.study.set_user_attr(str(number), note)
        self.study.tell(number, 0.0 if score is None else score)  # a failed one counts as the worst

    def _scored(self, number: int, point: Point, watch: Watch) -> tuple[dict[str, Any], float | None]:
        experiments = api.with_seeds([self.space.experiment(point)], self.seeds)
        try:
            found = trials.run(experiments, self.path / _folder(number), self.on, watch)
        except (NonFinite, ArithmeticError) as e:
            return {"failed": str(e), "seeds": []}, None
        return {"seeds": [asdict(s) for s in found]}, sum(s.accuracy for s in found) / len(found)

    def _twin(self, number: int, point: Point) -> Trial | None:
        """An earlier trial of the same point: a training is deterministic, so its score would be the same."""
        same = [t for t in self._trials() if t.number < number and t.values == point and t.same_as is None]
        return same[0] if same else None

    # --- what is written -------------------------------------------------------------------------------------------

    def _trials(self) -> list[Trial]:
        notes = self.study.user_attrs
        return [_trial(t, notes[str(t.number)], self.space) for t in self.study.trials if t.state.is_finished()]

    def _begun(self) -> Sampler:
        """The sampler of the search that the folder holds: more trials of it are drawn alike."""
        file = self.path / "tune.json"
        return store.read_json(file).get("sampler", "auto") if file.exists() else "auto"

    def _refuse_another(self) -> None:
        """A folder holds one search, and nothing else; more trials of it are welcome."""
        if not (self.path / "tune.json").exists():
            if held := [name for name in RUN_FILES if (self.path / name).exists()]:
                raise store.RunError(f"--out {self.path} holds a run ({held[0]}); choose another --out")
            return
        old, new = store.read_json(self.path / "tune.json"), self._about()
        if old.get("schema") != SCHEMA:
            raise store.RunError(f"{self.path / 'tune.json'}: schema={old.get('schema')!r} must be '{SCHEMA}'")
        for key in ("settings", "space", "sampler", "seeds", "score"):
            if old[key] != json.loads(json.dumps(new[key])):
                raise store.RunError(
                    f"{self.path} holds another search: {key} was {json.dumps(old[key])}, is {json.dumps(new[key])}; "
                    "choose another --out"
                )

    def _about(self) -> dict[str, Any]:
        grid = self.grid
        return {
            "schema": SCHEMA,
            "command": store.command_line(),
            "environment": store.environment(self.device),
            **self.space.card,
            "grid": None if grid is None else {"name": grid.name, "place": grid.place, "note": grid.note},
            "sampler": self.sampler,
            "seeds": [self.seed + s for s in range(self.seeds)],
            "score": {"data": "validation", "round": "validation-selected", **self.scored},
        }

    def write(self) -> Search:
        """tune.json, best.toml and report.html of what there is."""
        done = self._trials()
        search = Search(self.path, {**self._about(), "planned": self.total, "trials": [asdict(t) for t in done]})
        best = search.best
        chosen = None if best is None else {"number": best.number, "values": best.values, "score": best.score}
        search.card["chosen"] = chosen
        search.card["seconds"] = round(sum(s["seconds"] for t in done if t.same_as is None for s in t.seeds), 2)
        store.write(self.path / "tune.json", json.dumps(search.card, indent=1) + "\n")
        if best is not None:
            chosen_settings = _whole(self.space.settings(best.values))
            store.write(self.path / "best.toml", to_toml(chosen_settings, _head(best, len(done))))
        store.write(self.path / "report.html", page(search.card))
        return search


class _NoLock:
    """In the place of optuna's lock, which outlives a process that is killed and would stop the search for good."""

    def acquire(self) -> bool:
        return True

    def release(self) -> None:
        """Nothing was held."""


def _alone(path: Path) -> Any:
    """The one search of a folder, which is made: a lock that ends with the process, or as soon as it is closed."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        handle = (path / "lock").open("w")
    except OSError as e:
        raise store.RunError(f"--out {path} is no folder to write to ({e.strerror}); choose another --out") from e
    try:
        import fcntl
    except ImportError:  # Windows: nobody watches there
        return handle
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        handle.close()
        raise store.RunError(f"another search is at work in {path}; wait for it, or choose another --out") from None
    return handle


def _whole(settings: list[tuple[str, Any]]) -> list[tuple[str, Any]]:
    """With the method and personaliser that were searched: `acclimate run` without a method compares several."""
    said, default = {key for key, _ in settings}, Experiment()
    if "method" in said:
        return settings
    unsaid = {"method": default.method, "personal": default.personal}
    return [*((key, catalogue.name(record)) for key, record in unsaid.items() if key not in said), *settings]


def _head(best: Trial, tried: int) -> str:
    return f"the best of {tried} trials: {100 * (best.score or 0):.2f} % on validation data (trial {best.number})"


def _folder(number: int) -> str:
    return f"trials/{number:03d}"


def _trial(frozen: Any, note: dict[str, Any], space: Space) -> Trial:
    """optuna's record of a finished trial in our words."""
    failed, twin = note.get("failed"), note.get("same_as")
    return Trial(
        number=frozen.number,
        values=space.point(frozen.params),
        score=None if failed or frozen.value is None else round(frozen.value, 6),
        seeds=tuple(note.get("seeds", ())),
        path=_folder(frozen.number if twin is None else twin),
        failed=failed,
        same_as=twin,
    )


def _plan(space: Space, asked: int | None, sampler: Sampler) -> tuple[Sampler, int]:
    """Which sampler, and how many trials: a space of choices that is small enough is walked through."""
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
