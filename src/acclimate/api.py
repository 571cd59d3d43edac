"""The Python interface: train, evaluate, run, resume, load, report."""

from __future__ import annotations

import importlib
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch

from . import catalogue, store
from .backends import Auto, Vmap
from .backends.lanes import Lane, Lanes
from .backends.mixed import MixedEngine
from .config import Experiment
from .core import fit as loop
from .core import holding, rng, tree
from .core.adapter import Adapter
from .core.backend import Engine, Joint
from .core.filter import before_each
from .core.fit import State
from .core.hetero import Hetero, PublicTask
from .core.local import Work
from .core.personal import Personalizer
from .core.shards import Shards
from .core.task import Task
from .core.worker import Worker
from .data import PublicWorld, World
from .eval import Names, Table, Test, Traces, Trained, rounds_to_test, stream_accuracy, summary
from .eval import evaluate as evaluate_grid
from .eval import evaluate_together as evaluate_joint
from .models import Mixed
from .ops import memo
from .pictures.samples import samples
from .reporting.html import render
from .shifts import Shift, Stream
from .watch import Watch


class Interrupted(Exception):
    """Ctrl-C during a run: the checkpoint is written; says how to go on."""

    def __init__(self, path: Path, round: int) -> None:
        self.path, self.round = path, round
        super().__init__(f"stopped after round {round}; go on with: acclimate resume {path}")


@dataclass(frozen=True)
class Fit:
    """A trained experiment: its world, its clients' engine, and the state that training left."""

    experiment: Experiment
    world: World
    worker: Worker
    engine: Engine
    state: State
    seconds: tuple[float, ...] = ()
    """Wall-clock seconds of the rounds of this session."""
    joint: tuple[Joint, int] | None = None
    """Where it was trained together with others, what tests all of them (`evaluate_together`), and its number there."""

    @property
    def history(self) -> tuple[dict[str, Any], ...]:
        """The learning curve: one row per evaluated round."""
        return self.state.history

    def model(self, client: int, selection: str = "last") -> tree.Tree:
        """What this client holds when it goes live, before personalisation and adaptation."""
        server, mine = self.state.server, self.state.mine
        if selection == "validation" and self.state.best is not None:
            server, mine = self.state.best.server, self.state.best.mine
        worker, own = self._half(mine, client)
        method, task = worker.method, worker.task
        return method.deploy(task, method.download(task, server), own)

    def _half(self, mine: Any, client: int) -> tuple[Worker, tree.Tree]:
        """A client's half of the method, with its own architecture where they differ, and its private state."""
        if isinstance(self.engine, MixedEngine):
            return self.engine.member(mine, client)
        return self.worker, holding.take(mine, client)

    def save(self, path: str | Path, overwrite: bool = False) -> Path:
        """Write a run folder that `load` reads back."""
        folder = store.RunFolder.create(Path(path), self.experiment, self.engine.device, overwrite)
        folder.save(self.state, self.experiment.training_hash())
        return folder.path


def device_of(name: str) -> torch.device:
    """The device that an experiment's `device` names; a clear error where it is not there."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as e:
        raise ValueError(f"device='{name}' must be auto, cpu, cuda or cuda:N") from e
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"device='{name}' but torch sees no CUDA device; use device=cpu, or see `acclimate doctor`")
    return device


def build(experiment: Experiment) -> tuple[World, Worker, Engine]:
    """The world, the client half and the engine of an experiment: everything checked, nothing trained."""
    world = experiment.data.world(experiment.seed)
    check_sizes(experiment, world)
    if check_mixed(experiment, world):
        return world, *_mixed(experiment, world)
    task = Task(experiment.model, world.shape, world.num_classes, world.mean, world.std, experiment.data.augment)
    worker = Worker(task, experiment.method, experiment.filters, experiment.seed)
    if reason := worker.refusal():
        raise ValueError(f"{type(experiment.method).__name__} with {reason}")
    engine = experiment.backend.open(worker, world.shards(world.train), device_of(experiment.device))
    return world, worker, engine


def check_mixed(experiment: Experiment, world: World | None = None) -> bool:
    """Whether clients may have different architectures; refuses what such a federation lacks, by name."""
    name = type(experiment.method).__name__
    if not isinstance(experiment.method, Hetero):
        if isinstance(experiment.model, Mixed):
            raise ValueError(
                f"model=Mixed(...) has {len(experiment.model.models)} architectures, but method={name} shares weights; "
                "use method=heterofedtta or fedmd, or one model"
            )
        return False
    if experiment.backend.conducted() is not None:
        raise ValueError(
            f"backend={catalogue.name(experiment.backend)} cannot run method={name}, whose clients share a public set; "
            "use auto, serial, vmap, processes or ray"
        )
    if world is not None and not isinstance(world, PublicWorld):
        raise ValueError(
            f"data={type(experiment.data).__name__} has no public set, which method={name} needs; "
            "use data=public data.data=NAME, or data.Public(data=...)"
        )
    return True


def _mixed(experiment: Experiment, world: World) -> tuple[Worker, Engine]:
    """The client half of the first client and the engine of a federation of one or more architectures."""
    e, method = experiment, experiment.method
    assert isinstance(method, Hetero) and isinstance(world, PublicWorld)
    mixed = e.model if isinstance(e.model, Mixed) else Mixed((e.model,))
    about = (world.shape, world.num_classes, world.mean, world.std, e.data.augment)
    tasks = [PublicTask(model, *about, public=world.examples.x[world.public]) for model in mixed.models]
    workers = [Worker(task, method.for_model(i), e.filters, e.seed) for i, task in enumerate(tasks)]
    if reason := workers[0].refusal():
        raise ValueError(f"{type(method).__name__} with {reason}")

    def deal(clients: int) -> list[int]:
        return mixed.deal(clients, workers[0].key("architecture"))

    engine = MixedEngine(workers, deal, world.shards(world.train), device_of(e.device), e.backend)
    return engine.worker, engine


def check_sizes(experiment: Experiment, world: World) -> None:
    """Refuse a client with fewer examples than a batch, naming it and what to change."""
    method = experiment.method
    works = {f.name: getattr(method, f.name) for f in fields(method) if isinstance(getattr(method, f.name), Work)}
    works["personal.work"] = getattr(experiment.personal, "work", None)
    for name, work in works.items():
        for c, rows in enumerate(world.train):
            if work is not None and len(rows) < work.batch:
                where = name if name.startswith("personal") else f"method.{name}"
                raise ValueError(
                    f"client {c} has {len(rows)} training examples, fewer than a batch ({where}.batch={work.batch}); "
                    f"lower {where}.batch, or use fewer clients (data.clients={world.clients})"
                )


def train(experiment: Experiment, watch: Watch | None = None) -> Fit:
    """Train, in memory. See `run` for checkpoints and a run folder."""
    world, worker, engine = build(experiment)
    start = loop.start(worker, engine, world.clients)
    look = _look(experiment, worker, engine, streams_of(world, experiment.streams)) if experiment.analysis else None
    return train_from(experiment, world, worker, engine, start, watch or Watch(), None, look)


def train_together(experiments: Sequence[Experiment], watch: Watch | None = None) -> list[Fit]:
    """Train experiments that differ in seed, in how data is dealt or in the domains held out. On a GPU they are
    vectorised; the numbers are those of `train`."""
    watch = watch or Watch()
    if not _can_join(experiments):
        return [train(e, watch) for e in experiments]
    parts = [build(e) for e in experiments]
    joint = _lanes(experiments, parts)
    states, seconds = _joint(experiments, joint, [None] * len(parts), watch)
    made = enumerate(zip(experiments, parts, states, strict=True))
    return [Fit(e, *part, state, seconds, (joint, i)) for i, (e, part, state) in made]


def _can_join(experiments: Sequence[Experiment]) -> bool:
    """Whether these differ in no more than their seed, partition and held-out domains, and a GPU would run them
    vectorised."""
    first = experiments[0]
    alike = all(replace(e, seed=first.seed, data=_dealt_as(e.data, first.data)) == first for e in experiments)
    vectorised = isinstance(first.backend, Auto | Vmap) and device_of(first.device).type == "cuda"
    backend = first.backend
    far = isinstance(backend, Vmap) and (backend.private == "mapped" or backend.examples == "host")
    one_model = not isinstance(first.method, Hetero)
    return len(experiments) > 1 and alike and vectorised and not far and one_model and not first.analysis


def _dealt_as(data: Any, other: Any) -> Any:
    """`data` with the partition of `other`, where both are of one kind, and with its held-out domains: which examples
    clients have may differ, how many clients there are may not."""
    own, theirs = getattr(data, "partition", None), getattr(other, "partition", None)
    if own is None or type(own) is not type(theirs):
        return data
    return replace(data, partition=theirs, held_out=other.held_out)


def _lanes(experiments: Sequence[Experiment], parts: Sequence[tuple[World, Worker, Engine]]) -> Lanes:
    """One engine for the clients of all."""
    e = experiments[0]
    lanes = [Lane(worker, w.shards(w.train), w.shards(w.val)) for w, worker, _ in parts]
    return Lanes(lanes, device_of(e.device), e.backend if isinstance(e.backend, Vmap) else Vmap())


def _joint(
    experiments: Sequence[Experiment], joint: Lanes, folders: Sequence[store.RunFolder | None], watch: Watch
) -> tuple[list[State], tuple[float, ...]]:
    """Train all from their first round to their last, in lanes of one engine; folders get their checkpoints."""
    e, states, seconds = experiments[0], joint.start(), []
    schedule = loop.Schedule(e.rounds, joint.clients, e.cohort_size, e.eval_every)
    watch.training(f"{e.label}, {len(experiments)} seeds", e.seed, 0, e.rounds)
    began = time.perf_counter()
    for states in joint.rounds(schedule, states):
        seconds.append(time.perf_counter() - began)
        watch.round(states[0])
        last = states[0].round == e.rounds
        for experiment, folder, state in zip(experiments, folders, states, strict=True):
            if folder is not None and (last or state.round % e.checkpoint_every == 0):
                folder.save(state, experiment.training_hash())
        began = time.perf_counter()
    return states, tuple(seconds)


Look = Callable[[State], dict[str, Any]]
"""What else is seen at every look at the validation data: more columns of its row."""


def train_from(
    experiment: Experiment,
    world: World,
    worker: Worker,
    engine: Engine,
    state: State,
    watch: Watch,
    folder: store.RunFolder | None,
    look: Look | None = None,
) -> Fit:
    """Train on from a state. A folder gets checkpoints, and one more where Ctrl-C ends it, as `Interrupted`."""
    schedule = loop.Schedule(experiment.rounds, world.clients, experiment.cohort_size, experiment.eval_every)
    training, seconds = experiment.training_hash(), []
    watch.training(experiment.label, experiment.seed, state.round, experiment.rounds)
    saved = state.round
    began = time.perf_counter()
    try:
        for state in _rounds(worker, engine, schedule, world.shards(world.val), state, look):
            seconds.append(time.perf_counter() - began)
            watch.round(state)
            if folder is not None and (
                state.round % experiment.checkpoint_every == 0 or state.round == experiment.rounds
            ):
                folder.save(state, training)
                saved = state.round
            began = time.perf_counter()
    except KeyboardInterrupt:
        if folder is None:
            raise
        if state.round > saved:
            folder.save(state, training)
        raise Interrupted(folder.path, state.round) from None
    return Fit(experiment, world, worker, engine, state, tuple(seconds))


def _rounds(
    worker: Worker, engine: Engine, schedule: loop.Schedule, val: Shards, state: State, look: Look | None
) -> Iterator[State]:
    """The round loop. What `look` sees goes into the history, so that it is checkpointed and resumed with the rest."""
    while state.round < schedule.rounds:
        for state in loop.rounds(worker, engine, schedule, val, state):
            if look is not None and schedule.evaluates(state.round - 1):
                row = {**state.history[-1], **look(state)}
                state = replace(state, history=(*state.history[:-1], row))
                yield state
                break  # and let the loop go on from the state with the wider row
            yield state


Built = dict[str, tuple[Shift, Stream]]


def streams_of(world: World, streams: Iterable[Shift]) -> Built:
    """Every stream by name, built from the world's fixed test examples."""
    key = rng.fold(rng.key(world.seed), "streams")
    records = tuple(streams)
    out: Built = {}
    for name, shift in zip(catalogue.distinct(records), records, strict=True):
        try:
            out[name] = (shift, shift.build(world, key))
        except (TypeError, ValueError) as e:
            raise ValueError(f"stream '{name}' cannot be made from {world.name}: {e}") from e
    return out


def _look(experiment: Experiment, worker: Worker, engine: Engine, built: Built) -> Look:
    """Every stream's accuracy, with the experiment's personaliser and its first adapter that can serve."""
    adapters, tests = _named(experiment.adapters), _tests(built)
    return lambda state: stream_accuracy(worker, engine, state, tests, adapters, experiment.personal)


def evaluate(
    fit: Fit,
    adapters: Sequence[Adapter] | None = None,
    streams: Sequence[Shift] | None = None,
    personal: Personalizer | None = None,
    watch: Watch | None = None,
) -> Table:
    """Test a trained experiment: every adapter on every stream. The defaults are the experiment's own."""
    built = streams_of(fit.world, streams or fit.experiment.streams)
    return _evaluate(fit, adapters, built, personal, watch or Watch())[0]


def evaluate_together(
    fits: Sequence[Fit],
    adapters: Sequence[Adapter] | None = None,
    streams: Sequence[Shift] | None = None,
    personal: Personalizer | None = None,
    watch: Watch | None = None,
) -> list[Table]:
    """Test what `train_together` gave: vectorised where it was trained so. The numbers are those of `evaluate`."""
    if (joint := _shared(fits)) is None:
        return [evaluate(f, adapters, streams, personal, watch) for f in fits]
    e, records = fits[0].experiment, streams or fits[0].experiment.streams
    named, personal = _named(adapters or e.adapters), personal or e.personal
    tests = [_tests(streams_of(f.world, records)) for f in fits]
    trained = [Trained(f.state, t, _names(f, personal)) for f, t in zip(fits, tests, strict=True)]
    return evaluate_joint(joint, trained, named, personal)


def _shared(fits: Sequence[Fit]) -> Joint | None:
    """What tests these together, where they are all that were trained together, in their order."""
    joints = [f.joint for f in fits if f.joint is not None]
    if len(joints) < len(fits) or [i for _, i in joints] != list(range(joints[0][0].size)):
        return None
    return joints[0][0] if len({id(j) for j, _ in joints}) == 1 else None


def _names(fit: Fit, personal: Personalizer) -> Names:
    e, up = fit.experiment, cost_card(fit)["up_bytes_per_client"]
    return Names(catalogue.name(e.method), catalogue.name(personal), e.seed, up, tuple(e.settings()))


def traces(
    source: Fit | str | Path, adapters: Sequence[Adapter] | None = None, streams: Sequence[Shift] | None = None
) -> Traces:
    """What the adapters did with every sample: `traces(...)["the"]["original"]["personal_weight"]`.

    Of a run folder made with `analysis=true`, or measured now on a trained experiment, at the last round. `client` says
    whose sample each one was; vectors are there for the samples `at` alone (see `acclimate.eval.analysis.Traces`).
    """
    if not isinstance(source, Fit):
        if adapters is not None or streams is not None:
            raise ValueError("adapters and streams can be chosen for a trained experiment, not for a run folder")
        return store.read_traces(store.RunFolder(Path(source)).traces)
    kept: Traces = {}
    _evaluate(source, adapters, streams_of(source.world, streams or source.experiment.streams), None, Watch(), kept)
    return kept


def _named(adapters: Sequence[Adapter]) -> dict[str, Adapter]:
    return dict(zip(catalogue.distinct(adapters), adapters, strict=True))


def _tests(built: Built) -> dict[str, Test]:
    return {name: Test(stream.shards, shift.protocol, stream.new) for name, (shift, stream) in built.items()}


def _evaluate(
    fit: Fit,
    adapters: Sequence[Adapter] | None,
    built: Built,
    personal: Personalizer | None,
    watch: Watch,
    traces: Traces | None = None,
) -> tuple[Table, dict[str, Any]]:
    e = fit.experiment
    named, personal = _named(adapters or e.adapters), personal or e.personal
    watch.testing(e.label, e.seed, len(named) * len(built) * rounds_to_test(fit.state))
    tests, names = _tests(built), _names(fit, personal)
    table = evaluate_grid(fit.worker, fit.engine, fit.state, tests, named, personal, names, watch.tested, traces)
    return table, {name: {**stream.card, "hash": stream_hash(stream)} for name, (_, stream) in built.items()}


def stream_hash(stream: Stream) -> str:
    """Names exactly what the clients met: pixels, labels and order."""
    s = stream.shards
    used = s.rows.unique()
    return memo.fingerprint(s.x[used], s.y[used], s.rows, s.n)[:16]


def run(
    experiment: Experiment,
    out: str | Path,
    overwrite: bool = False,
    watch: Watch | None = None,
    reuse: Path | None = None,
) -> Table:
    """Train with checkpoints, test, and write the whole run folder.

    `reuse` is a sibling run of the same training (see `Experiment.training_hash`), whose state is taken over.
    """
    folder = store.RunFolder.create(Path(out), experiment, device_of(experiment.device), overwrite)
    if reuse is not None:
        for name in (folder.state.name, "fleet.json"):  # the latter: the name by which nodes know the training
            if (reuse / name).exists():
                store.write(folder.path / name, (reuse / name).read_bytes())
    return _finish(folder, experiment, watch or Watch())


def _finish(folder: store.RunFolder, experiment: Experiment, watch: Watch) -> Table:
    """From whatever the folder holds to a finished run."""
    check_mixed(experiment)
    if (conductor := experiment.backend.conducted()) is not None:
        return _hand_over(folder, conductor, watch)
    began = time.perf_counter()
    world, worker, engine = build(experiment)
    state = loop.start(worker, engine, world.clients)
    state = folder.restore(state, experiment.training_hash()) or state
    streams = streams_of(world, experiment.streams)  # before training: what cannot be tested should not cost an hour
    built = time.perf_counter()
    look = _look(experiment, worker, engine, streams) if experiment.analysis else None
    fit = train_from(experiment, world, worker, engine, state, watch, folder, look)
    folder.log(fit.state)
    trained = time.perf_counter()
    kept: Traces | None = {} if experiment.analysis else None
    table, cards = _evaluate(fit, None, streams, None, watch, kept)
    if kept is not None:
        meanings = {name: a.traces for name, a in _named(experiment.adapters).items()}
        folder.keep_analysis(kept, summary(kept, meanings, engine.device), experiment.seed, fit.state.round)
    timings = {
        "build_seconds": built - began,
        "train_seconds": trained - built,
        "evaluate_seconds": time.perf_counter() - trained,
        "round_seconds_median": sorted(fit.seconds)[len(fit.seconds) // 2] if fit.seconds else None,
    }
    results = {
        "schema": store.RESULTS_SCHEMA,
        "label": experiment.label,
        "seed": experiment.seed,
        "command": store.command_line(),
        "table": list(table.rows),
        "refused": list(table.refused),
        "cost": cost_card(fit),
        "faults": list(fit.state.faults),
        "data": {**world.card(), "streams": cards},
        "timings": {k: v if v is None else round(v, 4) for k, v in timings.items()},
        "pictures": samples(world, {name: stream for name, (_, stream) in streams.items()}),
    }
    engine.close()
    store.write(folder.results, json.dumps(results, indent=1) + "\n")
    store.write(folder.report, render([folder.load()]))
    return table


def _hand_over(folder: store.RunFolder, conductor: str, watch: Watch) -> Table:
    """Let another process finish the run, and follow it."""
    module, _, name = conductor.partition(":")
    getattr(importlib.import_module(module), name)(folder.path, watch)
    return stored_table(folder)


def cost_card(fit: Fit) -> dict[str, Any]:
    """What left the clients, by name, shape and bytes."""
    e, method, task = fit.experiment, fit.worker.method, fit.worker.task
    down = method.download(task, fit.state.server)
    rounds, cohort = fit.state.round, e.cohort_size
    up_total = fit.state.cost["up"]
    return {
        "rounds": rounds,
        "cohort": cohort,
        "up_bytes_per_client": up_total // (rounds * cohort),
        "down_bytes_per_client": tree.nbytes(down),
        "up_bytes_total": up_total,
        "down_bytes_total": fit.state.cost["down"],
        "message": fit.state.cost["message"],
        "filters": filter_cards(fit),
    }


def filter_cards(fit: Fit) -> list[dict[str, Any]]:
    """What each filter says about the run: its epsilon, for example."""
    filters, cohort, clients = fit.worker.filters, fit.experiment.cohort_size, fit.world.clients
    met = before_each(filters, fit.worker.method.uplink)
    return [
        {"filter": catalogue.label(f), **f.card(rules, fit.state.round, cohort, clients)}
        for f, rules in zip(filters, met, strict=False)
    ]


def run_all(
    experiments: Sequence[Experiment], out: str | Path, overwrite: bool = False, watch: Watch | None = None
) -> Table:
    """One experiment into `out`, or several into folders below it, with an index and one report over all."""
    if not experiments:
        raise ValueError("there is no experiment to run")
    path = Path(out)
    if len(experiments) == 1:
        return run(experiments[0], path, overwrite, watch)
    store.refuse_overwrite(path, overwrite)
    index = store.IndexFolder(path)
    index.plan(list(experiments))
    for run_path in index.runs():
        store.RunFolder(run_path).clear()
    return _finish_index(index, list(experiments), watch or Watch())


def _finish_index(index: store.IndexFolder, experiments: list[Experiment], watch: Watch) -> Table:
    table = Table()
    trained: dict[str, Path] = {}
    watch.suite(len(experiments))
    _train_seeds(index, experiments, watch)
    for path, experiment in zip(index.runs(), experiments, strict=True):
        folder, training = store.RunFolder(path), experiment.history_hash()
        if folder.finished:
            table += stored_table(folder)
        elif folder.state.exists():
            table += _finish(folder, experiment, watch)
        else:
            table += run(experiment, path, overwrite=True, watch=watch, reuse=trained.get(training))
        trained.setdefault(training, path)
        watch.done()
    report(index.path, out=index.path / "report.html")
    return table


def _train_seeds(index: store.IndexFolder, experiments: list[Experiment], watch: Watch) -> None:
    """Where a GPU can, train the seeds of each experiment together; their folders then hold a finished training."""
    groups: dict[str, list[tuple[Path, Experiment]]] = {}
    for path, e in zip(index.runs(), experiments, strict=True):
        if not store.RunFolder(path).state.exists():
            groups.setdefault(replace(e, seed=0).history_hash(), []).append((path, e))
    for members in groups.values():
        same = [e for _, e in members]
        if _can_join(same):
            device = device_of(same[0].device)
            folders = [store.RunFolder.create(p, e, device, overwrite=True) for p, e in members]
            _joint(same, _lanes(same, [build(e) for e in same]), folders, watch)


def stored_table(folder: store.RunFolder) -> Table:
    """The table of a finished run."""
    results = folder.load()["results"]
    return Table(tuple(results["table"]), tuple(results["refused"]))


def resume(path: str | Path, watch: Watch | None = None, **given: Any) -> Table:
    """Go on with a run, or a folder of runs, from its last checkpoint; a finished one is only read."""
    watch, root = watch or Watch(), Path(path)
    if (root / "index.json").exists():
        index = store.IndexFolder(root)
        return _finish_index(index, index.experiments(**given), watch)
    folder = store.RunFolder(root)
    experiment = folder.experiment(**given)
    return stored_table(folder) if folder.finished else _finish(folder, experiment, watch)


def load(path: str | Path, **given: Any) -> Fit:
    """A trained experiment from its run folder; `given` supplies Python objects that config.json cannot hold."""
    folder = store.RunFolder(Path(path))
    experiment = folder.experiment(**given)
    world, worker, engine = build(experiment)
    like = loop.start(worker, engine, world.clients)
    state = folder.restore(like, experiment.training_hash())
    if state is None:
        raise store.RunError(f"{folder.state} does not exist: nothing was trained yet; try `acclimate resume {path}`")
    return Fit(experiment, world, worker, engine, state)


def report(*runs: str | Path, out: str | Path, more: Mapping[str, str] | None = None) -> Path:
    """One HTML page over run folders, or folders of them; `more` are further sections of it, by their heading."""
    folders = [f for r in runs for f in store.find_runs(Path(r))]
    finished = [f for f in folders if f.finished]
    if not finished:
        raise store.RunError(f"no finished run in {', '.join(map(str, runs))}; try `acclimate resume`")
    target = Path(out)
    store.write(target, render([f.load() for f in finished], more=more))
    return target


def with_seeds(experiments: Sequence[Experiment], seeds: int) -> list[Experiment]:
    """Each experiment with `seeds` consecutive seeds."""
    if seeds < 1:
        raise ValueError(f"seeds={seeds} must be at least 1")
    return [replace(e, seed=e.seed + s) for e in experiments for s in range(seeds)]
