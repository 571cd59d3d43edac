"""Run folders: what is written, and when.

A run folder holds config.json, env.json, metrics.jsonl, state.safetensors, and - once finished - results.json and
report.html; with `analysis`, traces.safetensors and analysis.json besides; on a GPU kernels.json, with the kernels that
were chosen by measurement, so that a run that goes on computes the same to the bit; and while very many clients train,
the files of `store.parts`. A folder of several runs holds index.json beside the run folders.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from ..core import State
from ..core.nn import implicit
from ..eval.analysis import Traces
from ..experiment import Experiment, dumps, loads
from .files import RunError, json_text, object_of, read_json, write
from .origin import environment
from .parts import Parts
from .tensors import pack, pack_traces

RESULTS_SCHEMA = "acclimate.results/1"
ANALYSIS_SCHEMA = "acclimate.analysis/1"
INDEX_SCHEMA = "acclimate.index/1"
KERNELS_SCHEMA = "acclimate.kernels/1"


class RunFolder:
    """One experiment's folder."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config, self.env = path / "config.json", path / "env.json"
        self.metrics, self.state = path / "metrics.jsonl", path / "state.safetensors"
        self.traces, self.analysis = path / "traces.safetensors", path / "analysis.json"
        self.results, self.report = path / "results.json", path / "report.html"
        self.index, self.kernels = path / "index.json", path / "kernels.json"
        self.parts = Parts(self.state)
        self.world: str | None = None
        """Names the examples and splits that checkpoints are of (`World.content`), where that is known."""

    @classmethod
    def create(cls, path: Path, experiment: Experiment, device: torch.device, overwrite: bool = False) -> RunFolder:
        """A new run folder; refuses to overwrite unless told."""
        folder = cls(path)
        refuse_overwrite(path, overwrite)
        folder.clear()
        write(folder.config, dumps(experiment))
        write(folder.env, json.dumps(environment(device), indent=2) + "\n")
        return folder

    def clear(self) -> None:
        """Remove what an earlier run left, results first; of several runs the index, which would hide a new run."""
        tested = (self.results, self.report, self.traces, self.analysis)
        for old in (self.index, *tested, self.metrics, self.state, self.kernels, self.env, self.config):
            old.unlink(missing_ok=True)
        self.parts.clear()

    @property
    def finished(self) -> bool:
        """Whether results are written."""
        return self.results.exists()

    def experiment(self, **given: Any) -> Experiment:
        """The experiment that config.json describes."""
        if not self.config.exists():
            raise RunError(f"{self.config} does not exist; is {self.path} a run folder?")
        return loads(self.config.read_text(), **given)

    def checkpoint(self, state: State, training: str, last: bool = True) -> None:
        """Write the loop's state; `training` names what is trained (Experiment.identity).

        Where private states lie in a file and it is not the `last` of a run, only those that changed are written."""
        if chosen := implicit.choices():
            write(self.kernels, json.dumps({"schema": KERNELS_SCHEMA, "choices": chosen}, indent=1) + "\n")
        if state.mine.far and not last:
            self.parts.checkpoint(state, training, self.world)
            return
        write(self.state, pack(state, training, self.world))
        self.parts.clear()

    def save(self, state: State, training: str, last: bool = True) -> None:
        """Write the loop's state and the learning curve so far."""
        self.checkpoint(state, training, last)
        self.log(state)

    def log(self, state: State) -> None:
        """Write the learning curve so far."""
        write(self.metrics, "".join(json_text(row, sort_keys=True) + "\n" for row in state.history))

    def restore(self, like: State, training: Sequence[str]) -> State | None:
        """The last checkpoint, checked against a fresh state of the same experiment; None where there is none.

        `training` holds every name that a checkpoint may have for what is trained (Experiment.identities).
        """
        state = self.parts.restore(like, training, self.world) if self.state.exists() else None
        if state is not None and self.kernels.exists():
            self._choose()
        return state

    def _choose(self) -> None:
        """Compute with the kernels that this run was trained with."""
        kept = read_json(self.kernels)
        if kept.get("schema") != KERNELS_SCHEMA:
            raise RunError(f"{self.kernels}: schema={kept.get('schema')!r} must be '{KERNELS_SCHEMA}'")
        try:
            implicit.use_choices(kept["choices"])
        except (KeyError, AttributeError, ValueError) as e:
            raise RunError(f"{self.kernels} is damaged: {e}") from e

    def keep_analysis(self, traces: Traces, summary: Mapping[str, Any], seed: int, round: int) -> None:
        """Write what the adapters did: every value, and the summary that the report draws."""
        write(self.traces, pack_traces(traces, seed, round))
        body = {"schema": ANALYSIS_SCHEMA, "seed": seed, "round": round, **summary}
        write(self.analysis, json_text(body) + "\n")

    def rows(self) -> list[dict[str, Any]]:
        """The learning curve."""
        if not self.metrics.exists():
            return []
        lines = self.metrics.read_text(errors="replace").splitlines()
        return [object_of(line, f"{self.metrics}, line {i},") for i, line in enumerate(lines, 1)]

    def load(self) -> dict[str, Any]:
        """All that a report needs of a finished run."""
        results = read_json(self.results)
        if results.get("schema") != RESULTS_SCHEMA:
            raise RunError(f"{self.results}: schema={results.get('schema')!r} must be '{RESULTS_SCHEMA}'")
        env = read_json(self.env) if self.env.exists() else {}
        parts = {"config": read_json(self.config), "results": results, "metrics": self.rows(), "env": env}
        analysis = read_json(self.analysis) if self.analysis.exists() else {}
        if analysis and analysis.get("schema") != ANALYSIS_SCHEMA:
            raise RunError(f"{self.analysis}: schema={analysis.get('schema')!r} must be '{ANALYSIS_SCHEMA}'")
        return {"path": str(self.path), **parts, "analysis": analysis}


def holds_run(path: Path) -> bool:
    """Whether a folder is that of a run, finished or not, or of several."""
    return any((path / name).exists() for name in ("results.json", "config.json", "index.json"))


def holds_search(path: Path) -> bool:
    """Whether a folder is that of a search (`acclimate tune`), begun or finished."""
    return any((path / name).exists() for name in ("tune.json", "journal.log"))


def refuse_overwrite(path: Path, overwrite: bool) -> None:
    """An error where a folder holds a search, or a run already unless told to overwrite."""
    if holds_search(path):  # whatever is told: the two would share report.html, and each be a part of the other
        raise RunError(f"{path} holds a search; choose another --out")
    if overwrite or not path.exists():
        return
    if path.is_file():
        raise RunError(f"{path} is a file; choose another --out")
    if (path / "results.json").exists():
        raise RunError(f"{path} holds a finished run; pass --overwrite, or choose another --out")
    if holds_run(path):
        raise RunError(f"{path} holds a run; continue it with `acclimate resume {path}`, or pass --overwrite")


class IndexFolder:
    """A folder of run folders: index.json says which runs belong to it, so that it can be resumed."""

    def __init__(self, path: Path) -> None:
        self.path, self.index = path, path / "index.json"

    def clear(self, experiments: list[Experiment]) -> None:
        """Remove what earlier runs left here and in the folders of these experiments."""
        for path in (self.path, *(self.path / name for name in folder_names(experiments))):
            RunFolder(path).clear()

    def plan(self, experiments: list[Experiment]) -> None:
        """Write which runs there will be."""
        names = folder_names(experiments)
        runs = [
            {"path": name, "label": e.label, "seed": e.seed, "config": json.loads(dumps(e))}
            for name, e in zip(names, experiments, strict=True)
        ]
        write(self.index, json.dumps({"schema": INDEX_SCHEMA, "runs": runs}, indent=2) + "\n")

    def _entries(self) -> list[dict[str, Any]]:
        body = read_json(self.index)
        if body.get("schema") != INDEX_SCHEMA:
            raise RunError(f"{self.index}: schema={body.get('schema')!r} must be '{INDEX_SCHEMA}'")
        return list(body["runs"])

    def runs(self) -> list[Path]:
        """The run folders."""
        return [self.path / r["path"] for r in self._entries()]

    def experiments(self, **given: Any) -> list[Experiment]:
        """Their experiments; `given` replaces fields that a file cannot hold."""
        return [loads(json.dumps(r["config"]), **given) for r in self._entries()]


def folder_names(experiments: Sequence[Experiment]) -> list[str]:
    """A readable folder name per experiment, distinct within the group: method, what differs, seed."""
    settings = [e.settings() for e in experiments]
    common = set.intersection(*map(set, settings))
    out: list[str] = []
    for e, own in zip(experiments, settings, strict=True):
        words = "-".join([e.label, *(s for s in own if s not in common)])
        stem = "".join(c if c.isalnum() or c in "+-.=" else "_" for c in words)[:80]
        name, number = f"{stem}-s{e.seed}", 2
        while name in out:
            name, number = f"{stem}-s{e.seed}-{number}", number + 1
        out.append(name)
    return out


def find_runs(path: Path) -> Iterator[RunFolder]:
    """The run folders at or below a path, in index order where there is an index."""
    if (path / "index.json").exists():
        yield from map(RunFolder, IndexFolder(path).runs())
    elif (path / "config.json").exists():
        yield RunFolder(path)
    else:
        found = sorted(p.parent for p in path.glob("*/config.json")) + sorted(
            p.parent for p in path.glob("*/index.json")
        )
        if not found:
            raise RunError(f"{path} holds no run; a run folder has a config.json")
        for p in found:
            yield from find_runs(p)


def next_free(root: Path, name: str) -> Path:
    """`root/001-name`, with the first number that is free."""
    heads = [p.name.partition("-")[0] for p in root.glob("[0-9]*-*")] if root.exists() else []
    taken = {int(head) for head in heads if head.isdecimal()}
    number = next(n for n in itertools.count(1) if n not in taken)
    return root / f"{number:03d}-{name}"
