"""The Flower ServerApp: acclimate's own round loop, in the process that holds the Grid.

It works on a run folder, exactly as `acclimate run` does, and writes its progress into progress.jsonl, so that the
process that started it can follow. A file `stop` in the folder ends it after the current round, with a checkpoint.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shlex
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from safetensors import safe_open

from .. import store
from ..backends.flower.engine import Flower
from ..backends.flower.protocol import LINK
from ..core import State, Tree
from ..experiment import Experiment, dumps
from ..experiment.settings import expand
from ..experiment.trusted import foreign
from ..running import run as api
from ..running.build import least_examples
from ..running.watch import Watch
from . import admin, audit, registry
from .deploy import deploy
from .link import GridLink
from .local_processes import started
from .remote import gather, stream_names
from .remote_cards import CardRules

PROGRESS, STOP, IDENTITY = "progress.jsonl", "stop", "fleet.json"
ASKED = ("task", "selection", "adapter")
"""The part of the configuration that says what is to be done with the run; the last two are of a deployment."""
app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Do what the run configuration says, and report how it ended."""
    conduct(grid, context.run_config)


def conduct(grid: Grid, config: Mapping[str, Any]) -> None:
    """Do what `config` says on the nodes of `grid`. Where another server is at it already, nothing is reported: who
    asked for this one follows the other."""
    if key := os.environ.get(admin.VARIABLE):
        admin.admit(config, Path(key), Path(key).with_name(audit.AUDIT))
    folder = Path(str(config["run-folder"]))
    with store.locked(folder):
        _conduct(grid, config, folder)


def _conduct(grid: Grid, config: Mapping[str, Any], folder: Path) -> None:
    report = reporter(folder / PROGRESS)
    asked = {key: str(config[key]) for key in ASKED if key == "task" or config["task"] == "deploy"}
    report("started", pid=os.getpid(), started=started(os.getpid()), asked=asked)
    try:
        run_folder = prepared(folder, str(config["settings"]))
        experiment = run_folder.experiment()
        link = GridLink(grid, dumps(experiment), identity(folder), bound(config))
        if link.registry is None:
            link.log("no registry of keys is named: a node is believed which clients it hosts; see fleet init")
        with linked(link):
            given = data_of_sites(link, experiment) if config["data"] == "sites" else {}
            if config["task"] == "deploy":
                chosen = str(config["selection"]), str(config["adapter"])
                report("deployed", **deploy(run_folder, *chosen, given, lambda: report("tested")))
            else:
                api.resume(folder, ProgressWatch(folder, link, report), **given)
        report("finished", sent=link.sent, received=link.received, exchanges=link.exchanges)
    except api.Interrupted as e:
        report("interrupted", round=e.round)
    except Exception as e:
        report("failed", error=f"{e}" or type(e).__name__)
        raise


def bound(config: Mapping[str, Any]) -> registry.Registry | None:
    """Which keys own which clients; None in a fleet that was set up by an earlier version."""
    folder = str(config.get("registry", ""))
    return registry.load(Path(folder), sites=config["data"] == "sites") if folder else None


@contextlib.contextmanager
def linked(link: GridLink) -> Iterator[None]:
    """While this lasts, `Flower.open` finds the link."""
    token = LINK.set(link)
    try:
        yield
    finally:
        LINK.reset(token)


def data_of_sites(link: GridLink, experiment: Experiment) -> dict[str, Any]:
    """What replaces the experiment's data where the server has none: stand-ins of the sizes that sites send."""
    backend = experiment.backend
    assert isinstance(backend, Flower)
    rules = CardRules(experiment.data.clients, least_examples(experiment), link.registry)
    data = gather(link, experiment.data, backend.patience, rules)
    world = data.world(experiment.seed)
    streams = {name: stream.shards for name, (_, stream) in api.streams_of(world, experiment.streams).items()}
    link.stream_names = stream_names(world, streams)
    return {"data": data}


def prepared(folder: Path, settings: str) -> store.RunFolder:
    """The run folder. A new one is created for the experiment that the settings describe."""
    run = store.RunFolder(folder)
    if run.config.exists():
        return run
    with foreign():
        experiments = expand(shlex.split(settings))
    if len(experiments) != 1:
        raise ValueError(f"settings describe {len(experiments)} experiments; a fleet trains one at a time")
    e = experiments[0]
    if not isinstance(e.backend, Flower):
        raise ValueError(f"backend={type(e.backend).__name__} must be flower; add backend=flower to the settings")
    (folder / IDENTITY).unlink(missing_ok=True)  # a new run has a new name
    return store.RunFolder.create(folder, e, api.device_of(e.device))


def identity(folder: Path) -> str:
    """The name by which nodes know this run, also when it is resumed. It is kept in the run folder.

    A run that begins again, because it was stopped before its first checkpoint, keeps it: sites know by it what they
    have sent, and for whom they have opened sums.
    """
    path = folder / IDENTITY
    if not path.exists():
        store.write(path, json.dumps({"run": secrets.token_hex(8)}) + "\n")
    return str(store.read_json(path)["run"])


Report = Callable[..., None]


def reporter(path: Path) -> Report:
    """A function that appends events to a file, one JSON object per line."""

    def report(event: str, **more: Any) -> None:
        with path.open("a") as f:
            f.write(json.dumps({"event": event, **more}) + "\n")

    return report


def saved(folder: Path) -> list[Tree]:
    """The versions of private states that the last checkpoint names: of its own round, and of the best."""
    path = store.RunFolder(folder).state
    if not path.exists():
        return []
    with safe_open(path, framework="pt") as f:
        names = {"mine/version", "best_mine/version"} & set(f.keys())
        return [{"version": f.get_tensor(name)} for name in names]


class ProgressWatch(Watch):
    """Reports progress, looks for `stop`, and notes which private states the run may still come back to."""

    def __init__(self, folder: Path, link: GridLink, report: Report) -> None:
        self.folder, self.link, self.report = folder, link, report
        link.keep = saved(folder)

    def training(self, label: str, seed: int, done: int, rounds: int) -> None:
        self.report("training", label=label, seed=seed, done=done, rounds=rounds)

    def round(self, state: State) -> None:
        now = [state.mine.saved(), *([state.best.mine.saved()] if state.best is not None else [])]
        self.link.keep = [*saved(self.folder), *now]  # this round's checkpoint is written after this call, if at all
        row = state.history[-1] if state.history else None
        self.report(
            "round",
            round=state.round,
            row=row,
            faults=sum(sum(kinds.values()) for kinds in state.fault_counts.values()),
        )
        if (self.folder / STOP).exists():
            (self.folder / STOP).unlink()
            raise KeyboardInterrupt

    def testing(self, label: str, seed: int, steps: int) -> None:
        self.report("testing", label=label, seed=seed, steps=steps)

    def tested(self) -> None:
        self.report("tested")
