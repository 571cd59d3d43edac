"""Live models at the nodes of a fleet: the requests about them, and what the server learns from the answers."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

from ...core import Personalizer, Tree, tree
from ...ops.hashing import content_hash
from .checks import model_of_zeros
from .protocol import Link, NodeAnswer, Request
from .roster import Roster

Missing = dict[int, tuple[str, str]]
"""Clients whose nodes did not do what they were asked for: the kind of the fault, and the reason."""


Trees = Callable[[list[int]], Mapping[str, Tree]]
"""Trees by name for some clients of one node."""


class ModelRecipe(NamedTuple):
    """Live models at the nodes: their name, and what nodes need to make them."""

    name: str
    down: Tree
    versions: list[int]
    """The versions of the clients' private states."""
    personal: Personalizer | None
    """None for newcomers, who have no labels."""

    @classmethod
    def of(cls, down: Tree, versions: list[int], personal: Personalizer | None) -> ModelRecipe:
        """A recipe whose name is a hash of its parts, so that nodes make the same models once."""
        unnamed = cls("", down, versions, personal)
        text = f"{versions}{unnamed.form}{content_hash(*tree.leaves(down))}"
        return unnamed._replace(name=hashlib.sha256(text.encode()).hexdigest()[:16])

    @property
    def form(self) -> str:
        """A text that differs for models of different form. Personalisers that do nothing all have the same."""
        nothing = self.personal is not None and type(self.personal).run is Personalizer.run
        return "deployed" if nothing else repr(self.personal)

    def fields(self, clients: list[int]) -> dict[str, Any]:
        """What a node needs besides `down` to make the models of these clients."""
        versions = {str(c): self.versions[c] for c in clients}
        return {"models": self.name, "versions": versions, "personal": self.personal}


class LiveModels:
    """Sends requests about live models. Knows which nodes have made them, and the form of a model."""

    def __init__(self, link: Link, roster: Roster, deadline: float) -> None:
        self._link, self._roster, self._deadline = link, roster, deadline
        self._nodes: dict[str, set[int]] = {}
        """The nodes that have made the models of a recipe, by the name of the recipe."""
        self._said: dict[str, dict[int, str]] = {}
        """The tensors of a model as the node of each client tells them, by the form of the recipe: they do not change
        from round to round."""

    def zeros(self, recipe: ModelRecipe) -> Tree | None:
        """A model of zeros of the recipe's form; None before any node has answered about such a model.

        What the nodes of most clients say counts: one that lies about its model spoils no test of the others.
        """
        if not (said := self._said.get(recipe.form)):
            return None
        ((tensors, _),) = Counter(said.values()).most_common(1)
        return model_of_zeros(json.loads(tensors))

    def ask(
        self,
        recipe: ModelRecipe,
        clients: list[int],
        there: Collection[int],
        fields: Mapping[str, Any],
        trees: Trees = lambda _: {},
    ) -> tuple[list[tuple[NodeAnswer, list[int]]], Missing]:
        """Ask the nodes of those clients that are `there` to do something with live models.

        Gives the good answers, each with the clients for which its node may speak: those that the node was asked for
        and that did not fail. The models travel once to each node; a node that has lost them is sent them again.
        `trees` gives what else some clients are sent.
        """
        newcomers = recipe.personal is None
        groups = (
            self._roster.deal(clients, there) if newcomers else self._roster.by_node(c for c in clients if c in there)
        )
        absent = [] if newcomers else [c for c in clients if c not in there]
        missing: Missing = dict.fromkeys(absent, ("lost", self._roster.why_absent()))
        good: list[tuple[NodeAnswer, list[int]]] = []
        for _ in range(2):
            answers, lacking = self._exchange(recipe, groups, fields, trees)
            failed = self._failed(groups, answers)
            missing |= failed
            usable = [a for a in answers if a.error is None and a.node not in lacking]
            good += [(a, [c for c in groups[a.node] if c not in failed]) for a in usable]
            groups = {node: group for node, group in groups.items() if node in lacking}
            if not groups:
                break
        lost = ("error", "its node loses what it is sent")
        return good, missing | dict.fromkeys(itertools.chain(*groups.values()), lost)

    def _exchange(
        self, recipe: ModelRecipe, groups: Mapping[int, list[int]], fields: Mapping[str, Any], trees: Trees
    ) -> tuple[list[NodeAnswer], set[int]]:
        """Ask nodes, sending them `down` where they have not made the models yet; and the nodes that lack it."""
        ready, requests = self._nodes.setdefault(recipe.name, set()), []
        for node, clients in groups.items():
            needed = {} if node in ready else {"down": recipe.down}
            sent = {**trees(clients), **needed}
            requests.append(Request(node, "evaluate", sent, {**fields, **recipe.fields(clients)}))
        answers = self._link.exchange(requests, self._deadline, "test")
        lacking = {a.node for a in answers if a.fields.get("lacks")}
        good = [a for a in answers if a.error is None and a.node not in lacking]
        ready -= lacking
        ready |= {a.node for a in good}
        for answer in good:
            if tensors := answer.fields.get("model"):
                said = dict.fromkeys(groups[answer.node], json.dumps(tensors))
                self._said.setdefault(recipe.form, {}).update(said)
        return answers, lacking

    def _failed(self, groups: Mapping[int, list[int]], answers: list[NodeAnswer]) -> Missing:
        """The clients for whom a node did not do what it was asked for."""
        failed: Missing = {}
        for answer in answers:
            for c in groups.get(answer.node, ()):
                if answer.error is not None:
                    failed[c] = (answer.kind, answer.error)
                elif str(c) in answer.fields.get("failed", ()):
                    failed[c] = answer.fields["failed"][str(c)]
        for node in groups.keys() - {a.node for a in answers}:
            failed |= dict.fromkeys(groups[node], ("late", f"no answer within {self._deadline:.0f} s"))
        return failed
