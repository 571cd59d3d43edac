"""A host whose steps survive: each is in the log, on the disk, before its answers go out.

The state is that of the last checkpoint and of the log's records after it, computed again by the same function in the
same groups, so that it has the same bits. A request that comes again with its id gets the answer that it had.
"""

from __future__ import annotations

import logging
import platform
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from .. import store
from ..core import Tree
from ..live import Answer
from . import checkpoint, records
from .host import Call, Host
from .ledger import REMEMBERED, Ledger, Steps
from .log import NOTHING, SCHEMA
from .records import Ask
from .segments import Log, Segment, segments
from .segments import at as segment_at

log = logging.getLogger("acclimate.serving")


@dataclass(frozen=True)
class Keeping:
    """What is written down, how often, and how much of it is kept."""

    checkpoint_s: float = 60.0
    """Seconds between checkpoints of all states."""
    segment: int = 64 << 20
    """Bytes of a segment of the log, after which a checkpoint is written and a new one begins."""
    segments: int = 0
    """Segments that are kept, the last one included; 0 for all."""
    remember: int = REMEMBERED
    """Requests whose answers are kept for those who ask again."""


class Service:
    """A host, its log and its checkpoints. Not for several threads at once."""

    def __init__(self, host: Host, folder: Path, keeping: Keeping = Keeping()) -> None:
        self.host, self.folder, self.keeping = host, folder, keeping
        self.log = Log(folder / checkpoint.LOG)
        self.ledger = Ledger(host, keeping.remember, self.log.folder)
        self.steps = self.requests = 0
        """What came since this process began."""
        self._due, self._marked, self._most = time.monotonic() + keeping.checkpoint_s, -1, keeping.segment
        try:
            threads = torch.get_num_threads()
            try:
                self._recover()
            finally:
                torch.set_num_threads(threads)
            self.log.append({"kind": "start", "schema": SCHEMA, **_origin(host)})
        except BaseException:
            self.log.close()
            raise

    def _recover(self) -> None:
        """Load the last checkpoint and do what came after it again."""
        first = next(iter(segments(self.log.folder)), Segment(0, self.log.folder))
        saved = checkpoint.load(self.folder / checkpoint.STATES, self.host)
        if first.start and (saved is None or saved["position"] < first.start):  # what was between is deleted
            saved = checkpoint.load(first.states, self.host)
        position, chain, start = 0, NOTHING, 0
        if saved is not None:
            position, chain, start = saved["position"], bytes.fromhex(saved["chain"]), max(saved["since"], first.start)
            torch.set_num_threads(saved["threads"])
        self.log.digest = chain
        if start:
            self.ledger.forget()
        other = 0
        for record in self.log.records(start, {0: NOTHING, position: chain}.get(start), position):
            if record.position >= position:
                other += not self.ledger.apply(record)
            elif record.end > position or (record.end == position and record.digest != chain):
                raise store.RunError(f"{self.log.folder} is not the log that {self.folder} was written with")
            else:
                self.ledger.memorise(record)
        if other:
            log.warning("%d steps since the last checkpoint gave other bits than went out: is torch another?", other)

    def answer(self, asks: Sequence[Ask]) -> list[Answer]:
        """Answer one request of each of several clients; what is new is on the disk when it returns."""
        old = [self.ledger.again(ask) for ask in asks]
        fresh = iter(self._step([ask for ask, known in zip(asks, old, strict=True) if known is None]))
        answers = [next(fresh) if known is None else known for known in old]
        if time.monotonic() > self._due or self.log.size >= self._most:
            self._tidy()
        return answers

    def _step(self, asks: Sequence[Ask]) -> list[Answer]:
        """Compute the answers, write them down, and keep what they change. A request to which the model has no finite
        answer leaves nothing behind: the others are computed as if it had not come."""
        if not asks:
            return []
        done = self.host.compute([Call(ask.client, ask.x) for ask in asks])
        sound = [bool(torch.isfinite(answer.probabilities).all()) for answer in done.answers]
        if not all(sound):
            others = iter(self._step([ask for ask, good in zip(asks, sound, strict=True) if good]))
            return [next(others) if good else done.answers[i] for i, good in enumerate(sound)]
        position = self.log.append(*records.step(asks, done))
        self.host.keep(done)
        for ask in asks:
            self.ledger.keep(position, ask)
        self.steps, self.requests = self.steps + 1, self.requests + len(asks)
        return done.answers

    def act(self, act: str, clients: Sequence[int], step: Steps = None) -> list[dict[str, Any]]:
        """Freeze, unfreeze, reset or restore clients: all of them or, on an error, none."""
        changed = self.ledger.acted(act, clients, step)
        self.log.append({"kind": "act", "act": act, "clients": list(clients), "step": step})
        for live in changed:
            self.host.put(live)
        return [{"client": live.client, "step": live.step, "frozen": live.frozen} for live in changed]

    def feedback(self, client: int, ids: Sequence[str], labels: Sequence[int | str]) -> dict[str, float | int]:
        """Labels that come late, by class name or number: what was measured so far."""
        row = self.host.row(client)
        before = self.host.shells[row]
        shell = replace(before, recent=before.recent.copy())
        measured = shell.feedback(ids, labels)
        given = [label if isinstance(label, str) else int(label) for label in labels]
        head = {"kind": "labels", "client": client, "ids": list(ids), "labels": given}
        self.log.append({**head, "labelled": shell.labelled})
        self.host.shells[row] = shell
        return measured

    def digests(self) -> dict[int, str]:
        """The digest of every client's state."""
        return {client: self.host.digest(client) for client in self.host.clients}

    def checkpoint(self) -> dict[int, str]:
        """Write down all states, so that a start does not compute what came before again; their digests."""
        digests = self.digests()
        if self.log.end == self._marked:
            return digests
        self.log.append({"kind": "mark", "digests": {str(c): d for c, d in digests.items()}})
        checkpoint.save(self.folder / checkpoint.STATES, self.host, digests, self.log, self._since())
        self._marked = self.log.end
        return digests

    def _since(self) -> int:
        """The byte of the log from which on requests' ids are known."""
        return next(iter(self.ledger.known.values())).position if self.ledger.known else self.log.end

    def rotate(self) -> None:
        """Write a checkpoint and begin a new segment of the log; where not all are kept, delete the oldest."""
        digests = self.checkpoint()
        if self.keeping.segments:  # what a replay begins with when the segments before are gone
            states = segment_at(self.log.folder, self.log.end).states
            checkpoint.save(states, self.host, digests, self.log, self._since())
        self.log.rotate()
        if self.keeping.segments:
            self.log.prune(self.keeping.segments, self._since())

    def _tidy(self) -> None:
        """Write a checkpoint, and begin a new segment where the last is full; where that fails, the log has all."""
        began, full = time.monotonic(), self.log.size >= self._most
        self._most = self.log.size + self.keeping.segment  # where it fails, the next try is after as much again
        try:
            self.rotate() if full else self.checkpoint()
            self._most = self.keeping.segment
        except Exception as e:  # whatever it is: the step is done, and must not look as if it had failed
            log.warning("no checkpoint: %s", str(e) or type(e).__name__)
        ended = time.monotonic()
        self._due = ended + max(self.keeping.checkpoint_s, 20 * (ended - began))

    def close(self) -> dict[int, str]:
        """Write a last checkpoint and let another process go on; the digest of every client's state."""
        try:
            return self.checkpoint()
        except (store.RunError, OSError) as e:  # the log has all: a start computes it again
            log.warning("no last checkpoint: %s", e)
            return self.digests()
        finally:
            self.log.close()


def _origin(host: Host) -> Tree:
    """What bits depend on besides the log."""
    about = {"torch": torch.__version__, "machine": platform.machine(), "threads": torch.get_num_threads()}
    return {**about, "device": host.device.type, "clients": host.clients}
