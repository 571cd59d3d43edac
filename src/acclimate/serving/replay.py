"""Replaying a server's log: from the live models that it began with to the states that it ended with, bit for bit."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import torch

from .. import store
from ..live import load_live
from . import checkpoint
from .ledger import Ledger
from .log import NOTHING, Torn
from .segments import Segment, read, segments


@dataclass(frozen=True)
class Replayed:
    """What a log says when it is done again."""

    digests: dict[int, str]
    """Per client, of the state at the end."""
    steps: int
    requests: int
    acts: int
    marks: int
    """How often the server wrote the digests of all states down."""
    other_answers: int
    """Steps whose answers are not those that went out, bit for bit."""
    other_states: int
    """Marks at which a state was not the server's, bit for bit."""
    torn: bool
    """Whether the log ends within a record, which never counted."""

    @property
    def exact(self) -> bool:
        """Whether all was as the server had it."""
        return not self.other_answers and not self.other_states


def replay(path: Path, start: Path | None = None, device: str = "cpu") -> Replayed:
    """Do all that a log says again; `start` holds the live folders that the server began with (default: beside it)."""
    path = path / checkpoint.LOG if (path / checkpoint.LOG).exists() else path
    if path.is_file():
        raise store.RunError(
            f"{path} is a file, and must be a folder of segments; another version of acclimate wrote it"
        )
    if not (kept := segments(path)):
        raise store.RunError(f"{path} holds no log; give a server's folder, or the log in it")
    lives = checkpoint.started(path.parent) if start is None else [load_live(f) for f in checkpoint.found([start])]
    threads = torch.get_num_threads()
    try:
        return _replayed(path, kept[0], Ledger(checkpoint.on(lives, device)))
    finally:
        torch.set_num_threads(threads)


def _replayed(path: Path, first: Segment, ledger: Ledger) -> Replayed:
    """From the first segment on: where those before are deleted, from the states that were kept with it."""
    counts, before = Counter[str](), NOTHING
    if first.start:
        about = checkpoint.load(first.states, ledger.host)
        if about is None:
            raise store.RunError(f"{path} begins at byte {first.start} without {first.states.name}; bring it back")
        torch.set_num_threads(about["threads"])
        before = bytes.fromhex(about["chain"])
    try:
        for record in read(path, None, before):
            head = record.head
            counts[head["kind"]] += 1
            counts["requests"] += len(head.get("requests", ()))
            counts["other answers"] += not ledger.apply(record)
            if head["kind"] == "mark":
                counts["other states"] += head["digests"] != {str(c): d for c, d in _digests(ledger).items()}
    except Torn:
        counts["torn"] = 1
    return Replayed(
        digests=_digests(ledger),
        steps=counts["step"],
        requests=counts["requests"],
        acts=counts["act"] + counts["labels"],
        marks=counts["mark"],
        other_answers=counts["other answers"],
        other_states=counts["other states"],
        torn=bool(counts["torn"]),
    )


def _digests(ledger: Ledger) -> dict[int, str]:
    return {client: ledger.host.digest(client) for client in ledger.host.clients}
