"""Which nodes of a fleet are connected, and which clients they host."""

from __future__ import annotations

import time
from collections.abc import Iterable

from .nodes import Answer, Ask, Link


class Roster:
    """Knows which node hosts which client, and waits for nodes that are not there."""

    def __init__(self, link: Link, clients: int, patience: float) -> None:
        self._link, self._clients, self._patience = link, clients, patience
        self.hosts: dict[int, int] = {}
        """The node of each client."""
        self._greeted: set[int] = set()
        """Nodes that have told their clients."""
        self._unfit: dict[int, str] = {}
        """Why a node could not tell them, when it was asked last."""
        self._met = False
        """Whether it was waited for all nodes once."""

    def find(self, clients: Iterable[int], enough: int | None = None) -> list[int]:
        """The clients whose nodes are connected. While they are fewer than `enough` it waits, at most `patience`.

        Without `enough` it waits for all of them; so it does before the first round, for nodes that start slowly.
        """
        wanted, end = list(clients), time.monotonic() + self._patience
        least = len(wanted) if enough is None or not self._met else enough
        while True:
            there = self._greet()
            found = [c for c in wanted if self.hosts.get(c) in there]
            if len(found) >= least or time.monotonic() >= end:
                self._met = True
                return found
            self._link.wait(min(1.0, self._patience))

    def by_node(self, clients: Iterable[int]) -> dict[int, list[int]]:
        """Clients that are there, grouped by their node."""
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
        """The nodes that are connected; new ones, and those that could not tell, are asked for their clients."""
        there = set(self._link.nodes())
        self._greeted &= there  # who was away is asked again
        if new := sorted(there - self._greeted):
            asks = [Ask(node, "query", {}, {}) for node in new]
            for answer in self._link.exchange(asks, self._patience, "hello"):
                if answer.error is None:
                    self._greeted.add(answer.node)
                    self._welcome(answer, there)
                elif self._unfit.get(answer.node) != answer.error:  # it is asked often, and this is said once
                    self._link.say(f"node {answer.node} is not used: {answer.error}")
                    self._unfit[answer.node] = answer.error
        return there

    def _welcome(self, answer: Answer, there: set[int]) -> None:
        """Note which clients a node hosts. A site that comes back may have a new number; nobody is taken over."""
        say = self._link.say
        for c in answer.words.get("clients", ()):
            if c >= self._clients:
                say(f"node {answer.node} says that it hosts {c!r}, which is no client of this run")
            elif (other := self.hosts.get(c)) in there and other != answer.node:
                say(f"node {answer.node} says that it hosts client {c}, which is at node {other}; not used")
            else:
                self.hosts[c] = answer.node
