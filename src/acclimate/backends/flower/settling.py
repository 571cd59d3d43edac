"""A round whose messages the server's half cannot use: who must be left out so that it can.

Ranges and norms are checked before messages are combined, so this is the last line: a method of one's own without
ranges, a norm bound that is switched off, or messages that are in order one by one and not together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from ...core import Partial, Reply, Tree
from .messages import NOBODY

TROUBLE = (ArithmeticError, LookupError, RuntimeError, TypeError, ValueError)
"""What the server's half of a round may raise because of the messages that it gets."""


class Settled(NamedTuple):
    """How a round ended."""

    server: Tree
    reply: Reply
    blamed: Mapping[int, str] = MappingProxyType({})
    """Clients without whose messages the round could be used, and what happened with them."""
    error: Exception | None = None
    """Why the whole round was left out; None where it was not."""


def settled(
    messages: Mapping[int, Tree],
    combined: Callable[[Mapping[int, Tree]], Partial],
    reply: Reply,
    server: Tree,
    attempt: Callable[[Reply], Tree],
    alone: bool,
) -> Settled:
    """The server's new state from all messages, or from as many as it can use; at the worst it stays as it is.

    `alone` says whether messages can be read one by one, so that some may be left out.
    """

    def of(clients: list[int]) -> Settled:
        part = reply._replace(part=combined({c: messages[c] for c in clients}))
        return Settled(attempt(part), part)

    everyone = list(messages)
    try:
        return Settled(attempt(reply), reply)
    except TROUBLE as e:
        error = e
    for c in everyone if alone and len(everyone) > 1 else ():
        try:
            return of([o for o in everyone if o != c])._replace(blamed={c: str(error)})
        except TROUBLE:
            continue
    kept: list[int] = []
    best, blamed = None, {}
    for c in everyone if alone else ():  # there are several: one after the other
        try:
            best = of([*kept, c])
            kept.append(c)
        except TROUBLE as e:
            blamed[c] = str(e)
    if best is not None and 2 * len(kept) > len(everyone):
        return best._replace(blamed=blamed)
    return Settled(server, reply._replace(part=NOBODY), error=error)
