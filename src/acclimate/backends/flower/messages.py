"""The messages of a round as they arrive from the nodes of a fleet: which may count, and why others may not."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ...core import Fault, Rules, Tree, tree
from .checks import examine
from .nodes import Answer, Parcel, with_empty_groups
from .protocol import brief

HEADER = 512
"""Bytes that a tensor may take on the wire beyond its content: name, shape and type."""
DIGITS = 9
"""Of the number of a client."""


def client_of(name: str) -> int:
    """Whose message a parcel of this name is; -1 where its name is no such name."""
    digits = name.removeprefix("up.")
    told = digits != name and digits.isascii() and digits.isdecimal() and len(digits) <= DIGITS
    return int(digits) if told else -1


def opened(parcel: Parcel, like: Tree, client: int, round: int) -> Tree | Fault:
    """The tree of a parcel, or why it cannot be read. What is too large beside `like` is not opened."""
    limit = tree.nbytes(like) + HEADER * max(len(tree.leaves(like)), 1)
    if parcel.nbytes > limit:
        reason = f"the message has {parcel.nbytes:,} bytes on the wire, expected at most {limit:,}"
        return Fault(round, client, "oversize", reason)
    try:
        return with_empty_groups(parcel.open(), like)
    except ValueError as e:
        return Fault(round, client, "shape", str(e))


class Arrivals:
    """What came in one round so far.

    Messages are held against one that did count (`like`), and what `read` makes of them against the method's rules:
    a codec's bytes may be in order, and say something that is not.
    """

    def __init__(self, round: int, like: Tree, rules: Rules, read: Callable[[Tree], Tree]) -> None:
        self.round, self._like, self._rules, self._read = round, like, rules, read
        self.ups: dict[int, Tree] = {}
        """The messages that count, by client."""
        self.faults: dict[int, Fault] = {}
        """Why the message of a client does not count."""
        self.refused: list[Fault] = []
        """Messages that came besides one that counts: duplicates, and answers of clients that were not asked."""

    def absent(self, clients: Iterable[int], kind: str, reason: str) -> None:
        """Note clients of whom nothing came."""
        for c in clients:
            self.faults[c] = Fault(self.round, c, kind, brief(reason))

    def take(self, answer: Answer, asked: list[int]) -> None:
        """Take over the messages of one node that may count."""
        self._note_missing(answer, asked)
        for name, parcel in answer.parcels.items():
            client = client_of(name)
            found = self._open(parcel, client, asked, answer.words.get("round"))
            if not isinstance(found, Fault):
                self.ups[client] = found
                self.faults.pop(client, None)
                continue
            found = found._replace(reason=brief(found.reason))
            if client in asked and client not in self.ups:
                self.faults[client] = found
            else:
                self.refused.append(found)

    def _note_missing(self, answer: Answer, asked: list[int]) -> None:
        failed = answer.words.get("failed", {})
        for c in asked:
            if answer.error is not None:
                self.absent([c], answer.kind, answer.error)
            elif str(c) in failed:
                self.absent([c], *failed[str(c)])
            elif f"up.{c}" not in answer.parcels:
                self.absent([c], "groups", "the answer holds no message of this client")

    def _open(self, parcel: Parcel, client: int, asked: list[int], sent_round: int | None) -> Tree | Fault:
        """A client's message, or why it may not count."""
        round = self.round
        if client in self.ups:  # said before `asked`: it is what happened
            return Fault(round, client, "duplicate", f"client {client} was already counted in round {round}")
        if client not in asked:
            return Fault(round, client, "error", f"this node was not asked for client {client}")
        up = opened(parcel, self._like, client, round)
        if isinstance(up, Fault):
            return up
        sent = -1 if sent_round is None else sent_round
        fault = examine(up, self._like, client=client, round=round, sent_round=sent, seen=self.ups)
        fault = fault or self._meant(up, client)
        return up if fault is None else fault

    def _meant(self, up: Tree, client: int) -> Fault | None:
        """Why what a message says may not count, once it is decoded."""
        try:
            said = tree.take(self._read(tree.map(lambda x: x[None], up)), 0)
        except (RuntimeError, IndexError, ValueError) as e:
            return Fault(self.round, client, "shape", f"the message cannot be decoded: {e}")
        return examine(said, None, client=client, round=self.round, rules=self._rules)
