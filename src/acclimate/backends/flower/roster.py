"""Which nodes of a fleet are connected, and which clients they host."""

from __future__ import annotations

import time
from collections.abc import Iterable

from ...core import Fault
from .protocol import Link, NodeAnswer, Request


class Roster:
    """Knows which node hosts which client, and waits for nodes that are not connected."""

    def __init__(self, link: Link, clients: int, patience: float) -> None:
        self._link, self._clients, self._patience = link, clients, patience
        self.hosts: dict[int, int] = {}
        """The node of each client."""
        self._greeted: set[int] = set()
        """Nodes that have said which clients they host."""
        self._unfit: dict[int, str] = {}
        """Nodes that are connected and could not say it, with the reason."""
        self._waited_for_all = False
        """Whether the server has waited for all nodes once."""

    def find(self, clients: Iterable[int], enough: int | None = None) -> list[int]:
        """The clients whose nodes are connected. While they are fewer than `enough` it waits, at most `patience`.

        Without `enough` it waits for all of them; so it does before the first round, for nodes that start slowly.
        """
        wanted, end = list(clients), time.monotonic() + self._patience
        least = len(wanted) if enough is None or not self._waited_for_all else enough
        while True:
            there = self._greet()
            found = [c for c in wanted if self.hosts.get(c) in there]
            if len(found) >= least or time.monotonic() >= end:
                self._waited_for_all = True
                return found
            self._link.wait(min(1.0, self._patience))

    def why_absent(self) -> str:
        """Why a client that `find` did not find is absent, as far as the server knows."""
        unused = "; ".join(f"node {node} is not used: {why}" for node, why in sorted(self._unfit.items()))
        return "its node is not connected" + (f", or is one that is not used ({unused})" if unused else "")

    def by_node(self, clients: Iterable[int]) -> dict[int, list[int]]:
        """Clients whose nodes are connected, grouped by their node."""
        groups: dict[int, list[int]] = {}
        for c in clients:
            groups.setdefault(self.hosts[c], []).append(c)
        return groups

    def deal(self, newcomers: list[int], there: Iterable[int]) -> dict[int, list[int]]:
        """Newcomers, who have no node of their own, dealt out to the nodes of the clients that are there."""
        nodes = sorted({self.hosts[c] for c in there})
        hands = {node: newcomers[i :: len(nodes)] for i, node in enumerate(nodes)}
        return {node: hand for node, hand in hands.items() if hand}

    def _greet(self) -> set[int]:
        """The nodes that are connected. New ones, and unfit ones, are asked which clients they host."""
        there = set(self._link.nodes())
        self._greeted &= there  # a node that was away is asked again
        self._unfit = {node: why for node, why in self._unfit.items() if node in there}
        if new := sorted(there - self._greeted):
            requests = [Request(node, "query", {}, {}) for node in new]
            for answer in self._link.exchange(requests, self._patience, "hello"):
                if (reason := answer.error or self._foreign(answer)) is None:
                    self._greeted.add(answer.node)
                    self._unfit.pop(answer.node, None)
                    self._welcome(answer, there)
                elif self._unfit.get(answer.node) != reason:  # an unfit node is asked often, and logged once
                    self._link.log(f"node {answer.node} is not used: {reason}")
                    self._unfit[answer.node] = reason
                    if answer.error is None:
                        own = self._link.owned(answer.node, self._clients) or (-1,)
                        self._link.refused.append(Fault(0, own[0], "identity", reason))
        return there

    def _foreign(self, answer: NodeAnswer) -> str | None:
        """Why a node may not host what it says, where keys are bound to clients: it is known by its key alone."""
        owned = self._link.owned(answer.node, self._clients)
        odd = [] if owned is None else [c for c in answer.fields.get("clients", ()) if c not in owned]
        return f"it says that it hosts client {odd[0]}, which belongs to another key" if odd else None

    def _welcome(self, answer: NodeAnswer, there: set[int]) -> None:
        """Note which clients a node hosts. A site that comes back may have a new number; nobody is taken over."""
        log = self._link.log
        for c in answer.fields.get("clients", ()):
            if c >= self._clients:
                log(f"node {answer.node} says that it hosts {c!r}, which is no client of this run")
            elif (other := self.hosts.get(c)) in there and other != answer.node:
                log(f"node {answer.node} says that it hosts client {c}, which is at node {other}; not used")
            else:
                self.hosts[c] = answer.node
