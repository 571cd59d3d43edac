"""Runs in TensorBoard and MLflow: the learning curve while it grows, and the results when they are there.

Both are written below the run's own folder and need no server and no network. What is logged never changes a run: it
is no setting, so hashes stay the same. The extra `track` has the packages.
"""

from __future__ import annotations

import importlib
import logging
import os
import re
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from .. import store
from ..core import State
from .watch import Watch

Row = Mapping[str, Any]


class Sink(Protocol):
    """Where numbers go; runs are told apart by name."""

    def begin(self, run: str) -> None:
        """A run starts; what was kept of an earlier one of this name is dropped."""

    def holds(self, run: str) -> bool:
        """Whether something is kept of this run."""

    def scalars(self, run: str, step: int, values: Mapping[str, float]) -> None:
        """Numbers at a round."""

    def facts(self, run: str, values: Mapping[str, str]) -> None:
        """What the run is: its settings, its table."""

    def close(self) -> None:
        """Nothing more will come."""


def _package(name: str, asked: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as e:
        raise ImportError(f"--track {asked} needs a package that is missing: pip install 'acclimate[track]'") from e


# --- TensorBoard ------------------------------------------------------------------------------------------------------


class TensorBoard:
    """Event files below a folder, one subfolder per run; `tensorboard --logdir` reads them.

    The records are written directly: TensorBoard's own writer would put the machine's name into the file's name.
    """

    FILE = "events.out.tfevents.acclimate"

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._event = _package("tensorboard.compat.proto.event_pb2", "tensorboard").Event
        self._summary = _package("tensorboard.compat.proto.summary_pb2", "tensorboard").Summary
        self._records = _package("tensorboard.summary.writer.record_writer", "tensorboard").RecordWriter
        self._open: dict[str, Any] = {}

    def begin(self, run: str) -> None:
        """Start the run's file anew."""
        if run in self._open:
            self._open.pop(run).close()
        path = self._path(run)
        path.parent.mkdir(parents=True, exist_ok=True)
        self._open[run] = self._records(path.open("wb"))
        self._put(run, self._event(wall_time=time.time(), file_version="brain.Event:2"))

    def holds(self, run: str) -> bool:
        """Whether the run has a file."""
        return self._path(run).exists()

    def scalars(self, run: str, step: int, values: Mapping[str, float]) -> None:
        """One event with all values."""
        pairs = [self._summary.Value(tag=tag, simple_value=value) for tag, value in values.items()]
        self._put(run, self._event(wall_time=time.time(), step=step, summary=self._summary(value=pairs)))

    def facts(self, run: str, values: Mapping[str, str]) -> None:
        """Text, for TensorBoard's text tab."""
        describe = _package("tensorboard.plugins.text.metadata", "tensorboard").create_summary_metadata
        tensor = _package("tensorboard.util.tensor_util", "tensorboard").make_tensor_proto
        for tag, text in values.items():
            value = self._summary.Value(tag=tag, metadata=describe(tag, ""), tensor=tensor([text.encode()]))
            self._put(run, self._event(wall_time=time.time(), summary=self._summary(value=[value])))

    def close(self) -> None:
        """Close all files."""
        while self._open:
            self._open.popitem()[1].close()

    def _path(self, run: str) -> Path:
        return self.folder / run / self.FILE

    def _put(self, run: str, event: Any) -> None:
        self._open[run].write(event.SerializeToString())
        self._open[run].flush()  # so that it can be watched while it runs


# --- MLflow -----------------------------------------------------------------------------------------------------------


class MLflow:
    """A sqlite store, one MLflow run per run. Neither telemetry nor user, host or source names are written."""

    EXPERIMENT = "acclimate"

    def __init__(self, file: Path) -> None:
        os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"  # read when mlflow is imported
        tracking = _package("mlflow.tracking", "mlflow")
        _package("sqlalchemy", "mlflow")  # mlflow-skinny leaves it to the user
        self._entities = _package("mlflow.entities", "mlflow")
        file.parent.mkdir(parents=True, exist_ok=True)
        uri = f"sqlite:///{file}"
        with _quiet():
            self._client = tracking.MlflowClient(tracking_uri=uri, registry_uri=uri)
            found = self._client.get_experiment_by_name(self.EXPERIMENT)
            self._home = found.experiment_id if found else self._client.create_experiment(self.EXPERIMENT, "artifacts")
        self._ids: dict[str, str] = {}

    def begin(self, run: str) -> None:
        """A new MLflow run; an earlier one of this name is marked as deleted."""
        for old in self._found(run):
            self._client.delete_run(old.info.run_id)
        self._ids[run] = self._client.create_run(self._home, run_name=run).info.run_id

    def holds(self, run: str) -> bool:
        """Whether there is an MLflow run of this name."""
        return bool(self._found(run))

    def scalars(self, run: str, step: int, values: Mapping[str, float]) -> None:
        """All values at once."""
        now = int(1000 * time.time())
        kept = [self._entities.Metric(_word(tag), value, now, step) for tag, value in values.items()]
        self._client.log_batch(self._ids[run], metrics=kept)

    def facts(self, run: str, values: Mapping[str, str]) -> None:
        """Tags: parameters could not be as long."""
        kept = [self._entities.RunTag(_word(key), text) for key, text in values.items()]
        self._client.log_batch(self._ids[run], tags=kept)

    def close(self) -> None:
        """Mark the runs of this session as finished."""
        for run in self._ids.values():
            self._client.set_terminated(run)

    def _found(self, run: str) -> list[Any]:
        every = self._client.search_runs([self._home], max_results=50_000)
        return [r for r in every if r.info.run_name == run]


def _word(text: str) -> str:
    """A name that MLflow takes: `tent(steps=2)` has characters that it refuses."""
    return re.sub(r"[^\w\-. :/]", "_", text)


@contextmanager
def _quiet() -> Iterator[None]:
    """Without MLflow's news on how it sets up its tables, and its use of what SQLAlchemy will drop."""
    loggers = [logging.getLogger(name) for name in ("mlflow", "alembic")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


SINKS: dict[str, Callable[[Path], Sink]] = {
    "tensorboard": lambda root: TensorBoard(root / "tensorboard"),
    "mlflow": lambda root: MLflow(root / "mlflow.db"),
}
"""What `--track` takes."""


# --- following a run --------------------------------------------------------------------------------------------------


class Tracker(Watch):
    """Logs the runs of one folder: every evaluated round as it ends, and at the end whatever is still missing.

    A run is followed from its first round, also where it is resumed: the state brings its whole curve along. Seeds
    that train together on a GPU, and runs that take over another's training, are logged from their folders.
    """

    def __init__(self, root: Path, sinks: Sequence[Sink]) -> None:
        self.root, self.sinks = root, sinks
        self._waiting: list[tuple[str, str, int]] | None = None
        self._run: str | None = None
        self._logged: dict[str, int] = {}
        """By run, the last round that was logged."""

    def training(self, label: str, seed: int, done: int, rounds: int) -> None:
        """Find out which run this is: the first unfinished one of this label and seed, as runs come in order."""
        waiting = self._unfinished(label, seed) if self._waiting is None else self._waiting
        self._run = next((name for name, *about in waiting if about == [label, seed]), None)
        self._waiting = [entry for entry in waiting if entry[0] != self._run]
        if self._run is not None:
            self._begin(self._run)

    def round(self, state: State) -> None:
        """Log what is new of the curve."""
        if self._run is not None:
            self._log(self._run, state.history, state.faults)

    def finish(self) -> None:
        """Log what finished runs have and was not seen: their curve, their table, their settings."""
        for name, path in _runs(self.root):
            folder = store.RunFolder(path)
            followed = name in self._logged
            if folder.finished and (followed or not all(s.holds(name) for s in self.sinks)):
                if not followed:
                    self._begin(name)
                self._complete(name, folder.load())
        for sink in self.sinks:
            sink.close()

    def _unfinished(self, label: str, seed: int) -> list[tuple[str, str, int]]:
        """Name, label and seed of every run that is still to come; a folder of one run has only the one at hand."""
        if not (self.root / "index.json").exists():
            return [(self.root.name, label, seed)]
        entries = store.read_json(self.root / "index.json")["runs"]
        left = [e for e in entries if not store.RunFolder(self.root / e["path"]).finished]
        return [(e["path"], e["label"], e["seed"]) for e in left]

    def _begin(self, run: str) -> None:
        for sink in self.sinks:
            sink.begin(run)
        self._logged[run] = 0

    def _log(self, run: str, curve: Sequence[Row], faults: Sequence[Row]) -> None:
        for row in curve:
            if row["round"] > self._logged[run]:
                for sink in self.sinks:
                    sink.scalars(run, row["round"], _point(row, faults))
                self._logged[run] = row["round"]

    def _complete(self, name: str, run: Mapping[str, Any]) -> None:
        results = run["results"]
        self._log(name, run["metrics"], results["faults"])
        for row in results["table"]:
            where = f"test/{row['stream']}/{row['adapter']}/{row['selection']}"
            for sink in self.sinks:
                sink.scalars(name, row["round"], {where: row["accuracy"]})
        settings = results["table"][0]["settings"] if results["table"] else []
        facts = {"label": results["label"], "seed": str(results["seed"]), "settings": " ".join(settings) or "defaults"}
        facts |= {"command": results["command"], "commit": str(run["env"].get("commit"))}
        for sink in self.sinks:
            sink.facts(name, facts)


def _runs(root: Path) -> list[tuple[str, Path]]:
    """The runs of a folder by the names that sinks know them by."""
    if not any((root / name).exists() for name in ("index.json", "config.json")):
        return []  # it failed before there was anything
    return [(folder.path.name, folder.path) for folder in store.find_runs(root)]


def _point(row: Row, faults: Sequence[Row]) -> dict[str, float]:
    """A round in numbers; bytes and faults are totals so far."""
    kept = {
        "validation/accuracy": row["val_accuracy"],
        "validation/std": row["val_std"],
        "validation/loss": row["val_loss"],
        "bytes/up": float(row["up_bytes"]),
        "bytes/down": float(row["down_bytes"]),
        "faults": float(sum(f["round"] < row["round"] for f in faults)),
    }
    kept |= {f"stream/{name}": value for name, value in row.get("streams", {}).items()}
    return {name: value for name, value in kept.items() if value is not None}  # a file has null for what is not finite


class Both(Watch):
    """Tells several watches: a display and a tracker."""

    def __init__(self, *watches: Watch) -> None:
        self.watches = watches
        self.warns = any(w.warns for w in watches)

    def slow(self, adapter: str, seconds: float) -> None:
        for w in self.watches:
            w.slow(adapter, seconds)

    def suite(self, runs: int) -> None:
        for w in self.watches:
            w.suite(runs)

    def training(self, label: str, seed: int, done: int, rounds: int) -> None:
        for w in self.watches:
            w.training(label, seed, done, rounds)

    def round(self, state: State) -> None:
        for w in self.watches:
            w.round(state)

    def testing(self, label: str, seed: int, steps: int) -> None:
        for w in self.watches:
            w.testing(label, seed, steps)

    def deploying(self, label: str, seed: int, steps: int) -> None:
        for w in self.watches:
            w.deploying(label, seed, steps)

    def tested(self) -> None:
        for w in self.watches:
            w.tested()

    def done(self) -> None:
        for w in self.watches:
            w.done()


@contextmanager
def tracked(root: str | Path, names: str | Sequence[str] | None, watch: Watch | None = None) -> Iterator[Watch]:
    """A watch that also logs the runs below `root`: to `tensorboard`, `mlflow` or both (a list, or with a comma).

    Packages are looked for here, before anything is trained. Without names it is the watch that was given.
    """
    watch = watch or Watch()
    asked = [n.strip() for n in names.split(",")] if isinstance(names, str) else list(names or ())
    if wrong := [n for n in asked if n not in SINKS]:
        raise ValueError(f"--track {wrong[0]!r} is not possible; allowed: {', '.join(SINKS)}")
    if not asked:
        yield watch
        return
    tracker = Tracker(Path(root), [SINKS[n](Path(root)) for n in dict.fromkeys(asked)])
    try:
        yield Both(watch, tracker)
    finally:
        tracker.finish()
