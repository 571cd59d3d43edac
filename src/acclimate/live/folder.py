"""A live model on disk: a card (JSON) that names two files of tensors by their content, so that it is whole or absent.

The deployed model is written once. What adaptation changed is a file of its own, which a save replaces: the card is
renamed into place last, and what it no longer names is deleted after that.
"""

from __future__ import annotations

import hashlib
import json
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

from .. import store
from ..core import Task, Tree, Worker, tree
from ..experiment import dumps, loads
from . import session
from .model import SNAPSHOTS, WINDOW, Live

SCHEMA, CARD = "acclimate.live/1", "live.json"
JOINED, JOINED_CARD, JOINED_TENSORS = "acclimate.joined/1", "joined.json", "model.safetensors"
"""What earlier versions wrote for a client that joined."""


def save(live: Live, folder: Path, overwrite: bool = False) -> Path:
    """Write a live model; what was there before is whole until the new one is."""
    if not overwrite and any((folder / name).exists() for name in (CARD, JOINED_CARD)):
        raise store.RunError(f"{folder} holds a live model; pass overwrite, or choose another folder")
    task = live.worker.task
    trees = {"session": live.session, "snapshots": {str(step): s for step, s in live.snapshots}}
    files = {"model": _write(folder, "model", live.model), "state": _write(folder, "state", trees)}
    card = {
        "schema": SCHEMA,
        "client": live.client,
        "classes": list(live.classes),
        "task": {"shape": list(task.shape), "mean": list(task.mean), "std": list(task.std)},
        "dtype": str(live.dtype).removeprefix("torch."),
        "frozen": live.frozen,
        "prepared": live.prepared,
        "labelled": live.labelled,
        "record": live.record,
        "files": files,
        "config": json.loads(dumps(live.experiment)),
    }
    store.write(folder / CARD, store.json_text(card, indent=1) + "\n")
    named = {f["name"] for f in files.values()}
    for old in [*folder.glob("model-*.safetensors"), *folder.glob("state-*.safetensors")]:
        if old.name not in named:
            old.unlink(missing_ok=True)
    return folder


def _write(folder: Path, word: str, trees: Tree) -> dict[str, Any]:
    flat = {k: v.detach().cpu().contiguous().clone() for k, v in tree.flatten(trees).items()}
    raw = save_tensors(flat)
    digest = hashlib.sha256(raw).hexdigest()
    path = folder / f"{word}-{digest[:16]}.safetensors"
    if not path.exists():
        store.write(path, raw)
    return {"name": path.name, "sha256": digest, "outline": _outline(trees)}


def load_live(path: str | Path, **given: Any) -> Live:
    """A live model from its folder, or a client that joined with an earlier version.

    `given` supplies Python objects that JSON cannot hold, such as `model`.
    """
    folder = Path(path)
    if not (folder / CARD).exists() and (folder / JOINED_CARD).exists():
        return _joined(folder, given)
    card = store.read_json(folder / CARD)
    if card.get("schema") != SCHEMA:
        raise store.RunError(
            f"{folder / CARD}: schema={card.get('schema')!r} must be '{SCHEMA}'; it is of another version of acclimate"
        )
    try:
        model, trees = (_read(folder, card["files"][word]) for word in ("model", "state"))
        experiment, worker = _worker(card, given)
        ring = deque(((int(k), v) for k, v in trees["snapshots"].items()), maxlen=SNAPSHOTS)
        about = (experiment, worker, tuple(card["classes"]), card["client"], model, trees["session"], card["record"])
        rest = (card["frozen"], card["prepared"], getattr(torch, card["dtype"]), ring)
        return Live(*about, *rest, labelled=list(card["labelled"]))
    except (KeyError, TypeError, AttributeError) as e:
        raise store.RunError(f"{folder / CARD} is damaged: {type(e).__name__} {e}; deploy again") from e


def _worker(card: Mapping[str, Any], given: Mapping[str, Any]) -> tuple[Any, Worker]:
    e, about = loads(json.dumps(card["config"]), **given), card["task"]
    task = Task(e.model, tuple(about["shape"]), len(card["classes"]), tuple(about["mean"]), tuple(about["std"]))
    return e, Worker(task, e.method, (), e.seed)


def _joined(folder: Path, given: Mapping[str, Any]) -> Live:
    """A client that joined with an earlier version: frozen, as it was."""
    card = store.read_json(folder / JOINED_CARD)
    if card.get("schema") != JOINED:
        raise store.RunError(f"{folder / JOINED_CARD}: schema={card.get('schema')!r} must be '{JOINED}'")
    trees = _read(folder, {"name": JOINED_TENSORS, "sha256": card["sha256"], "outline": card["outline"]})
    experiment, worker = _worker(card, given)
    start = session.begin(worker.task, experiment.adapters[0], trees["model"], WINDOW, torch.uint8)
    now = {**start, "adapter": trees["state"]}
    about = (experiment, worker, tuple(card["classes"]), card["client"], trees["model"], now, card["record"])
    return Live(*about, frozen=True, prepared=True)


def _read(folder: Path, file: Mapping[str, Any]) -> Tree:
    path = folder / file["name"]
    try:
        raw = path.read_bytes()
        if hashlib.sha256(raw).hexdigest() != file["sha256"]:
            raise store.RunError(f"{path} is damaged: its content does not match the card beside it; deploy again")
        filled: Tree = _filled(file["outline"], load_tensors(raw))
        return filled
    except (SafetensorError, OSError, KeyError) as e:
        raise store.RunError(f"{path} is damaged or missing ({e}); deploy again") from e


def _outline(a: Any) -> Any:
    """The names of a tree without its tensors: empty dicts stay, which flat names would lose."""
    return {k: _outline(v) for k, v in a.items()} if isinstance(a, Mapping) else None


def _filled(outline: Any, tensors: Mapping[str, Tensor], prefix: str = "") -> Any:
    if outline is None:
        return tensors[prefix.removesuffix("/")]
    return {k: _filled(v, tensors, f"{prefix}{k}/") for k, v in outline.items()}
