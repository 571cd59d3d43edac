"""The messages and metrics of clients as they arrive from nodes: which may count, and why others may not."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from typing import NamedTuple

import torch
from torch import Tensor

from ...core import Fault, Filter, Shards, Tree, Work, Worker, message, tree
from ...core.stream import score
from .checks import examine
from .intake import Intake
from .protocol import NodeAnswer, Parcel, brief, with_empty_groups

HEADER = 512
"""Bytes that a tensor may take on the wire beyond its content: name, shape and type."""
DIGITS = 9
"""The most digits that the number of a client may have."""
MOST = {"accuracy": 1.0, "confidence": 1.0, "ece": 1.0, "loss": 1e30, "n": 1e12}
"""The largest values of metrics. Losses and numbers of samples of all clients are added up, and no sum may overflow."""
LISTED = 3
"""Messages of one answer that nobody asked for and that are named one by one; the others are counted."""
ROUNDING = 1e-4
"""A mean of ones in 32 bits may be a little above 1."""


def read_parcel(parcel: Parcel, like: Tree, client: int, round: int) -> Tree | Fault:
    """The tree of a parcel, or why it cannot be read. A parcel that is too large beside `like` is not opened."""
    limit = tree.nbytes(like) + HEADER * max(len(tree.leaves(like)), 1)
    if parcel.nbytes > limit:
        reason = f"the message has {parcel.nbytes:,} bytes on the wire, expected at most {limit:,}"
        return Fault(round, client, "oversize", reason)
    try:
        return with_empty_groups(parcel.open(), like)
    except Exception as e:  # whatever a reader trips over, it was the sender who wrote it
        return Fault(round, client, "shape", str(e))


NOBODY = message.Partial(torch.zeros(0, dtype=torch.int64), {}, {}, {})
"""A round in which no message counts."""


def of_nobody(expected: Tree, worker: Worker) -> message.Partial:
    """The sums of no messages in the form that messages have, for a round that must take place without any."""
    zeros = worker.read(tree.map(lambda x: torch.zeros(1, *x.shape, dtype=x.dtype), expected))
    one = message.partial(worker.uplink, torch.zeros(1, dtype=torch.int64), zeros)
    return one.of(slice(0))._replace(sums=tree.zeros(one.sums), weights=tree.zeros(one.weights))


class RoundMessages:
    """The messages that have come in one round so far.

    A message is compared with an `expected` one as it was sent. Then it is decoded, once, and the decoded message is
    checked against the method's rules: the bytes of a codec may be in order and still mean values that may not count.
    """

    def __init__(self, round: int, expected: Tree, worker: Worker, intake: Intake, down: Tree) -> None:
        self.round, self._expected, self._worker, self._rules = round, expected, worker, worker.uplink
        self._intake, self.down = intake, down
        self.decoded: dict[int, Tree] = {}
        """The messages that count, by client: decoded, with a leading axis of one client."""
        self.faults: dict[int, Fault] = {}
        """Why the message of a client does not count."""
        self.refused: list[Fault] = []
        """Messages that came besides one that counts: duplicates, and answers of clients that were not asked."""
        self.struck: set[int] = set()
        """Clients whose node sent what no honest node sends."""

    def absent(self, clients: Iterable[int], kind: str, reason: str) -> None:
        """Note clients that sent nothing."""
        for c in clients:
            self.faults[c] = Fault(self.round, c, kind, brief(reason))

    def take(self, answer: NodeAnswer, asked: list[int]) -> None:
        """Take the messages of one node's answer that may count."""
        self._note_absent(answer, asked)
        strange, sender = 0, min(asked, default=-1)
        for name, parcel in answer.parcels.items():
            client = client_of(name)
            strange += client not in asked
            if client not in asked and strange > LISTED:
                continue
            found = self._decode(parcel, client, asked, answer.fields.get("round"))
            if not isinstance(found, Fault):
                self.decoded[client] = found
                self.faults.pop(client, None)
                continue
            # whoever a message says it is of: the node that sent it answers for it
            found = found._replace(reason=brief(found.reason), client=client if client in asked else sender)
            self.struck |= {client} if client in asked else set(asked)
            if client in asked and client not in self.decoded:
                self.faults[client] = found
            else:
                self.refused.append(found)
        if strange > LISTED:
            more = f"{strange - LISTED:,} more messages for which nobody asked its node"
            self.refused.append(Fault(self.round, sender, "flood", more))

    def judge(self) -> None:
        """Refuse messages that are far beyond what the others of this round and of earlier ones are like."""
        for c, reason in self._intake.far_off(self.decoded).items():
            del self.decoded[c]
            self.struck.add(c)
            self.faults[c] = Fault(self.round, c, "norm", reason)

    def bounded(self, clients: list[int]) -> dict[int, Tree]:
        """The messages of these clients, in this order, as they may be combined: see `Intake.bounded`."""
        return self._intake.bounded({c: self.decoded[c] for c in clients})

    def combined(self, messages: Mapping[int, Tree]) -> message.Partial:
        """Messages, combined in their order: the result does not depend on who was quicker."""
        part = NOBODY
        for c, up in messages.items():
            one = message.partial(self._rules, torch.tensor([c]), up)
            part = one if part is NOBODY else message.combine(part, one)
        return part

    def _note_absent(self, answer: NodeAnswer, asked: list[int]) -> None:
        failed = answer.fields.get("failed", {})
        for c in asked:
            if answer.error is not None:
                self.absent([c], answer.kind, answer.error)
            elif str(c) in failed:
                self.absent([c], *failed[str(c)])
            elif f"up.{c}" not in answer.parcels:
                self.absent([c], "groups", "the answer holds no message of this client")

    def _decode(self, parcel: Parcel, client: int, asked: list[int], sent_round: int | None) -> Tree | Fault:
        """A client's message, decoded, or why it may not count."""
        round = self.round
        if client in self.decoded:  # before the look at `asked`: this is the truer reason
            return Fault(round, client, "duplicate", f"client {client} was already counted in round {round}")
        if client not in asked:
            return Fault(round, client, "error", f"this node was not asked for client {client}")
        up = read_parcel(parcel, self._expected, client, round)
        if isinstance(up, Fault):
            return up
        sent = -1 if sent_round is None else sent_round
        if fault := examine(up, self._expected, client=client, round=round, sent_round=sent, seen=self.decoded):
            return fault
        try:
            decoded = self._worker.read(tree.map(lambda x: x[None], up))
            alone = tree.take(decoded, 0)
        except Exception as e:
            return Fault(round, client, "shape", f"the message cannot be decoded: {e}")
        if fault := examine(alone, None, client=client, round=round, rules=self._rules):
            return fault
        if reason := self._intake.beyond(alone, client, round, self.down):
            return Fault(round, client, "range", reason)
        return decoded


class OpenRound(NamedTuple):
    """A round whose messages were combined, and of which the server has made nothing yet."""

    messages: dict[int, Tree]
    arrived: RoundMessages
    versions: Tensor
    """The versions of private states before it."""


def client_of(name: str) -> int:
    """The client whose message a parcel of this name is; -1 where its name is no such name."""
    digits = name.removeprefix("up.")
    valid = digits != name and digits.isascii() and digits.isdecimal() and len(digits) <= DIGITS
    return int(digits) if valid else -1


def metrics_of(parcel: Parcel | None, client: int, round: int) -> Tree | Fault:
    """The metrics of a client's test, or why they may not count. Within their ranges they are believed."""
    if parcel is None:
        return Fault(round, client, "groups", "the answer holds no metrics of this client")
    like = score(torch.zeros(1, 2), torch.zeros(1, dtype=torch.int64), torch.ones(()))
    found = read_parcel(parcel, like, client, round)
    if isinstance(found, Fault):
        return found
    return examine(found, like, client=client, round=round) or _out_of_range(found, client, round) or found


def _out_of_range(metrics: Tree, client: int, round: int) -> Fault | None:
    for name, value in tree.flatten(metrics).items():
        most = MOST[name]
        if not 0 <= float(value) <= most + ROUNDING:
            return Fault(round, client, "error", f"{name}={float(value):g} must be between 0 and {most:g}")
    return None


def expected_message(worker: Worker, like: Shards) -> Tree:
    """The form of one client's message (meta tensors), from one batch of zeros: messages are compared with it."""
    worker = replace(worker, filters=without_secrets(worker.filters))
    works = [w for w in vars(worker.method).values() if isinstance(w, Work)]
    count = max([w.batch for w in works], default=1)
    x = torch.zeros(count, *like.x.shape[1:], dtype=like.x.dtype)
    zero, rows = torch.zeros((), dtype=torch.int64), torch.arange(count)
    one = Shards(x, torch.zeros(count, dtype=torch.int64), rows[None], torch.tensor([count]))
    server = worker.method.init_server(worker.task, like.clients, worker.key("init"))
    down = worker.outgoing(worker.method.download(worker.task, server), torch.arange(like.clients))
    up, _, _ = worker.train(down, worker.start(0), one.tree(rows, one.n[0], zero, zero, ragged=False))
    meta: Tree = tree.map(lambda t: torch.empty_like(t, device="meta"), up)
    return meta


def without_secrets(filters: Sequence[Filter]) -> tuple[Filter, ...]:
    """The filters as simulations have them: messages have the same form, and the server must not have the secret."""
    named = [{f.name: "" for f in fields(one) if f.name == "secret"} for one in filters]
    return tuple(replace(one, **none) if none else one for one, none in zip(filters, named, strict=True))
