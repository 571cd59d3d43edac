"""What a node keeps and never sends: the private states of its clients, by version, and their live models.

Files are safetensors, written atomically. A version is the number of the round after which a state was made; 0 is the
state before the first round, which needs no file. Older versions are kept as long as the server may come back to them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from ..backends.flower.protocol import branches, rebuilt
from ..core import Tree, tree
from ..live import Live
from ..store import write
from .places import deployed_folder

Memory = dict[int, tuple[int, Tree]]
"""The newest private state of each client and its version, in memory, which saves reading files."""
MODELS_KEPT = 3
"""Sets of live models that a node keeps per run: validation makes a new one every time."""


class LostState(RuntimeError):
    """A private state that should be at this node is not there."""


def safe(what: str, name: str) -> str:
    """A name that the server sent, as a folder's name: the server does not choose where a node writes."""
    if not (name.isascii() and name.isalnum()) or len(name) > 64:
        raise ValueError(f"{what}='{name}' must be up to 64 letters and digits")
    return name


def write_tree(path: Path, value: Tree) -> None:
    """Write a tree to a file that its owner alone can read: a private state, or a client's live model."""
    flat = {k: v.detach().cpu().contiguous().clone() for k, v in tree.flatten(value).items()}
    write(path, save(flat, {"acclimate": json.dumps(branches(value))}), mode=0o600)


def read_tree(path: Path) -> Tree:
    """The inverse of `write_tree`."""
    try:
        with safe_open(path, framework="pt") as f:
            shape: Any = json.loads((f.metadata() or {})["acclimate"])
            flat = {name: f.get_tensor(name) for name in f.keys()}  # noqa: SIM118
        found: Tree = rebuilt(shape, flat)
        return found
    except (SafetensorError, KeyError, ValueError, OSError) as e:
        raise LostState(f"{path.name} cannot be read: {e}") from e


class Vault:
    """The folder of one run at one node."""

    def __init__(self, folder: Path, memory: Memory | None = None) -> None:
        self.folder = folder
        self.memory: Memory = {} if memory is None else memory

    def _file(self, client: int, version: int) -> Path:
        return self.folder / "mine" / str(client) / f"{version:06d}.safetensors"

    def mine(self, client: int, version: int, fresh: Callable[[int], Tree]) -> Tree:
        """A client's private state of a version; `fresh` makes the one before the first round."""
        if version == 0:
            return fresh(client)
        held = self.memory.get(client)
        if held is not None and held[0] == version:
            return held[1]
        path = self._file(client, version)
        if not path.exists():
            raise LostState(f"the private state of client {client} after round {version - 1} is not at this node")
        return read_tree(path)

    def keep(self, client: int, version: int, mine: Tree, also: Collection[int]) -> None:
        """Store a new version; of the older ones only those in `also` are kept."""
        write_tree(self._file(client, version), mine)
        self.memory[client] = (version, mine)
        wanted = {self._file(client, v).name for v in (version, *also)}
        for path in self._file(client, 0).parent.glob("*.safetensors"):
            if path.name not in wanted:
                path.unlink(missing_ok=True)

    def versions(self, client: int) -> list[int]:
        """The versions that are stored."""
        return sorted(int(p.stem) for p in self._file(client, 0).parent.glob("*.safetensors"))

    def _model(self, name: str, client: int) -> Path:
        return self.folder / "models" / safe("models", name) / f"{client}.safetensors"

    def model(self, name: str, client: int) -> Tree | None:
        """A client's live model, where it was made before."""
        path = self._model(name, client)
        return read_tree(path) if path.exists() else None

    def keep_model(self, name: str, client: int, model: Tree) -> None:
        """Store a live model; the oldest other sets of models are removed, whatever the clock says of this one."""
        path = self._model(name, client)
        write_tree(path, model)
        others = [p for p in (self.folder / "models").iterdir() if p != path.parent]
        for old in sorted(others, key=lambda p: p.stat().st_mtime_ns)[: 1 - MODELS_KEPT]:
            remove(old)

    def _session(self, name: str, client: int, stretch: int) -> Path:
        return self.folder / "sessions" / safe("session", name) / f"{client}-{stretch}.safetensors"

    def session(self, name: str, client: int, stretch: int) -> Tree:
        """What a client that exchanges at test time kept for a stretch of its stream."""
        return read_tree(self._session(name, client, stretch))

    def keep_session(self, name: str, client: int, stretch: int, mine: Tree) -> None:
        """Store it for the next stretch. The one before stays, should the server ask again; other sessions go."""
        path = self._session(name, client, stretch)
        write_tree(path, mine)
        self._session(name, client, stretch - 2).unlink(missing_ok=True)
        for old in path.parent.parent.iterdir():
            if old != path.parent:
                remove(old)


def leave_models(site: Path, models: Sequence[Live], card: dict[str, Any]) -> None:
    """Leave live models where the site's own programs find them, with a card that says what they are."""
    for live in models:
        live.save(deployed_folder(site, live.client), overwrite=True)
    write(site / "deployed" / "card.json", json.dumps(card, indent=2) + "\n")


def remove(folder: Path) -> None:
    """Remove a folder of plain files."""
    for path in folder.iterdir():
        path.unlink(missing_ok=True)
    folder.rmdir()
