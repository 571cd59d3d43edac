"""Checkpoints of very many clients: rows of those who changed since the last one, in files beside the state.

`state.safetensors` then names its parts, oldest first, with their digests; the rows of a later part take the place of
those before. So a checkpoint costs what changed. When the parts hold twice as many rows as there are clients with rows
of their own, one new part takes the place of all. The last checkpoint of a run is a single file again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from safetensors.torch import save
from torch import Tensor

from ..core import Private, State, tree
from ..core.private import IDS, ROWS
from .files import RunError, write
from .tensors import digest, pack, read_tensors, read_whole, state_of

FOLDER = "parts"


@dataclass
class Parts:
    """The parts of the last checkpoint in a run folder, and which versions of the private states they lead to."""

    state: Path
    names: list[str] = field(default_factory=list)
    """File names, each the number of the part and the start of its digest."""
    rows: list[int] = field(default_factory=list)
    """How many rows each part has."""
    versions: dict[int, Private] = field(default_factory=dict)
    """What so many parts lead to: the states of the best round and of the last."""

    def checkpoint(self, state: State, training: str, world: str | None) -> None:
        """Write what changed, then the state, and remove parts that it no longer names."""
        before = set(self.names)
        ends: dict[str, int] = {}
        if sum(self.rows) > 2 * len(state.mine.changed(None)):
            self.names, self.rows, self.versions = [], [], {}
        if state.best is not None:
            ends["best_mine"] = self._append(state.best.mine, state.round)
        ends["mine"] = self._append(state.mine, state.round)
        self.versions = {ends[name]: own for name, own in self._held(state).items()}
        lists = {name: self.names[:end] for name, end in ends.items()}
        write(self.state, pack(state, training, world, lists))
        for name in before - set(self.names):
            (self.state.parent / FOLDER / name).unlink(missing_ok=True)

    @staticmethod
    def _held(state: State) -> dict[str, Private]:
        return {**({} if state.best is None else {"best_mine": state.best.mine}), "mine": state.mine}

    def _append(self, version: Private, round: int) -> int:
        """The number of parts that lead to this version, the last of which may be new."""
        for end, known in self.versions.items():
            if known is version:
                return end
        ids = version.changed(self.versions.get(len(self.names)))
        tensors = {k: v.cpu().contiguous() for k, v in tree.flatten({IDS: ids, ROWS: version.take(ids)}).items()}
        name = f"{round:06d}-{len(self.names):04d}-{digest(tensors)[:16]}.safetensors"
        folder = self.state.parent / FOLDER
        folder.mkdir(exist_ok=True)
        write(folder / name, save(tensors))
        self.names.append(name)
        self.rows.append(len(ids))
        self.versions[len(self.names)] = version
        return len(self.names)

    def restore(self, like: State, training: Sequence[str], world: str | None) -> State:
        """The last checkpoint; the next one goes on from its parts."""
        meta, tensors = read_whole(self.state, training, world)
        lists: dict[str, list[str]] = meta.get("parts", {})
        self.names, self.rows, self.versions = list(lists.get("mine", ())), [], {}
        mine, ends = like.mine, {len(own) for own in lists.values()}
        for end, name in enumerate(self.names, 1):
            part = self.read(name)
            mine = mine.restored(part, "")
            self.rows.append(len(part[IDS]))
            if end in ends:
                self.versions[end] = mine
        found = {name: self.versions[len(own)] for name, own in lists.items()}
        return state_of(self.state, meta, tensors, like, found)

    def read(self, name: str) -> dict[str, Tensor]:
        """The clients and rows of a part; an error where its content is not what its name says."""
        path = self.state.parent / FOLDER / name
        _, tensors = read_tensors(path)
        if IDS not in tensors or digest(tensors)[:16] != path.stem.rpartition("-")[2]:
            raise RunError(f"{path} is damaged: its content does not match its name; remove {self.state} to start over")
        return tensors

    def clear(self) -> None:
        """Remove all parts, and what a process that was killed while it wrote one left of it."""
        folder = self.state.parent / FOLDER
        for part in folder.glob("*.safetensors*") if folder.exists() else ():
            part.unlink()
        if folder.exists():
            folder.rmdir()
        self.names, self.rows, self.versions = [], [], {}
