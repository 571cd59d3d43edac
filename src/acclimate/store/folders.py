"""Run folders: what is written, and when.

A run folder holds config.json, env.json, metrics.jsonl, state.safetensors, and - once finished - results.json and
report.html; with `analysis`, traces.safetensors and analysis.json besides; on a GPU kernels.json, with the kernels that
were chosen by measurement, so that a run that goes on computes the same to the bit; pace.json, with the seconds of the
training; and while very many clients train, the files of `store.parts`. A folder of several runs holds index.json
beside the run folders.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from ..core import State, Task
from ..core.nn import fastest, implicit
from ..eval.analysis import Traces
from ..experiment import SCHEMA, Experiment, checked, dumps, loads
from . import append, frozen
from .files import (
    RunError,
    SeveralRuns,
    holds_run,
    holds_search,
    instead,
    json_text,
    object_of,
    read_json,
    read_sealed,
    read_text,
    reading,
    sealed,
    sha256,
    write,
)
from .origin import environment, without_places
from .parts import Parts
from .tensors import pack, pack_traces

RESULTS_SCHEMA = "acclimate.results/2"
ANALYSIS_SCHEMA = "acclimate.analysis/2"
INDEX_SCHEMA = "acclimate.index/2"
ENV_SCHEMA = "acclimate.env/2"
KERNELS_SCHEMA = "acclimate.kernels/1"
PACE_SCHEMA = "acclimate.pace/1"
AGAIN = "run it again with --overwrite"
LARGE = ("state.safetensors", "traces.safetensors")
"""What a finished run can do without: they may be removed to save space."""


def _versions(schema: str) -> dict[str, bool]:
    """The version that has a digest, and the one before it, which has none."""
    return {schema: True, schema.removesuffix("2") + "1": False}


class RunFolder:
    """One experiment's folder."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config, self.env = path / "config.json", path / "env.json"
        self.metrics, self.state = path / "metrics.jsonl", path / "state.safetensors"
        self.traces, self.analysis = path / "traces.safetensors", path / "analysis.json"
        self.results, self.report = path / "results.json", path / "report.html"
        self.index, self.kernels = path / "index.json", path / "kernels.json"
        self.pace, self.frozen, self.failed = path / "pace.json", path / "frozen.json", path / "failed.json"
        self.parts = Parts(self.state)
        self.world: str | None = None
        """Names the examples and splits that checkpoints are of (`World.content`), where that is known."""
        self.fixed: frozen.Sketch | None = None
        """The frozen parameters that checkpoints are over (`frozen.of_tasks`), where they are known."""
        self._logged: int | None = None
        """How many rows of the learning curve this process knows to be on disk."""

    @classmethod
    def create(cls, path: Path, experiment: Experiment, device: torch.device, overwrite: bool = False) -> RunFolder:
        """A new run folder; refuses to overwrite unless told."""
        folder = cls(path)
        refuse_overwrite(path, overwrite)
        folder.clear()
        env = sealed({"schema": ENV_SCHEMA, **environment(device)})
        write(folder.env, json.dumps(env, indent=2) + "\n")
        write(folder.config, dumps(experiment))  # last: with it, the folder is that of a run
        return folder

    def clear(self) -> None:
        """Remove what an earlier run left, results first; of several runs the index, which would hide a new run."""
        tested = (self.results, self.report, self.traces, self.analysis, self.failed)
        more = (self.metrics, self.state, self.frozen, self.pace, self.kernels, self.env, self.config)
        for old in (self.index, *tested, *more):
            try:
                old.unlink(missing_ok=True)
            except OSError as e:
                raise RunError(f"cannot remove {old}: {e.strerror}; choose another --out") from e
        self.parts.clear()
        self.sweep()

    def sweep(self) -> None:
        """Remove large files that a process was killed in the middle of. Only who has the folder's lock may do so."""
        for name in LARGE:
            for half in self.path.glob(f".{name}.*"):
                half.unlink(missing_ok=True)

    @property
    def finished(self) -> bool:
        """Whether results are written."""
        return self.results.exists()

    def experiment(self, **given: Any) -> Experiment:
        """The experiment that config.json describes; an error that names the runs, where this is a folder of them."""
        if not self.config.exists() and (runs := runs_below(self.path)):
            raise SeveralRuns(self.path, runs)
        if not self.config.exists() and (other := instead(self.path)):
            raise RunError(f"{self.path} {other}")
        return loads(read_text(self.config), str(self.config), **given)

    def checkpoint(self, state: State, training: str, last: bool = True) -> None:
        """Write the loop's state; `training` names what is trained (Experiment.identity).

        Where private states lie in a file and it is not the `last` of a run, only those that changed are written."""
        if chosen := implicit.choices() | fastest.choices():
            write(self.kernels, json.dumps({"schema": KERNELS_SCHEMA, "choices": chosen}, indent=1) + "\n")
        frozen.keep(self.frozen, self.fixed)
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
        """Append to the learning curve what it lacks; what a crash left of it beyond this state is cut off."""
        lines = [json_text(row, sort_keys=True) + "\n" for row in state.history]
        if self._logged is None or self._logged > len(lines):
            self._logged = append.cut(self.metrics, lines)
        append.lines(self.metrics, lines[self._logged :])
        self._logged = len(lines)

    def keep_pace(self, seconds: float, median: float, together: int) -> None:
        """Write how long the rounds took so far, `together` trainings side by side, and the median of the last ones."""
        found = {"train_seconds": seconds, "round_seconds_median": median, "trained_together": together}
        write(self.pace, json_text(sealed({"schema": PACE_SCHEMA, **found})) + "\n")

    def pace_so_far(self) -> dict[str, Any]:
        """What `keep_pace` wrote last, also where it was in an earlier process or in a run that shares the training."""
        if not self.pace.exists():
            return {"train_seconds": 0.0, "round_seconds_median": None, "trained_together": 1}
        found = read_sealed(self.pace, {PACE_SCHEMA: True}, "delete it: it holds seconds alone")
        return {k: found[k] for k in ("train_seconds", "round_seconds_median", "trained_together")}

    def restore(self, like: State, training: Sequence[str]) -> State | None:
        """The last checkpoint, checked against a fresh state of the same experiment; None where there is none.

        `training` holds every name that a checkpoint may have for what is trained (Experiment.identities).
        """
        if self.state.exists():
            frozen.check(self.frozen, self.fixed)
        state = self.parts.restore(like, training, self.world) if self.state.exists() else None
        if state is not None and self.kernels.exists():
            self._choose()
        return state

    def trains(self, world: str | None, tasks: Sequence[Task]) -> None:
        """Note what checkpoints are of: examples and splits (`World.content`), and frozen parameters."""
        self.world, self.fixed = world, frozen.of_tasks(tasks)

    def _choose(self) -> None:
        """Compute with the kernels that this run was trained with."""
        kept = read_json(self.kernels)
        if kept.get("schema") != KERNELS_SCHEMA:
            raise RunError(f"{self.kernels}: schema={kept.get('schema')!r} must be '{KERNELS_SCHEMA}'")
        try:
            implicit.use_choices(fastest.use_choices(kept["choices"]))
        except (KeyError, AttributeError, ValueError) as e:
            raise RunError(f"{self.kernels} is damaged: {e}") from e

    def keep_analysis(self, traces: Traces, summary: Mapping[str, Any], seed: int, round: int) -> None:
        """Write what the adapters did: every value, and the summary that the report draws."""
        write(self.traces, pack_traces(traces, seed, round))
        body = sealed({"schema": ANALYSIS_SCHEMA, "seed": seed, "round": round, **summary})
        write(self.analysis, json_text(body) + "\n")

    def keep_results(self, results: Mapping[str, Any]) -> None:
        """Write results.json: with its digest, and those of the other files, which must stay as they are now."""
        there = (self.config, self.env, self.metrics, self.state, self.frozen, self.traces, self.analysis)
        files = {p.name: sha256(p) for p in there if p.exists()}
        body = sealed({"schema": RESULTS_SCHEMA, **results, "files": files})
        write(self.results, json_text(body, indent=1) + "\n")

    def rows(self) -> list[dict[str, Any]]:
        """The learning curve."""
        if not self.metrics.exists():
            return []
        lines = read_text(self.metrics).splitlines()
        return [object_of(line, f"{self.metrics}, line {i},") for i, line in enumerate(lines, 1)]

    def check_started(self) -> None:
        """Notice before training what would stand in the results: a damaged env.json."""
        if self.env.exists() or self._sealed():
            self._environment()

    def _environment(self) -> dict[str, Any]:
        if not self.env.exists() and not self._sealed():
            return {}  # an earlier version did without
        body = read_json(self.env)
        if "schema" not in body and not self._sealed():
            return body
        body = read_sealed(self.env, {ENV_SCHEMA: True}, "restore it, or start a new run")
        return {k: v for k, v in body.items() if k not in ("schema", "digest")}

    def _sealed(self) -> bool:
        """Whether this folder's files have digests: config.json says so by its version."""
        return read_json(self.config).get("schema") == SCHEMA

    def load(self) -> dict[str, Any]:
        """All that a report needs of a finished run, every file checked against its digest; no absolute paths."""
        results = read_sealed(self.results, _versions(RESULTS_SCHEMA), AGAIN)
        config = checked(read_json(self.config), str(self.config))
        if config["schema"] == SCHEMA and results["schema"] != RESULTS_SCHEMA:
            raise RunError(f"{self.results} is of an earlier version than {self.config}; {AGAIN}")
        parts = {"config": config, "results": results, "metrics": self.rows(), "env": self._environment()}
        analysis = read_sealed(self.analysis, _versions(ANALYSIS_SCHEMA), AGAIN) if self.analysis.exists() else {}
        self._check_files(results.get("files") or {})
        return {"path": str(self.path), **without_places({**parts, "analysis": analysis})}

    def _check_files(self, known: Mapping[str, str]) -> None:
        """Refuse a finished run one of whose files is another than it was when the run ended."""
        for name, digest in known.items():
            path = self.path / Path(name).name
            if not path.exists() and path.name in LARGE:
                continue
            if not path.exists() or sha256(path) != digest:
                how = "is damaged or was changed" if path.exists() else "is missing"
                raise RunError(f"{path} {how} since the run was finished; restore it, or {AGAIN}")


def refuse_overwrite(path: Path, overwrite: bool) -> None:
    """An error where a folder holds a search, or a run already unless told to overwrite."""
    if holds_search(path):  # whatever is told: the two would share report.html, and each be a part of the other
        raise RunError(f"{path} holds a search; choose another --out")
    if overwrite or not path.exists():
        return
    if path.is_file():
        raise RunError(f"{path} is a file; choose another --out")
    if (path / "results.json").exists():
        raise RunError(f"{path} holds a finished run; pass --overwrite (overwrite=True), or choose another --out")
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
        write(self.index, json.dumps(sealed({"schema": INDEX_SCHEMA, "runs": runs}), indent=2) + "\n")

    def _entries(self) -> list[dict[str, Any]]:
        body = read_sealed(self.index, _versions(INDEX_SCHEMA), "restore it, or resume its run folders one by one")
        with reading(self.index, "restore it"):
            for run in body["runs"]:
                if Path(run["path"]).name != run["path"] or run["path"] in ("", ".", ".."):
                    raise RunError(f"{self.index}: path={run['path']!r} must name a folder beside it")
            return list(body["runs"])

    def runs(self) -> list[Path]:
        """The run folders."""
        return [self.path / r["path"] for r in self._entries()]

    def experiments(self, **given: Any) -> list[Experiment]:
        """Their experiments; `given` replaces fields that a file cannot hold."""
        with reading(self.index, "restore it"):
            return [loads(json.dumps(r["config"]), str(self.index), **given) for r in self._entries()]


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


def runs_below(path: Path) -> list[Path]:
    """The run folders below a path; none where it is a run folder itself, or holds no run."""
    try:
        return [folder.path for folder in find_runs(path) if folder.path != path]
    except RunError:
        return []


def next_free(root: Path, name: str) -> Path:
    """`root/001-name`, with the first number that is free."""
    heads = [p.name.partition("-")[0] for p in root.glob("[0-9]*-*")] if root.exists() else []
    taken = {int(head) for head in heads if head.isdecimal()}
    number = next(n for n in itertools.count(1) if n not in taken)
    return root / f"{number:03d}-{name}"
