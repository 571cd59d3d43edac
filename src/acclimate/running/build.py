"""From an experiment to what runs it: the world, the client half and the engine; and what training makes of them."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from torch import nn

from .. import store
from ..adapters import Guarded
from ..backends.mixed import MixedEngine
from ..core import Adapter, Best, Engine, State, Task, Work, Worker, token_count, tree
from ..core.filter import before_each
from ..core.nn.pixels import are_pixels
from ..core.task import architectures
from ..data import ByClient, Dataset, NaturalUsers, PublicWorld, World
from ..experiment import Experiment, labels
from ..live import Live
from ..live.model import WINDOW
from ..live.module import module_of
from ..models import Mixed
from ..ops.devices import device_of
from ..ops.layout import counted
from .deploy import check_client, deploy, live_model


class Interrupted(Exception):
    """Ctrl-C during a run: the checkpoint is written; says how to go on. `round` is None where it is not known."""

    def __init__(self, path: Path, round: int | None) -> None:
        self.path, self.round = path, round
        at = "" if round is None else f" after round {round}"
        super().__init__(f"stopped{at}; go on with: acclimate resume {path}")


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
    lane: tuple[Engine, int] | None = None
    """Where it was trained together with others, the engine of all of them, and the number of its lane there."""

    def __repr__(self) -> str:
        seen = f", validation {self.history[-1]['val_accuracy']:.1%}" if self._validated else ""
        done = f"{self.state.round} of {counted(self.experiment.rounds, 'round')}"
        return f"Fit({self.experiment.label}, seed {self.experiment.seed}, {done}{seen}; {self.world!r})"

    @property
    def _validated(self) -> bool:
        return bool(self.history) and self.history[-1].get("val_accuracy") is not None

    @property
    def history(self) -> tuple[dict[str, Any], ...]:
        """The learning curve: one row per evaluated round."""
        return self.state.history

    def model(self, client: int, selection: str = "last") -> tree.Tree:
        """What this client holds when it goes live, before personalisation and adaptation."""
        check_client(self.world, client)
        server, mine = self.state.server, self.state.mine
        if selection == "validation" and self.state.best is not None:
            server, mine = self.state.best.server, self.state.best.mine
        worker = self.engine.worker_of(client)
        method, task = worker.method, worker.task
        return method.deploy(task, method.download(task, server), mine.take(client))

    def module(self, client: int, selection: str = "last", personal: bool = True) -> nn.Module:
        """This client's live model as a plain `nn.Module` in eval mode, on the CPU: uint8 pixels, or floats in 0..1,
        to logits. `personal=False` leaves out what happens on the client's labelled data before it goes live."""
        model = live_model(self, client, selection) if personal else self.model(client, selection)
        return module_of(self.engine.worker_of(client), model)

    def deploy(
        self,
        client: int,
        adapter: Adapter | None = None,
        guard: bool | Guarded = True,
        selection: str = "last",
        window: int = WINDOW,
    ) -> Live:
        """This client's live model: it answers, and keeps adapting while a guard watches (see `running.deploy`)."""
        return deploy(self, client, adapter, guard, selection, window)

    def selected(self, selection: str = "last") -> State | Best:
        """Round, server and private state: the last, or those of the best round by validation accuracy."""
        if selection not in ("last", "validation"):
            raise ValueError(f"selection={selection!r} must be 'last' or 'validation'")
        return self.state.best if selection == "validation" and self.state.best is not None else self.state

    def save(self, path: str | Path, overwrite: bool = False) -> Path:
        """Write a run folder that `load` reads back."""
        store.refuse_overwrite(Path(path), overwrite)
        with store.locked(Path(path)):
            folder = store.RunFolder.create(Path(path), self.experiment, self.engine.device, overwrite)
            folder.trains(self.world.content, self.engine.tasks)
            if self.worker.secret is not None:
                store.secrets.keep(folder.path, self.worker.secret)
            folder.save(self.state, self.experiment.identity())
        return folder.path


def build(experiment: Experiment, secret: bytes | None = None, old: bool = False) -> tuple[World, Worker, Engine]:
    """The world, the client half and the engine of an experiment: everything checked, nothing trained.

    A filter that wants a key gets `secret`, or a new one. A run that began without (`old`) goes on without.
    """
    if not isinstance(experiment, Experiment):
        said = (
            f"{experiment.__name__}, a class"
            if isinstance(experiment, type)
            else f"of type {type(experiment).__name__}"
        )
        raise TypeError(f"experiment is {said}; it must be a record such as Experiment(rounds=5)")
    if secret is None and not old and any(f.wants_secret for f in experiment.filters):
        secret = store.secrets.new()
    world = experiment.data.world(experiment.seed)
    check_sizes(experiment, world)
    if check_mixed(experiment, world):
        return world, *_mixed(experiment, world, secret)
    worker = worker_of(experiment, world, secret)
    engine = experiment.backend.open(worker, world.shards(world.train), device_of(experiment.device))
    return world, worker, engine


def worker_of(experiment: Experiment, world: World, secret: bytes | None = None) -> Worker:
    """The client half, where all clients have one architecture."""
    about = (world.shape, world.num_classes, world.mean, world.std, experiment.data.augment)
    x = world.examples.x
    task = Task(experiment.model, *about, tokens=token_count(x), pixels=are_pixels(x))
    worker = Worker(task, experiment.method, experiment.filters, experiment.seed, secret)
    if reason := worker.refusal():
        raise ValueError(f"{type(experiment.method).__name__} with {reason}")
    return worker


def check_mixed(experiment: Experiment, world: World | None = None) -> bool:
    """Whether clients may have different architectures; refuses what such a federation lacks, by name."""
    name = type(experiment.method).__name__
    if not experiment.method.several_models:
        if (models := architectures(experiment.model)) is not None:
            raise ValueError(
                f"model=Mixed(...) has {len(models)} architectures, but method={name} shares weights; "
                "use method=heterofedtta or fedmd, or one model"
            )
        return False
    if experiment.backend.conducted() is not None:
        raise ValueError(
            f"backend={labels.name(experiment.backend)} cannot run method={name}, whose clients share a public set; "
            "use auto, serial, vmap, processes or ray"
        )
    if world is not None and not isinstance(world, PublicWorld):
        raise ValueError(
            f"data={type(experiment.data).__name__} has no public set, which method={name} needs; "
            "use data=public data.data=NAME, or data.Public(data=...)"
        )
    return True


def _mixed(experiment: Experiment, world: World, secret: bytes | None) -> tuple[Worker, Engine]:
    """The client half of the first client and the engine of a federation of one or more architectures."""
    e, method = experiment, experiment.method
    assert isinstance(world, PublicWorld)
    mixed = Mixed.of(e.model)
    about = (world.shape, world.num_classes, world.mean, world.std, e.data.augment)
    x = world.examples.x
    given: dict[str, Any] = {"public": x[world.public], "tokens": token_count(x), "pixels": are_pixels(x)}
    tasks = [Task(model, *about, **given) for model in mixed.models]
    workers = [Worker(task, method.for_model(i), e.filters, e.seed, secret) for i, task in enumerate(tasks)]
    if reason := workers[0].refusal():
        raise ValueError(f"{type(method).__name__} with {reason}")

    def deal(clients: int) -> list[int]:
        return mixed.deal(clients, workers[0].key("architecture"))

    engine = MixedEngine(workers, deal, world.shards(world.train), device_of(e.device), e.backend)
    return engine.worker, engine


def least_examples(experiment: Experiment) -> int:
    """The fewest training examples that a client must have."""
    held = (*vars(experiment.method).values(), getattr(experiment.personal, "work", None))
    return max((work.batch for work in held if isinstance(work, Work)), default=1)


def check_sizes(experiment: Experiment, world: World) -> None:
    """Refuse clients with fewer examples than a batch, naming one of them, and all batches that are to change."""
    held = {f"method.{f.name}": getattr(experiment.method, f.name) for f in fields(experiment.method)}
    held["personal.work"] = getattr(experiment.personal, "work", None)
    sizes = [len(rows) for rows in world.train]
    large = {name: w.batch for name, w in held.items() if isinstance(w, Work) and w.batch > min(sizes)}
    if not large:
        return
    where, batch = next(iter(large.items()))
    c = next(c for c, size in enumerate(sizes) if size < batch)
    smaller = ", ".join(f"{name}.batch={min(sizes)}" for name in large)
    smaller = f"set {smaller}, or " if min(sizes) > 1 else ""  # batch norm cannot do with one
    name = world.client_names[c] if world.client_names else str(c)
    who = f"client {c}" if name == str(c) else f"client {c} ({name})"
    has = counted(sizes[c], "training example")
    remedy = _larger_clients(experiment.data, world, sizes, max(large.values()))
    raise ValueError(f"{who} has {has}, fewer than a batch ({where}.batch={batch}); {smaller}{remedy}")


def _larger_clients(data: Dataset, world: World, sizes: list[int], batch: int) -> str:
    """What gives every client a batch."""
    if isinstance(data.partition, ByClient | NaturalUsers) and world.examples.users is not None:
        parts = zip(world.train, world.val, world.test, strict=True)
        able = [sum(map(len, p)) for p, size in zip(parts, sizes, strict=True) if size >= batch]
        if not able:
            return "name clients that have more examples (data.client)"
        return f"leave out clients of few examples (data.partition=natural-users, data.partition.floor={min(able)})"
    enough = sum(sizes) // batch
    few = f", of equal size at most {enough}" if 1 < enough < world.clients else ""
    many = world.clients > 1
    remedy = f"use fewer than {world.clients} clients (data.clients){few}" if many else "give more examples"
    return remedy + (f", or more of the data than data.fraction={data.fraction:g}" if data.fraction < 1 else "")


def cost_card(fit: Fit) -> dict[str, Any]:
    """What left the clients, by name, shape and bytes."""
    e, method, task = fit.experiment, fit.worker.method, fit.worker.task
    down = method.download(task, fit.state.server)
    return {
        "rounds": fit.state.round,
        "cohort": e.cohort_size,
        "up_bytes_per_client": sum(part["bytes"] for part in fit.state.cost["message"]),
        "down_bytes_per_client": tree.nbytes(down),
        "up_bytes_total": fit.state.cost["up"],
        "down_bytes_total": fit.state.cost["down"],
        "message": fit.state.cost["message"],
        "filters": filter_cards(fit),
    }


def filter_cards(fit: Fit) -> list[dict[str, Any]]:
    """What each filter says about the run: its epsilon, for example."""
    worker, clients = fit.worker, fit.world.clients
    filters = worker.filters if worker.secret is not None else [f.simulated() for f in worker.filters]
    cohort = fit.experiment.cohort_size if worker.cohort_key is not None else clients  # only a secret sample counts
    met = before_each(filters, worker.method.uplink)
    return [
        {"filter": labels.label(f), **f.card(rules, fit.state.round, cohort, clients)}
        for f, rules in zip(filters, met, strict=False)
    ]
