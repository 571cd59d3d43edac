"""The server's half of sums that survive drop-outs: it passes keys and sealed shares on, and takes the masks off.

A round of `Masked(threshold=...)` has four exchanges in the place of one: keys, shares, messages, and shares of the
secrets that are still in the sum. `filters.secure_sum` has the protocol, `fleet.site_sums` the nodes' half. A client
that misses one of them, or sends what no honest one does, is left out of the sum; so is one whose message may not
count. Where fewer than the threshold are left, nobody's message can be read: the round is left out, and the next
begins.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar

from torch import Tensor

from ...core import Fault, Partial, Tree, Worker, tree
from ...filters import Masked
from ...filters.secure_sum import (
    CHECK,
    MARK,
    SEALED,
    Keys,
    Opened,
    Shares,
    Unreadable,
    correction,
    liars,
    needed,
    valid,
)
from .messages import RoundMessages
from .protocol import Link, Request, brief
from .roster import Roster

DIGITS = 600
"""The most hexadecimal digits of a number that a node sends: keys have 512."""
T = TypeVar("T")


class SumLost(ArithmeticError):
    """The sum of a round that cannot be read, because too few are left or because secrets are missing."""


class Agreed(NamedTuple):
    """The clients of one sum, and what the server knows of them."""

    name: str
    threshold: int
    keys: dict[int, Keys]
    sent: dict[int, Shares]


NOBODY = Agreed("", 1, {}, {})


class SecureSums:
    """Conducts the sum of a round. A new try is a new sum, because no secret may serve twice."""

    def __init__(self, record: Masked, link: Link, roster: Roster, deadline: float, tries: int) -> None:
        self._share, self._link, self._roster, self._deadline = record.threshold, link, roster, deadline
        self._tries = tries
        self._sum = NOBODY
        self.came = 0
        """How many clients published keys in the last try."""

    @property
    def threshold(self) -> int:
        """How many clients must stay to the end of the sum."""
        return self._sum.threshold

    def agree(self, clients: list[int], of: int, arrived: RoundMessages) -> list[int]:
        """Begin a sum of these clients of a round of so many. Those who take part in it; the others are absent."""
        arrived.decoded.clear()
        name = secrets.token_hex(16)
        keys = self._ask(name, "keys", clients, {}, _keys, arrived)
        self.came, self._sum = len(keys), NOBODY._replace(threshold=needed(self._share, of))
        if len(keys) < max(Masked.least, self._sum.threshold):
            return []
        published = {str(c): [f"{k.keys.seal:x}", f"{k.keys.mask:x}", k.tag] for c, k in keys.items()}
        sent = self._ask(name, "shares", list(keys), {"keys": published, "of": of}, _shares, arrived)
        members = self._members(sent, arrived)
        self._sum = Agreed(name, self._sum.threshold, {c: keys[c].keys for c in members}, {c: sent[c] for c in members})
        return members if len(members) >= self._sum.threshold else []

    def _members(self, sent: Mapping[int, Shares], arrived: RoundMessages) -> list[int]:
        """Those who sent shares for all, and to whom the others sent shares. Whose word counts is what most say."""
        known = {c: sum(c in s.shares for o, s in sent.items() if o != c) for c in sent}
        others = len(sent) - 1
        # Nobody has shares for it: its keys are not signed as theirs are. One alone who says so may lie.
        strangers = [c for c in sent if 2 * known[c] < others and others - known[c] > 1]
        arrived.absent(strangers, "identity", "most of the others do not accept its keys")
        lacking = {c: [o for o in sent if o not in (c, *strangers) and o not in sent[c].shares] for c in sent}
        short = [c for c in sent if c not in strangers and any(known[o] for o in lacking[c])]
        arrived.absent(short, "shape", "it sent no shares for clients whose keys others accept")
        arrived.struck.update(strangers, short)
        return [c for c in sent if c not in strangers and c not in short]

    def fields(self, clients: list[int]) -> dict[str, Any]:
        """What the request for the messages of these clients says of the sum."""
        sent = self._sum.sent
        boxes = {
            str(c): {str(o): [s.shares[c].hex(), s.marks[c].hex()] for o, s in sent.items() if c in s.shares}
            for c in clients
        }
        return {"sum": {"name": self._sum.name, "members": sorted(self._sum.keys), "boxes": boxes}}

    def unmasked(self, part: Partial, like: Tree, arrived: RoundMessages) -> Partial:
        """The combined messages without their masks; `SumLost` where the sum cannot be read."""
        alive, threshold = part.clients.tolist(), self._sum.threshold
        if len(alive) < threshold:
            raise SumLost(f"messages of {len(alive)} of {len(self._sum.keys)} clients, and {threshold} are needed")
        opened: dict[int, Opened] = {}
        for _ in range(self._tries):  # whoever is away now has sent a message that counts, and may come back
            there = self._roster.find([c for c in alive if c not in opened], threshold - len(opened))
            opened |= self._ask(self._sum.name, "open", there, {"survivors": alive}, _opened, arrived)
            if len(opened) >= threshold:
                break
        sizes = [x.numel() for x in tree.leaves(like)]
        for c in liars(opened, self._sum.sent):
            arrived.refused.append(Fault(arrived.round, c, "range", "it opened shares that it was not given"))
            arrived.struck.add(c)
        try:
            words = correction(sum(sizes), alive, self._sum.keys, self._sum.sent, opened, threshold)
        except Unreadable as e:
            arrived.struck.update(() if e.client is None else (e.client,))
            raise SumLost(str(e)) from e
        except ArithmeticError as e:
            raise SumLost(str(e)) from e
        pieces = iter(words.split(sizes))
        masks: Tree = tree.map(lambda x: next(pieces).reshape(x.shape), like)

        def read(x: Tensor, mask: Tensor) -> Tensor:
            return x + mask

        return part._replace(sums={g: tree.map(read, part.sums[g], masks[g]) for g in part.sums})

    def _ask(
        self,
        name: str,
        step: str,
        clients: list[int],
        body: Mapping[str, Any],
        read: Callable[[Any], T],
        arrived: RoundMessages,
    ) -> dict[int, T]:
        """One exchange with the nodes of these clients: what each said, as far as it can be read."""
        by_node, found = self._roster.by_node(clients), {}

        def quiet(own: list[int], kind: str, reason: str) -> None:
            self._link.log(f"round {arrived.round}: client {own[0]} opened no shares ({kind}): {brief(reason)}")

        absent = arrived.absent if step != "open" else quiet  # at the last step its message counts already
        requests = [
            Request(node, "query", {}, {"sum": {**body, "name": name, "step": step, "clients": own}})
            for node, own in by_node.items()
        ]
        said = {a.node: a for a in self._link.exchange(requests, self._deadline, str(arrived.round))}
        for node, own in by_node.items():
            answer = said.get(node)
            failed = answer.fields.get("failed", {}) if answer is not None else {}
            for c in own:
                if answer is None:
                    absent([c], "late", f"no answer to step '{step}' of a secure sum")
                elif answer.error is not None:
                    absent([c], answer.kind, answer.error)
                elif str(c) in failed:
                    absent([c], *failed[str(c)])
                else:
                    try:
                        found[c] = read(answer.fields["sum"][str(c)])
                    except (AttributeError, LookupError, TypeError, ValueError):
                        absent([c], "shape", f"its answer to step '{step}' of a secure sum cannot be read")
                        arrived.struck.add(c)
        return found


class Published(NamedTuple):
    """A client's keys, and its signature of them, which the server cannot check."""

    keys: Keys
    tag: str


def _number(text: Any) -> int:
    if not isinstance(text, str) or len(text) > DIGITS:
        raise ValueError("not a number")
    return int(text, 16)


def _keys(value: Any) -> Published:
    seal, mask, tag = value
    keys = Keys(_number(seal), _number(mask))
    if not valid(keys) or not isinstance(tag, str) or len(tag) > DIGITS:
        raise ValueError("not keys")
    return Published(keys, tag)


def _shares(value: Any) -> Shares:
    boxes, marks = ({int(c): bytes.fromhex(v) for c, v in value[part].items()} for part in ("shares", "marks"))
    check = bytes.fromhex(value["check"])
    sizes = {len(b) for b in boxes.values()} <= {SEALED} and {len(m) for m in marks.values()} <= {MARK}
    if len(check) != CHECK or not sizes or not boxes.keys() <= marks.keys():
        raise ValueError("not shares")
    return Shares(check, boxes, marks)


def _opened(value: Any) -> Opened:
    seeds, keys = ({int(c): _number(v) for c, v in value[part].items()} for part in ("seeds", "keys"))
    return Opened(seeds, keys)


def of(worker: Worker, link: Link, roster: Roster, deadline: float, tries: int = 1) -> SecureSums | None:
    """The sums of a run whose masks survive drop-outs; None where no filter says so."""
    last = worker.filters[-1] if worker.filters else None
    return SecureSums(last, link, roster, deadline, tries) if isinstance(last, Masked) and last.threshold else None
