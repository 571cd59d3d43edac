"""A live model on disk: a card (JSON) that names files of tensors by their content, so that it is whole or absent.

What does not change is written once. What a save changes is a file of its own: the card is renamed into place last, and
what it no longer names is deleted after that.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

from .. import store
from ..core import Tree, tree
from ..ops import opening

SCHEMA, CARD = "acclimate.live/1", "live.json"
DEFAULT = "live"
"""Where in a run folder live models are written, unless another folder is named."""
JOINED, JOINED_CARD, JOINED_TENSORS = "acclimate.joined/1", "joined.json", "model.safetensors"
"""What earlier versions wrote for a client that joined."""


def write(folder: Path, card: Mapping[str, Any], trees: Mapping[str, Tree], overwrite: bool = False) -> Path:
    """Write a card and the trees that it names; what was there before is whole until the new one is."""
    if not overwrite and any((folder / name).exists() for name in (CARD, JOINED_CARD)):
        raise store.RunError(f"{folder} holds a live model; pass overwrite, or choose another folder")
    if store.holds_run(folder) and not (folder / CARD).exists():  # earlier versions wrote one there
        raise store.RunError(f"{folder} holds a run; choose another folder for the live model")
    with store.locked(folder, "command"):  # another writer would delete files that this card is about to name
        return _whole(folder, card, trees)


def _whole(folder: Path, card: Mapping[str, Any], trees: Mapping[str, Tree]) -> Path:
    files = {word: _write(folder, word, own) for word, own in trees.items()}
    text = store.json_text({"schema": SCHEMA, **card, "files": files}, indent=1) + "\n"
    store.write(folder / CARD, text, mode=0o600)  # it holds a client's samples: for its owner alone
    named = {f["name"] for f in files.values()}
    for old in folder.glob("*-*.safetensors"):
        if old.name not in named:
            old.unlink(missing_ok=True)
    return folder


def _write(folder: Path, word: str, trees: Tree) -> dict[str, Any]:
    flat = {k: v.detach().cpu().contiguous().clone() for k, v in tree.flatten(trees).items()}
    raw = save_tensors(flat)
    digest = hashlib.sha256(raw).hexdigest()
    path = folder / f"{word}-{digest[:16]}.safetensors"
    if not _holds(path, digest):
        store.write(path, raw, mode=0o600)
    return {"name": path.name, "sha256": digest, "outline": _outline(trees)}


def _holds(path: Path, digest: str) -> bool:
    """Whether a file has this content: one that was damaged is written anew."""
    try:
        return hashlib.sha256(opening.content(path)).hexdigest() == digest
    except (opening.FileProblem, OSError):
        return False


def read(folder: Path, file: Mapping[str, Any]) -> Tree:
    """A tree that a card names (`name`, `sha256`, `outline`); an error where it is damaged or missing."""
    path = folder / file["name"]
    try:
        raw = opening.content(path)
        if hashlib.sha256(raw).hexdigest() != file["sha256"]:
            raise store.RunError(f"{path} is damaged: its content does not match the card beside it; deploy again")
        filled: Tree = _filled(file["outline"], store.aligned(load_tensors(raw)))
        return filled
    except (SafetensorError, opening.FileProblem, OSError, KeyError, TypeError, AttributeError, ValueError) as e:
        raise store.RunError(f"{path} is damaged or missing ({e}); deploy again") from e


def _outline(a: Any) -> Any:
    """The names of a tree without its tensors: empty dicts stay, which flat names would lose."""
    return {k: _outline(v) for k, v in a.items()} if isinstance(a, Mapping) else None


def _filled(outline: Any, tensors: Mapping[str, Tensor], prefix: str = "") -> Any:
    if outline is None:
        return tensors[prefix.removesuffix("/")]
    return {k: _filled(v, tensors, f"{prefix}{k}/") for k, v in outline.items()}


def answered(recent: Mapping[str, tuple[int, int]]) -> Tensor:
    """What `Live.recent` holds as a tensor: a sample's number, and the two answers."""
    rows = [[int(name.rpartition("-")[2]), *both] for name, both in recent.items()]
    return torch.tensor(rows, dtype=torch.int64).reshape(-1, 3)


def remembered(client: int, rows: Tensor) -> OrderedDict[str, tuple[int, int]]:
    """`Live.recent` out of what `answered` made of it."""
    return OrderedDict((f"{client}-{number}", (chosen, plain)) for number, chosen, plain in rows.tolist())
