"""Checkpoints and traces as safetensors, with digests that show damage."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from ..core import Best, Private, State, tree
from ..eval.analysis import Traces
from ..ops import opening
from .files import RunError, object_of, reading

STATE_SCHEMA, OLD_STATE_SCHEMA = "acclimate.state/2", "acclimate.state/1"
"""In the second, files may lack a digest of their metadata (`seal`)."""
log = logging.getLogger("acclimate")
TRACES_SCHEMA, OLD_TRACES_SCHEMA = "acclimate.traces/2", "acclimate.traces/1"


def pack(
    state: State, training: str, world: str | None = None, parts: Mapping[str, Sequence[str]] | None = None
) -> bytes:
    """A state as safetensors; the one metadata entry is JSON, so equal states are equal bytes.

    `training` and `world` name what is trained (Experiment.identity) and on what (World.content); `parts` the files
    that hold the private states, where these are not in this one."""
    trees: dict[str, Any] = {"server": state.server} | ({"mine": state.mine.saved()} if parts is None else {})
    if state.best is not None:
        trees |= {"best_server": state.best.server}
        trees |= {"best_mine": state.best.mine.saved()} if parts is None else {}
    if tree.leaves(state.intake):
        trees["intake"] = state.intake
    tensors = {k: v.detach().cpu().contiguous().clone() for k, v in tree.flatten(trees).items()}
    meta = {
        "schema": STATE_SCHEMA,
        "training": training,
        "round": state.round,
        "best": None if state.best is None else {"round": state.best.round, "score": state.best.score},
        "history": list(state.history),
        "cost": state.cost,
        "faults": list(state.faults),
        **({"fault_counts": state.fault_counts} if state.fault_counts else {}),
        **({} if world is None else {"world": world}),
        **({} if parts is None else {"parts": parts}),
        "digest": digest(tensors),
    }
    return save(tensors, {"acclimate": json.dumps({**meta, "seal": _seal(meta)}, sort_keys=True)})


def unpack(path: Path, like: State, training: Sequence[str], world: str | None = None) -> State:
    """The inverse of `pack`, of a state without parts; `read_whole` says what is refused."""
    return state_of(path, *read_whole(path, training, world), like, {})


def read_whole(path: Path, training: Sequence[str], world: str | None) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Metadata and tensors of a checkpoint. `training` holds every name that it may have (Experiment.identities).

    Refuses files that are damaged, of another experiment or other data, or whose tensors or metadata were changed and
    their digests were not. (Files of earlier versions have none of their metadata.)
    """
    meta, tensors = read_tensors(path)
    _check(path, meta, tensors, (STATE_SCHEMA, OLD_STATE_SCHEMA), "remove it to start over")
    with reading(path, "remove it to start over"):
        _of_this(path, meta, training, world)
    return meta, tensors


def _of_this(path: Path, meta: Mapping[str, Any], training: Sequence[str], world: str | None) -> None:
    if meta["training"] not in training:
        raise RunError(
            f"{path} was trained with another configuration ({meta['training']}, this one is {training[0]}); "
            "restore config.json, or start a new run"
        )
    if world is not None and meta.get("world", world) != world:
        raise RunError(
            f"{path} was trained on other data: examples or splits have changed since ({meta['world']}, now {world}); "
            "restore the data, or start a new run"
        )


def state_of(
    path: Path, meta: dict[str, Any], tensors: dict[str, Tensor], like: State, found: Mapping[str, Private]
) -> State:
    """The state that a checkpoint holds; `found` has the private states of those that lie in parts."""
    with reading(path, "remove it to start over"):
        return _state_of(path, meta, tensors, like, found)


def _state_of(
    path: Path, meta: dict[str, Any], tensors: dict[str, Tensor], like: State, found: Mapping[str, Private]
) -> State:
    def own(name: str) -> Private:
        return found[name] if name in found else like.mine.restored(tensors, f"{name}/")

    try:
        tensors = _filled(path, tensors, like)
        server = tree.unflatten(tensors, like.server, "server/")
        mine = own("mine")
        best = None
        if meta["best"] is not None:
            best_server = tree.unflatten(tensors, server, "best_server/")
            best_mine = own("best_mine")
            best = Best(meta["best"]["round"], meta["best"]["score"], best_server, best_mine)
        intake = tree.unflatten(tensors, like.intake, "intake/") if _names(tensors, "intake/") else like.intake
    except ValueError as e:
        raise RunError(f"{path} does not fit this experiment: {e}") from e
    faults = tuple(meta.get("faults", ()))
    counts = meta.get("fault_counts", _counted(faults))
    return State(meta["round"], server, mine, best, tuple(meta["history"]), meta["cost"], faults, counts, intake)


def _filled(path: Path, tensors: Mapping[str, Tensor], like: State) -> dict[str, Tensor]:
    """The tensors of a checkpoint with what the method has added to the server's state since it was written."""
    out = dict(tensors)
    for part, value in like.added.items():
        servers = [s for s in ("server", "best_server") if _names(tensors, f"{s}/") and f"{s}/{part}" not in tensors]
        out |= {f"{s}/{part}": torch.full_like(like.server[part], value, device="cpu") for s in servers}
        if servers:
            log.warning("%s is of an earlier version and lacks '%s': it is filled with %g", path, part, value)
    return out


def _names(tensors: Mapping[str, Tensor], prefix: str) -> bool:
    return any(name.startswith(prefix) for name in tensors)


def _counted(faults: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, int]]:
    """The counts of faults in a file of an earlier version, which held every fault."""
    out: dict[str, dict[str, int]] = {}
    for fault in faults:
        own = out.setdefault(str(fault["client"]), {})
        own[fault["kind"]] = own.get(fault["kind"], 0) + 1
    return out


def pack_traces(traces: Traces, seed: int, round: int) -> bytes:
    """Traces as safetensors named `adapter/stream/trace`; `names` in the metadata holds the three parts of each."""
    names = {
        f"{adapter}/{stream}/{name}": (adapter, stream, name)
        for adapter, streams in traces.items()
        for stream, kept in streams.items()
        for name in kept
    }
    tensors = {key: traces[a][s][name].detach().cpu().contiguous().clone() for key, (a, s, name) in names.items()}
    meta = {"schema": TRACES_SCHEMA, "seed": seed, "round": round, "names": names, "digest": digest(tensors)}
    return save(tensors, {"acclimate": json.dumps({**meta, "seal": _seal(meta)}, sort_keys=True)})


def read_traces(path: Path) -> Traces:
    """The inverse of `pack_traces`: tensors by adapter, stream and name."""
    if not path.exists():
        raise RunError(f"{path} does not exist: a run keeps traces with analysis=true, and writes them at its end")
    meta, tensors = read_tensors(path)
    _check(path, meta, tensors, (TRACES_SCHEMA, OLD_TRACES_SCHEMA), "run again with --overwrite")
    out: Traces = {}
    with reading(path, "run again with --overwrite"):
        for key, (adapter, stream, name) in meta["names"].items():
            out.setdefault(adapter, {}).setdefault(stream, {})[name] = tensors[key]
    return out


def _check(
    path: Path, meta: Mapping[str, Any], tensors: Mapping[str, Tensor], schemas: tuple[str, str], remedy: str
) -> None:
    """Refuse a file of another version, and one whose tensors or metadata do not match their digests."""
    new, old = schemas
    if (schema := meta.get("schema")) not in schemas:
        raise RunError(f"{path}: schema={schema!r} must be '{new}': written by another version")
    unsealed = schema == old and "seal" not in meta
    if meta.get("digest") != digest(tensors) or not (unsealed or meta.get("seal") == _seal(meta)):
        raise RunError(f"{path} is damaged: its content does not match its digest; {remedy}")


def read_tensors(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Metadata and tensors of a file that `pack` or `pack_traces` made, unchecked."""
    try:
        with safe_open(opening.checked(path), framework="pt") as f:
            text = (f.metadata() or {}).get("acclimate", "{}")
            tensors = aligned({name: f.get_tensor(name) for name in f.keys()})  # noqa: SIM118
    except (SafetensorError, opening.FileProblem, OSError, RuntimeError) as e:
        raise RunError(f"{path} is damaged or truncated ({e}); remove it to start the run over") from e
    return object_of(text, str(path)), tensors


def aligned(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors of a file, copied to where torch puts its own.

    In the file they lie at any multiple of 8 bytes, and matrix products of some processors round by where their numbers
    lie, so that what goes on from them would end with other bits.
    """
    return {name: t.clone() for name, t in tensors.items()}


def digest(tensors: Mapping[str, Tensor]) -> str:
    """Of names, types, shapes and numbers."""
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
