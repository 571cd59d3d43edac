"""Run folders: what is written, when, and how it survives a crash. All is JSON or safetensors, written atomically.

A run folder holds config.json, env.json, metrics.jsonl, state.safetensors, and - once finished - results.json and
report.html; with `analysis`, traces.safetensors and analysis.json besides. A folder of several runs holds index.json
beside the run folders.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import math
import os
import platform
import secrets
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from .config import Experiment, dumps, loads
from .core import holding, tree
from .core.fit import Best, State
from .eval.analysis import Traces
from .version import __version__

STATE_SCHEMA = "acclimate.state/1"
RESULTS_SCHEMA = "acclimate.results/1"
TRACES_SCHEMA = "acclimate.traces/1"
ANALYSIS_SCHEMA = "acclimate.analysis/1"
INDEX_SCHEMA = "acclimate.index/1"


class RunError(RuntimeError):
    """A run folder that cannot be used as asked: says which file, why, and what to do."""


def write(path: Path, content: bytes | str, mode: int = 0o666) -> None:
    """Write a file whole or not at all: to a temporary file beside it, flushed to disk, then renamed.

    `mode` says who may read and write it, less what the umask takes away; 0o600 is for its owner alone.
    """
    raw = content.encode() if isinstance(content, str) else content
    fresh = path.parent / f".{path.name}.{secrets.token_hex(4)}"
    how = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with os.fdopen(os.open(fresh, how, mode), "wb") as f:
                f.write(raw)
                f.flush()
                os.fsync(f.fileno())
            os.replace(fresh, path)
        except BaseException:  # also Ctrl-C
            with contextlib.suppress(OSError):
                os.unlink(fresh)
            raise
    except OSError as e:
        raise RunError(f"cannot write {path}: {e.strerror or e}; what was there before is unchanged") from e


def json_text(value: Any, **style: Any) -> str:
    """JSON that every reader takes: numbers that are not finite are null, because JSON has no word for them."""
    return json.dumps(_finite(value), allow_nan=False, **style)


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {k: _finite(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def read_json(path: Path) -> dict[str, Any]:
    """The object that a JSON file holds, or an error that names it."""
    try:
        text = path.read_text()
    except FileNotFoundError:
        raise RunError(f"{path} does not exist; is {path.parent} a run folder?") from None
    except UnicodeDecodeError as e:
        raise RunError(f"{path} is damaged: {e}") from e
    return _object(text, str(path))


def _object(text: str, where: str) -> dict[str, Any]:
    """A JSON object, or an error that says where it should be."""
    try:
        found = json.loads(text)
    except json.JSONDecodeError as e:
        raise RunError(f"{where} is damaged: {e}") from e
    if not isinstance(found, dict):
        raise RunError(f"{where} is damaged: it holds {text.strip()[:40]!r}, not a JSON object")
    return found


def environment(device: torch.device) -> dict[str, Any]:
    """env.json: versions, device and commit; no host or user names."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or platform.machine()
    import numpy

    return {
        "acclimate": __version__,
        "commit": _commit(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "platform": f"{platform.system()} {platform.machine()}",
        "device": f"{device} ({name})",
        "threads": torch.get_num_threads(),
    }


def _commit() -> str | None:
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return None
    try:
        done = subprocess.run(
            ["git", "describe", "--always", "--dirty"], cwd=root, capture_output=True, text=True, timeout=10, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


class RunFolder:
    """One experiment's folder."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config, self.env = path / "config.json", path / "env.json"
        self.metrics, self.state = path / "metrics.jsonl", path / "state.safetensors"
        self.traces, self.analysis = path / "traces.safetensors", path / "analysis.json"
        self.results, self.report = path / "results.json", path / "report.html"
        self.index = path / "index.json"
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
        for old in (self.index, *tested, self.metrics, self.state, self.env, self.config):
            old.unlink(missing_ok=True)

    @property
    def finished(self) -> bool:
        """Whether results are written."""
        return self.results.exists()

    def experiment(self, **given: Any) -> Experiment:
        """The experiment that config.json describes."""
        if not self.config.exists():
            raise RunError(f"{self.config} does not exist; is {self.path} a run folder?")
        return loads(self.config.read_text(), **given)

    def checkpoint(self, state: State, training: str) -> None:
        """Write the loop's state; `training` names what is trained (Experiment.training_hash)."""
        write(self.state, pack(state, training, self.world))

    def save(self, state: State, training: str) -> None:
        """Write the loop's state and the learning curve so far."""
        self.checkpoint(state, training)
        self.log(state)

    def log(self, state: State) -> None:
        """Write the learning curve so far."""
        write(self.metrics, "".join(json_text(row, sort_keys=True) + "\n" for row in state.history))

    def restore(self, like: State, training: str) -> State | None:
        """The last checkpoint, checked against a fresh state of the same experiment; None where there is none."""
        return unpack(self.state, like, training, self.world) if self.state.exists() else None

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
        return [_object(line, f"{self.metrics}, line {i},") for i, line in enumerate(lines, 1)]

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


def pack(state: State, training: str, world: str | None = None) -> bytes:
    """A state as safetensors; the one metadata entry is JSON, so equal states are equal bytes.

    `training` and `world` name what is trained (Experiment.training_hash) and on what (World.content)."""
    trees: dict[str, Any] = {"server": state.server, "mine": holding.saved(state.mine)}
    if state.best is not None:
        trees |= {"best_server": state.best.server, "best_mine": holding.saved(state.best.mine)}
    tensors = {k: v.detach().cpu().contiguous().clone() for k, v in tree.flatten(trees).items()}
    meta = {
        "schema": STATE_SCHEMA,
        "training": training,
        "round": state.round,
        "best": None if state.best is None else {"round": state.best.round, "score": state.best.score},
        "history": list(state.history),
        "cost": state.cost,
        "faults": list(state.faults),
        **({} if world is None else {"world": world}),
        "digest": _digest(tensors),
    }
    return save(tensors, {"acclimate": json.dumps({**meta, "seal": _seal(meta)}, sort_keys=True)})


def unpack(path: Path, like: State, training: str, world: str | None = None) -> State:
    """The inverse of `pack`. Refuses files that are damaged, of another experiment or other data, or whose tensors or
    metadata were changed and their digests were not. (Files of earlier versions have none of their metadata.)"""
    meta, tensors = _read(path)
    if meta.get("schema") != STATE_SCHEMA:
        raise RunError(f"{path}: schema={meta.get('schema')!r} must be '{STATE_SCHEMA}': written by another version")
    if meta.get("digest") != _digest(tensors) or meta.get("seal", _seal(meta)) != _seal(meta):
        raise RunError(f"{path} is damaged: its content does not match its digest; remove it to start over")
    if meta["training"] != training:
        raise RunError(
            f"{path} was trained with another configuration ({meta['training']}, this one is {training}); "
            "restore config.json, or start a new run"
        )
    if world is not None and meta.get("world", world) != world:
        raise RunError(
            f"{path} was trained on other data: examples or splits have changed since ({meta['world']}, now {world}); "
            "restore the data, or start a new run"
        )
    try:
        server = tree.unflatten(tensors, like.server, "server/")
        mine: Any = holding.restored(tensors, like.mine, "mine/")
        best = None
        if meta["best"] is not None:
            best_server = tree.unflatten(tensors, server, "best_server/")
            best_mine: Any = holding.restored(tensors, like.mine, "best_mine/")
            best = Best(meta["best"]["round"], meta["best"]["score"], best_server, best_mine)
    except ValueError as e:
        raise RunError(f"{path} does not fit this experiment: {e}") from e
    return State(meta["round"], server, mine, best, tuple(meta["history"]), meta["cost"], tuple(meta.get("faults", ())))


def pack_traces(traces: Traces, seed: int, round: int) -> bytes:
    """Traces as safetensors named `adapter/stream/trace`; `names` in the metadata holds the three parts of each."""
    names = {
        f"{adapter}/{stream}/{name}": (adapter, stream, name)
        for adapter, streams in traces.items()
        for stream, kept in streams.items()
        for name in kept
    }
    tensors = {key: traces[a][s][name].detach().cpu().contiguous().clone() for key, (a, s, name) in names.items()}
    meta = {"schema": TRACES_SCHEMA, "seed": seed, "round": round, "names": names, "digest": _digest(tensors)}
    return save(tensors, {"acclimate": json.dumps(meta, sort_keys=True)})


def read_traces(path: Path) -> Traces:
    """The inverse of `pack_traces`: tensors by adapter, stream and name."""
    if not path.exists():
        raise RunError(f"{path} does not exist: a run keeps traces with analysis=true, and writes them at its end")
    meta, tensors = _read(path)
    if meta.get("schema") != TRACES_SCHEMA:
        raise RunError(f"{path}: schema={meta.get('schema')!r} must be '{TRACES_SCHEMA}': written by another version")
    if meta.get("digest") != _digest(tensors):
        raise RunError(f"{path} is damaged: its content does not match its digest; run again with --overwrite")
    out: Traces = {}
    for key, (adapter, stream, name) in meta["names"].items():
        out.setdefault(adapter, {}).setdefault(stream, {})[name] = tensors[key]
    return out


def _read(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    try:
        with safe_open(path, framework="pt") as f:
            text = (f.metadata() or {}).get("acclimate", "{}")
            return json.loads(text), {name: f.get_tensor(name) for name in f.keys()}  # noqa: SIM118
    except (SafetensorError, json.JSONDecodeError, OSError) as e:
        raise RunError(f"{path} is damaged or truncated ({e}); remove it to start the run over") from e


def _digest(tensors: Mapping[str, Tensor]) -> str:
    h = hashlib.sha256()
    for name in sorted(tensors):
        t = tensors[name].contiguous()
        h.update(f"{name}{tuple(t.shape)}{t.dtype}".encode())
        h.update(t.view(-1).view(torch.uint8).numpy().tobytes() if t.numel() else b"")
    return h.hexdigest()


def _seal(meta: Mapping[str, Any]) -> str:
    """A digest of a checkpoint's metadata."""
    rest = {k: v for k, v in meta.items() if k != "seal"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


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


def command_line() -> str:
    """The command that made a run, without the interpreter's path."""
    return " ".join([Path(sys.argv[0]).name, *sys.argv[1:]])
