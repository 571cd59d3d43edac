"""A host whose steps survive: each is in the log, on the disk, before its answers go out.

The state is that of the last checkpoint and of the log's records after it, computed again by the same function in the
same groups, so that it has the same bits. A request that comes again with its id gets the answer that it had.
"""

from __future__ import annotations

import logging
import platform
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from .. import store
from ..core import Tree
from ..live import Answer
from . import checkpoint, records
from .host import Call, Host
from .ledger import REMEMBERED, Ledger
from .log import SCHEMA, Log
from .records import Ask

log = logging.getLogger("acclimate.serving")


class Service:
    """A host, its log and its checkpoints. Not for several threads at once."""

    def __init__(self, host: Host, folder: Path, remember: int = REMEMBERED, checkpoint_s: float = 60.0) -> None:
        self.host, self.folder, self.checkpoint_s = host, folder, checkpoint_s
        self.ledger = Ledger(host, remember)
        self.log = Log(folder / checkpoint.LOG)
        self.steps = self.requests = 0
        """What came since this process began."""
        self._due, self._marked = time.monotonic() + checkpoint_s, -1
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
        saved = checkpoint.load(self.folder, self.host)
        if saved is not None:
            self.log.digest = bytes.fromhex(saved["chain"])
            torch.set_num_threads(saved["threads"])
        position = saved["position"] if saved is not None else 0
        for record in self.log.records(saved["since"] if saved is not None else 0):
            if record.position >= position:
                self.ledger.apply(record)
                continue
            self.ledger.memorise(record)
            if saved is not None and record.end == position and record.digest.hex() != saved["chain"]:
                raise store.RunError(f"{self.log.path} is not the log that {self.folder} was written with")

    def answer(self, asks: Sequence[Ask]) -> list[Answer]:
        """Answer one request of each of several clients; what is new is on the disk when it returns."""
        old = [self.ledger.again(ask) for ask in asks]
        new = [ask for ask, known in zip(asks, old, strict=True) if known is None]
        if new:
            done = self.host.compute([Call(ask.client, ask.x) for ask in new])
            position = self.log.append(*records.step(new, done))
            self.host.keep(done)
            for ask, answer in zip(new, done.answers, strict=True):
                self.ledger.keep(position, ask, answer)
            self.steps, self.requests = self.steps + 1, self.requests + len(new)
        fresh = iter(done.answers if new else ())
        answers = [next(fresh) if known is None else known for known in old]
        if time.monotonic() > self._due:
            self._checkpoint_when_due()
        return answers

    def act(self, act: str, clients: Sequence[int], step: int | None = None) -> list[dict[str, Any]]:
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
        head = {"kind": "labels", "client": client, "ids": list(ids), "labels": list(labels)}
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
        since = next(iter(self.ledger.known.values())).position if self.ledger.known else self.log.end
        checkpoint.save(self.folder, self.host, digests, self.log, since)
        self._marked = self.log.end
        return digests

    def _checkpoint_when_due(self) -> None:
        began = time.monotonic()
        try:
            self.checkpoint()
        except store.RunError as e:  # the log has all: serving goes on
            log.warning("no checkpoint: %s", e)
        ended = time.monotonic()
        self._due = ended + max(self.checkpoint_s, 20 * (ended - began))

    def close(self) -> dict[int, str]:
        """Write a last checkpoint and let another process go on; the digest of every client's state."""
        try:
            return self.checkpoint()
        finally:
            self.log.close()


def _origin(host: Host) -> Tree:
    """What bits depend on besides the log."""
    about = {"torch": torch.__version__, "machine": platform.machine(), "threads": torch.get_num_threads()}
    return {**about, "device": host.device.type, "clients": host.clients}
