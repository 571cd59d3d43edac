"""Clients at the nodes of a Flower network: the server's half.

The engine runs inside a Flower ServerApp (`acclimate.fleet.server_app`), which gives it a `Link`: a way to ask nodes
and to wait for their answers. Nodes hold the data and the private states; the engine holds neither. Its `mine` is a
number per client, the version of the private state at its node: 0 before the first round, r + 1 after round r. It is
checkpointed like any state. A request says from which version a client starts, so a message that did not count, and a
server that goes on from an older checkpoint, leave no trace in the private states.

Every wait has an end: `deadline` for a round or a test, `patience` for nodes that are not there.
"""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...core import (
    Adapter,
    Backend,
    Engine,
    Fault,
    Filter,
    Personalizer,
    Private,
    Reply,
    Shards,
    Stacked,
    Tree,
    Work,
    Worker,
    check,
    message,
    tree,
)
from ...core.stream import Protocol as StreamProtocol
from ...ops import disk_cache
from .messages import Arrivals
from .metrics import metrics_of
from .nodes import LINK, Answer, Ask, FleetError, Link, stream_name
from .protocol import brief, model_of
from .roster import Roster

ROUNDING = 1e-9
"""0.28 of 25 clients are 7, whatever the product is in floating point."""


@dataclass(frozen=True)
class Flower(Backend):
    """The nodes of a Flower network. Start one on this machine with `acclimate fleet up`."""

    deadline: float = 600.0
    """Seconds that nodes have for a round, or for a test. Who is later does not count in it."""
    quorum: float = 0.5
    """The share of a round's clients whose messages must count. Below it the missing ones are asked again."""
    tries: int = 3
    """How often a round is tried before the run stops."""
    patience: float = 60.0
    """Seconds to wait for nodes: for all of them at the start, later while fewer than the quorum are connected."""

    def __post_init__(self) -> None:
        check.within(self, "quorum", 0.0, 1.0)
        check.at_least(self, "tries", 1)
        for name in ("deadline", "patience"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"Flower: {name}={getattr(self, name)!r} must be a number of seconds above 0")

    def conducted(self) -> str | None:
        """The function that hands a run to the fleet; None in the process to which it was handed."""
        return "acclimate.fleet.launch:finish" if LINK.get() is None else None

    def open(self, worker: Worker, train: Shards, device: torch.device) -> FlowerEngine:
        link = LINK.get()
        if link is None:
            raise ValueError(
                "backend=flower runs inside a fleet: start one with `acclimate fleet up --clients 2`, then use "
                "`acclimate run backend=flower ...`"
            )
        return FlowerEngine(worker, train, device, self, link)


class Models(NamedTuple):
    """Live models at the nodes: their name, and what nodes need to make them."""

    name: str
    down: Tree
    versions: list[int]
    personal: Personalizer | None
    """None for newcomers, who have no labels."""

    @property
    def recipe(self) -> str:
        """What tells models of different form apart. Personalisers that do nothing are all the same."""
        nothing = self.personal is not None and type(self.personal).run is Personalizer.run
        return "deployed" if nothing else repr(self.personal)


class FlowerEngine(Engine):
    """Asks nodes. Knows the version of each client's private state, and where live models have been made."""

    shards: Shards

    def __init__(self, worker: Worker, train: Shards, device: torch.device, options: Flower, link: Link) -> None:
        super().__init__(worker, train, torch.device("cpu"))
        self.options, self.link = options, link
        self.roster = Roster(link, train.clients, options.patience)
        self._versions = torch.zeros(train.clients, dtype=torch.int64)
        self._like = expected_message(worker, self.shards)
        self._made: dict[str, set[int]] = {}
        """Which nodes have made the live models of a name."""
        self._shapes: dict[str, Tree] = {}
        """A model of zeros by personaliser: what a live model looks like does not change from round to round."""
        self._late: list[Fault] = []
        """Clients that missed a test; told with the next round, or at the end."""

    @property
    def mine(self) -> Private:
        return Stacked({"version": self._versions})

    @mine.setter
    def mine(self, value: Any) -> None:
        self._versions = value["version"]

    # --- a round --------------------------------------------------------------------------------------------------

    def train(self, down: Tree, cohort: Tensor, round: int) -> Reply:
        clients, got = cohort.tolist(), self._arrivals(round)
        need = self._quorum(len(clients))
        for _ in range(self.options.tries):
            self._collect(down, [c for c in clients if c not in got.ups], need - len(got.ups), got)
            if len(got.ups) >= need:
                break
            why = "; ".join(f"client {f.client}: {f.reason}" for f in list(got.faults.values())[:3])
            self.link.say(f"round {round}: {len(got.ups)} of {len(clients)} clients, {need} needed ({why})")
        else:
            raise FleetError(
                f"round {round}: messages of {len(got.ups)} of {len(clients)} clients count after {self.options.tries} "
                f"tries, {need} are needed (backend.quorum={self.options.quorum}): {why}; mend the nodes and resume"
            )
        return self._reply(clients, got)

    def _quorum(self, clients: int) -> int:
        return max(math.ceil(self.options.quorum * clients - ROUNDING), 1)

    def _arrivals(self, round: int) -> Arrivals:
        """An empty intake."""
        return Arrivals(round, self._like, self.worker.uplink, self.worker.read)

    def _collect(self, down: Tree, clients: list[int], enough: int, got: Arrivals) -> None:
        """Ask some clients for their round, and examine what comes back."""
        there = self.roster.find(clients, enough)
        got.absent([c for c in clients if c not in there], "lost", "its node is not connected")
        asks = self._round_asks(down, there, got.round)
        answers = self.link.exchange(asks, self.options.deadline, str(got.round)) if asks else []
        asked = {ask.node: [int(c) for c in ask.words["versions"]] for ask in asks}
        for answer in answers:
            got.take(answer, asked.get(answer.node, []))
        answered = {a.node for a in answers}
        still = set(self.link.nodes()) if len(answered) < len(asks) else set()
        for node in asked.keys() - answered:
            if node in still:
                got.absent(asked[node], "late", f"no answer within {self.options.deadline:.0f} s")
            else:
                got.absent(asked[node], "lost", "its node went away")

    def _round_asks(self, down: Tree, clients: list[int], round: int) -> list[Ask]:
        """A request to each node: from which versions its clients start, and which older ones it must keep."""
        older, asks = [m["version"].tolist() for m in self.link.keep], []
        for node, members in self.roster.by_node(clients).items():
            versions = {str(c): int(self._versions[c]) for c in members}
            kept = {str(c): sorted({versions[str(c)], *(k[c] for k in older)}) for c in members}
            asks.append(Ask(node, "train", {"down": down}, {"round": round, "versions": versions, "keep": kept}))
        return asks

    def _reply(self, clients: list[int], got: Arrivals) -> Reply:
        """Reduce in the order of the cohort, so that the result does not depend on who was quicker."""
        rules, part = self.worker.uplink, None
        present = [c for c in clients if c in got.ups]
        for c in present:
            up = self.worker.read(tree.map(lambda x: x[None], got.ups[c]))
            one = message.partial(rules, torch.tensor([c]), up)
            part = one if part is None else message.combine(part, one)
        assert part is not None
        self._versions = self._versions.clone()
        self._versions[present] = got.round + 1
        faults = (*self.missed(), *(got.faults[c] for c in clients if c in got.faults), *got.refused)
        for f in faults:
            self.link.say(f"round {f.round}: client {f.client} does not count ({f.kind}): {f.reason}")
        return Reply(part, tree.map(lambda x: torch.empty_like(x, device="meta"), self._like), faults)

    # --- live models ----------------------------------------------------------------------------------------------

    def deploy(self, down: Tree, mine: Private, personal: Personalizer) -> Models:
        return _named(Models("", down, mine.saved()["version"].tolist(), personal))

    def join(self, down: Tree, newcomers: int) -> Models:
        return _named(Models("", down, [0] * newcomers, None))

    def model_of(self, models: Models, client: int) -> Tree:
        """A model of the right names, shapes and types, and of zeros: a client's own model does not leave its node.

        All clients have models of one form, so where this one cannot tell, the others are asked.
        """
        for clients in ([client], list(range(len(models.versions)))):
            if models.recipe not in self._shapes:
                self.ask_all(models, clients, {})
        if models.recipe not in self._shapes:
            raise FleetError("no client can make its live model; the log says why")
        return self._shapes[models.recipe]

    def _learn(self, models: Models, answer: Answer) -> None:
        """Names, shapes and types of live models come with every answer about them."""
        if said := answer.words.get("model"):
            self._shapes.setdefault(models.recipe, model_of(said))

    def serve(
        self, models: Models, test: Shards, adapter: Adapter, protocol: StreamProtocol, trace: bool = False
    ) -> Tree:
        if trace:
            raise ValueError("analysis=true keeps traces of single samples, which may not leave the nodes of a fleet")
        name = stream_name(test)
        words = {"test": self.link.names.get(name, name), "adapter": adapter, "protocol": protocol}
        scores: dict[int, Tree] = {}
        clients = [c for c in range(test.clients) if models.personal is None or c < self.shards.clients]
        for answer, asked in self.ask_all(models, clients, words):
            for c in asked:  # of others this node may not speak
                found = metrics_of(answer.parcels.get(f"metrics.{c}"), c, self._done)
                if isinstance(found, Fault):
                    self._leave_out(c, found.kind, f"not tested: {found.reason}")
                else:
                    scores[c] = found
        if not scores:
            raise FleetError("no client could be tested; the log says why")
        nothing = tree.zeros(next(iter(scores.values())))  # n = 0: does not count in any mean
        return tree.stack([scores.get(c, nothing) for c in range(test.clients)])

    def ask_all(
        self, models: Models, clients: list[int], words: Mapping[str, Any], all: bool = False
    ) -> list[tuple[Answer, list[int]]]:
        """Ask the nodes of these clients to do something with live models; with `all`, wait until all are there.

        Gives the good answers, and of which clients each may speak: those that its node was asked for and could serve.
        The models travel once to each node; who has lost them says so and is sent them again.
        """
        everyone = range(self.shards.clients)
        there = self.roster.find(everyone, None if all else self._quorum(len(everyone)))
        newcomers = models.personal is None
        groups = (
            self.roster.deal(clients, there) if newcomers else self.roster.by_node(c for c in clients if c in there)
        )
        what = "not tested" if "test" in words else "no live model"
        if not newcomers:
            self._leave_all_out([[c for c in clients if c not in there]], "lost", f"{what}: its node is not connected")
        got: list[tuple[Answer, list[int]]] = []
        for _ in range(2):
            answers, lacking = self._ask_live(models, groups, words)
            failed = self._note_missing(groups, answers, what)
            good = [a for a in answers if a.error is None and a.node not in lacking]
            got += [(a, [c for c in groups[a.node] if c not in failed]) for a in good]
            groups = {node: g for node, g in groups.items() if node in lacking}
            if not groups:
                break
        else:
            self._leave_all_out(groups.values(), "error", f"{what}: its node loses what it is sent")
        return got

    def _ask_live(
        self, models: Models, groups: Mapping[int, list[int]], words: Mapping[str, Any]
    ) -> tuple[list[Answer], set[int]]:
        """Ask nodes about live models, sending these where they were not made yet; and the nodes that lack them."""
        made = self._made.setdefault(models.name, set())
        asks = []
        for node, clients in groups.items():
            trees = {} if node in made else {"down": models.down}
            asks.append(Ask(node, "evaluate", trees, {**words, **self._recipe(models, clients)}))
        answers = self.link.exchange(asks, self.options.deadline, "test")
        lacking = {a.node for a in answers if a.words.get("lacks")}
        good = [a for a in answers if a.error is None and a.node not in lacking]
        made -= lacking
        made |= {a.node for a in good}
        for answer in good:
            self._learn(models, answer)
        return answers, lacking

    def _recipe(self, models: Models, clients: list[int]) -> dict[str, Any]:
        """What a node needs besides `down` to make live models."""
        versions = {str(c): models.versions[c] for c in clients}
        return {"models": models.name, "versions": versions, "personal": models.personal}

    def _note_missing(self, groups: Mapping[int, list[int]], answers: list[Answer], what: str) -> set[int]:
        """The clients for whom a node did not do what it was asked for."""
        reasons: dict[int, tuple[str, str]] = {}
        for answer in answers:
            for c in groups.get(answer.node, ()):
                if answer.error is not None:
                    reasons[c] = (answer.kind, answer.error)
                elif str(c) in answer.words.get("failed", ()):
                    reasons[c] = answer.words["failed"][str(c)]
        for node in groups.keys() - {a.node for a in answers}:
            reasons |= dict.fromkeys(groups[node], ("late", f"no answer within {self.options.deadline:.0f} s"))
        for c, (kind, reason) in reasons.items():
            self._leave_out(c, kind, f"{what}: {reason}")
        return set(reasons)

    def missed(self) -> tuple[Fault, ...]:
        late, self._late = tuple(self._late), []
        return late

    @property
    def _done(self) -> int:
        """Rounds so far."""
        return int(self._versions.max())

    def _leave_all_out(self, groups: Iterable[list[int]], kind: str, reason: str) -> None:
        for client in itertools.chain(*groups):
            self._leave_out(client, kind, reason)

    def _leave_out(self, client: int, kind: str, reason: str) -> None:
        """Note a client that is left out of a test: logged now, and told with the next round or by `missed`."""
        fault = Fault(self._done, client, kind, brief(reason))
        if fault not in self._late:  # every adapter and stream is a test of its own
            self._late.append(fault)
            self.link.say(f"client {client} is left out ({kind}): {fault.reason}")


def _named(models: Models) -> Models:
    """Under a name that says what they are made from: nodes make the same models once."""
    told = f"{models.versions}{models.recipe}{disk_cache.fingerprint(*tree.leaves(models.down))}"
    return models._replace(name=hashlib.sha256(told.encode()).hexdigest()[:16])


def expected_message(worker: Worker, like: Shards) -> Tree:
    """What one message looks like (meta tensors), from one batch of zeros: against this, messages are checked."""
    worker = replace(worker, filters=tuple(_without_secret(f) for f in worker.filters))
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


def _without_secret(filter: Filter) -> Filter:
    """The filter as simulations have it: messages have the same form, and the server must not have the secret."""
    named = {f.name: "" for f in fields(filter) if f.name == "secret"}
    return replace(filter, **named) if named else filter
