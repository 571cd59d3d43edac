"""What a server's records make of its clients: the same when they are written, after a restart, and in a replay."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, TypeAlias

import torch

from ..live import Answer, Live
from ..store import RunError
from . import records, segments
from .host import Host
from .log import SCHEMA, Record
from .records import Ask

REMEMBERED = 10_000
"""Requests, of all clients together, whose answers are kept for those who ask again."""
ACTS = ("freeze", "unfreeze", "reset", "restore")
Steps: TypeAlias = int | Mapping[str, int] | None
"""The step to restore: one for all that are named, or one for each client, by its number as text."""


class Conflict(ValueError):
    """A request's id was used for other samples."""

    def __init__(self, id: str) -> None:
        super().__init__(f"id={id!r} was used for other samples; give every request an id of its own")


class Known(NamedTuple):
    """A request that was answered, and where in the log its answer is."""

    position: int
    fingerprint: bytes


class Ledger:
    """A host, and the requests of late that it answered; the answers themselves stay in the log."""

    def __init__(self, host: Host, remember: int = REMEMBERED, log: Path = Path()) -> None:
        self.host, self.remember, self.log = host, remember, log
        self.known: OrderedDict[tuple[int, str], Known] = OrderedDict()

    def apply(self, record: Record) -> bool:
        """Do what a record says; False where the answers are not those that went out, bit for bit."""
        head, same = record.head, True
        if head["kind"] == "start":
            if head["schema"] != SCHEMA:
                raise RunError(f"the log has schema={head['schema']!r}, which must be '{SCHEMA}'; take that version's")
            if head["device"] == "cpu":
                torch.set_num_threads(head["threads"])  # sums over more threads have other bits
        if head["kind"] == "step":
            done = self.host.compute(records.calls(record))
            self.host.keep(done)
            same = torch.equal(torch.cat([a.probabilities for a in done.answers]), record.tensors["probabilities"])
        elif head["kind"] == "act":
            for live in self.acted(head["act"], head["clients"], head["step"]):
                self.host.put(live)
        self.memorise(record)
        return same

    def memorise(self, record: Record) -> None:
        """Keep a record's answers for those who ask again, and for labels that come later."""
        if record.head["kind"] == "step":
            for given in records.answers(record, self.host.shells[0].classes):
                self.host.shells[self.host.row(given.client)].remember(given.answer.ids, given.chosen, given.plain)
                self.keep(record.position, Ask(given.client, given.id, given.x))
        elif record.head["kind"] == "labels":
            shell = self.host.shells[self.host.row(record.head["client"])]
            shell.labelled = list(record.head["labelled"])
            for name in record.head["ids"]:
                shell.recent.pop(name, None)

    def keep(self, position: int, ask: Ask) -> None:
        """Remember a request whose answer goes out; the oldest makes room."""
        name = ask.id or f"\0{position}"  # one without an id cannot be asked for, but its samples can be labelled
        self.known[ask.client, name] = Known(position, records.fingerprint(ask.x))
        self.known.move_to_end((ask.client, name))  # an id that was forgotten may have been used again
        while len(self.known) > self.remember:
            self.known.popitem(last=False)

    def forget(self) -> None:
        """Take no labels for answers of which it is not known whether theirs came: those from before some record."""
        for shell in self.host.shells:
            shell.recent = OrderedDict()

    def again(self, ask: Ask) -> Answer | None:
        """The answer that this request had, where it came before."""
        found = self.known.get((ask.client, ask.id)) if ask.id else None
        if found is not None and found.fingerprint != records.fingerprint(ask.x):
            raise Conflict(ask.id)
        if found is None:
            return None
        record = next(segments.read(self.log, found.position))
        given = records.answers(record, self.host.shells[0].classes)
        return next(g.answer for g in given if (g.client, g.id) == (ask.client, ask.id))

    def acted(self, act: str, clients: Sequence[int], step: Steps) -> list[Live]:
        """Copies of clients' live models after an administrative act, to be put in place."""
        if act not in ACTS:
            raise ValueError(f"act={act!r} must be one of {', '.join(ACTS)}")
        steps = {c: step.get(str(c)) if isinstance(step, Mapping) else step for c in clients}
        for wrong in (
            v for v in steps.values() if act == "restore" and (not isinstance(v, int) or isinstance(v, bool))
        ):
            raise ValueError(f"restore: step={wrong!r:.60} must be the number of a step that is kept")
        found = [self.host.live(client) for client in clients]
        for live in found:
            if act in ("freeze", "unfreeze"):
                live.freeze(act == "freeze")
            elif act == "reset":
                live.reset()
            else:
                _restored(live, steps[live.client])
        return found


def _restored(live: Live, step: int | None) -> None:
    try:
        live.restore(step)  # type: ignore[arg-type]
    except ValueError as e:
        raise ValueError(f"client {live.client}: {e}") from None
