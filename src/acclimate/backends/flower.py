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
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol

import torch
from torch import Tensor

from ..core import check, message, tree
from ..core.adapter import Adapter
from ..core.backend import Backend, Engine, Fault, Reply
from ..core.intake import examine
from ..core.local import Work
from ..core.personal import Personalizer
from ..core.shards import Shards
from ..core.stream import Protocol as StreamProtocol
from ..core.tree import Tree
from ..core.worker import Worker
from ..ops import memo

Kind = Literal["query", "train", "evaluate"]
HEADER = 512
"""Bytes that a tensor may take on the wire beyond its content: name, shape and type."""


class Parcel(NamedTuple):
    """A tree that came over the network and was not looked at yet."""

    nbytes: int
    open: Callable[[], Tree]
    """Raises ValueError where it is not a tree of tensors."""


class Ask(NamedTuple):
    """A request to one node: trees, and what else it must know (records, and plain JSON)."""

    node: int
    kind: Kind
    trees: Mapping[str, Tree]
    words: Mapping[str, Any]


class Answer(NamedTuple):
    """What a node sent back: parcels by name and plain JSON, or an error."""

    node: int
    parcels: Mapping[str, Parcel]
    words: Mapping[str, Any]
    error: str | None = None
    kind: str = "error"
    """Of the error, as `Fault` counts it."""


class Link(Protocol):
    """The server's way to its nodes."""

    keep: Sequence[Tree]
    """Older versions of `mine` that the run may still come back to: its last checkpoint's, the best round's."""

    names: Mapping[str, str]
    """How nodes call a stream, by `stream_name`, where server and nodes do not hold the same data."""

    def nodes(self) -> list[int]:
        """Who is connected now."""

    def exchange(self, asks: Sequence[Ask], seconds: float, group: str) -> list[Answer]:
        """Ask nodes and wait for their answers, at most so long; those who did not answer are not in the result."""

    def wait(self, seconds: float) -> None:
        """Let some time pass."""

    def say(self, text: str) -> None:
        """A line for the log."""


LINK: ContextVar[Link | None] = ContextVar("link", default=None)
"""The link of the ServerApp that runs at the moment."""


class FleetError(RuntimeError):
    """The fleet cannot go on: too few clients, or nodes that do not fit. Says who, why, and what to do."""


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


@dataclass
class Collected:
    """The messages of a round that may count so far, and why others may not."""

    ups: dict[int, Tree] = field(default_factory=dict)
    faults: dict[int, Fault] = field(default_factory=dict)
    refused: list[Fault] = field(default_factory=list)
    """Messages that came besides one that counts: duplicates, and answers of clients that were not asked."""


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
    """Asks nodes. Knows which node hosts which client, and the version of each client's private state."""

    def __init__(self, worker: Worker, train: Shards, device: torch.device, options: Flower, link: Link) -> None:
        super().__init__(worker, train, torch.device("cpu"))
        self.options, self.link = options, link
        self.hosts: dict[int, int] = {}
        """The node of each client."""
        self._greeted: set[int] = set()
        self._met = False
        """Whether it was waited for all nodes once."""
        self._versions = torch.zeros(train.clients, dtype=torch.int64)
        self._like = expected_message(worker, self.shards)
        self._made: dict[str, set[int]] = {}
        """Which nodes have made the live models of a name."""
        self._shapes: dict[str, Tree] = {}
        """A model of zeros by personaliser: what a live model looks like does not change from round to round."""
        self._late: list[Fault] = []
        """Clients that missed a test; told with the next round."""

    @property
    def mine(self) -> Tree:
        return {"version": self._versions}

    @mine.setter
    def mine(self, value: Tree) -> None:
        self._versions = value["version"]

    # --- who is there ---------------------------------------------------------------------------------------------

    def _find(self, clients: Iterable[int], enough: int | None = None) -> list[int]:
        """The clients whose nodes are connected. While they are fewer than `enough` it waits, at most `patience`.

        Without `enough` it waits for all of them; so it does before the first round, for nodes that start slowly.
        """
        wanted, end = list(clients), time.monotonic() + self.options.patience
        least = len(wanted) if enough is None or not self._met else enough
        while True:
            there = self._greet()
            found = [c for c in wanted if self.hosts.get(c) in there]
            if len(found) >= least or time.monotonic() >= end:
                self._met = True
                return found
            self.link.wait(min(1.0, self.options.patience))

    def _greet(self) -> set[int]:
        """The nodes that are connected; new ones are asked for their clients."""
        there = set(self.link.nodes())
        self._greeted &= there  # who was away is asked again
        if new := sorted(there - self._greeted):
            asks = [Ask(node, "query", {}, {}) for node in new]
            for answer in self.link.exchange(asks, self.options.patience, "hello"):
                self._greeted.add(answer.node)
                self._welcome(answer, there)
        return there

    def _welcome(self, answer: Answer, there: set[int]) -> None:
        """Note which clients a node hosts. A site that comes back may have a new number; nobody is taken over."""
        if answer.error is not None:
            self.link.say(f"node {answer.node} is not used: {answer.error}")
            return
        for c in answer.words.get("clients", ()):
            if not isinstance(c, int) or not 0 <= c < self.shards.clients:
                self.link.say(f"node {answer.node} says that it hosts {c!r}, which is no client of this run")
            elif (other := self.hosts.get(c)) in there and other != answer.node:
                self.link.say(f"node {answer.node} says that it hosts client {c}, which is at node {other}; not used")
            else:
                self.hosts[c] = answer.node

    def _by_node(self, clients: Iterable[int]) -> dict[int, list[int]]:
        groups: dict[int, list[int]] = {}
        for c in clients:
            groups.setdefault(self.hosts[c], []).append(c)
        return groups

    # --- a round --------------------------------------------------------------------------------------------------

    def train(self, down: Tree, cohort: Tensor, round: int) -> Reply:
        clients, got = cohort.tolist(), Collected()
        need = self._quorum(len(clients))
        for _ in range(self.options.tries):
            self._collect(down, [c for c in clients if c not in got.ups], round, need - len(got.ups), got)
            if len(got.ups) >= need:
                break
            why = "; ".join(f"client {f.client}: {f.reason}" for f in list(got.faults.values())[:3])
            self.link.say(f"round {round}: {len(got.ups)} of {len(clients)} clients, {need} needed ({why})")
        else:
            raise FleetError(
                f"round {round}: messages of {len(got.ups)} of {len(clients)} clients count after {self.options.tries} "
                f"tries, {need} are needed (backend.quorum={self.options.quorum}): {why}; mend the nodes and resume"
            )
        return self._reply(clients, got, round)

    def _quorum(self, clients: int) -> int:
        return max(math.ceil(self.options.quorum * clients), 1)

    def _collect(self, down: Tree, clients: list[int], round: int, enough: int, got: Collected) -> None:
        """Ask some clients for their round, and examine what comes back."""
        there = self._find(clients, enough)
        for c in clients:
            if c not in there:
                got.faults[c] = Fault(round, c, "lost", "its node is not connected")
        keep = [m["version"].tolist() for m in self.link.keep]
        asks = []
        for node, members in self._by_node(there).items():
            versions = {str(c): int(self._versions[c]) for c in members}
            kept = {str(c): sorted({versions[str(c)], *(k[c] for k in keep)}) for c in members}
            words = {"round": round, "versions": versions, "keep": kept}
            asks.append(Ask(node, "train", {"down": down}, words))
        answers = self.link.exchange(asks, self.options.deadline, str(round)) if asks else []
        asked = {ask.node: [int(c) for c in ask.words["versions"]] for ask in asks}
        for answer in answers:
            self._examine(answer, asked.get(answer.node, []), round, got)
        answered = {a.node for a in answers}
        still = set(self.link.nodes()) if len(answered) < len(asks) else set()
        for node in asked.keys() - answered:
            kind = "late" if node in still else "lost"
            reason = f"no answer within {self.options.deadline:.0f} s" if kind == "late" else "its node went away"
            for c in asked[node]:
                got.faults[c] = Fault(round, c, kind, reason)

    def _examine(self, answer: Answer, asked: list[int], round: int, got: Collected) -> None:
        """Take over the messages of one node that may count."""
        failed = answer.words.get("failed", {})
        for c in asked:
            if answer.error is not None:
                got.faults[c] = Fault(round, c, answer.kind, answer.error)
            elif str(c) in failed:
                kind, reason = failed[str(c)]
                got.faults[c] = Fault(round, c, str(kind), str(reason))
            elif f"up.{c}" not in answer.parcels:
                got.faults[c] = Fault(round, c, "groups", "the answer holds no message of this client")
        for name, parcel in answer.parcels.items():
            client = int(name.removeprefix("up.")) if name.removeprefix("up.").isdigit() else -1
            fault, up = self._open(parcel, client, asked, answer.words.get("round"), round, got)
            if fault is None and up is not None:
                got.ups[client] = up
                got.faults.pop(client, None)
            elif fault is not None and client in asked and client not in got.ups:
                got.faults[client] = fault
            elif fault is not None:
                got.refused.append(fault)

    def _open(
        self, parcel: Parcel, client: int, asked: list[int], sent_round: Any, round: int, got: Collected
    ) -> tuple[Fault | None, Tree | None]:
        if client in got.ups:  # said before `asked`: it is what happened
            return Fault(round, client, "duplicate", f"client {client} was already counted in round {round}"), None
        if client not in asked:
            return Fault(round, client, "error", f"this node was not asked for client {client}"), None
        limit = tree.nbytes(self._like) + HEADER * max(len(tree.leaves(self._like)), 1)
        if parcel.nbytes > limit:
            reason = f"the message has {parcel.nbytes:,} bytes on the wire, expected at most {limit:,}"
            return Fault(round, client, "oversize", reason), None
        try:
            up = with_empty_groups(parcel.open(), self._like)
        except ValueError as e:
            return Fault(round, client, "shape", str(e)), None
        sent = sent_round if isinstance(sent_round, int) else -1
        rules = None if any(f.encodes or f.hides for f in self.worker.filters) else self.worker.uplink
        found = examine(up, self._like, client=client, round=round, sent_round=sent, seen=got.ups, rules=rules)
        return found, (up if found is None else None)

    def _reply(self, clients: list[int], got: Collected, round: int) -> Reply:
        """Reduce in the order of the cohort, so that the result does not depend on who was quicker."""
        rules, part = self.worker.uplink, None
        present = [c for c in clients if c in got.ups]
        for c in present:
            up = self.worker.read(tree.map(lambda x: x[None], got.ups[c]))
            one = message.partial(rules, torch.tensor([c]), up)
            part = one if part is None else message.combine(part, one)
        assert part is not None
        self._versions = self._versions.clone()
        self._versions[present] = round + 1
        faults = (*self._late, *(got.faults[c] for c in clients if c in got.faults), *got.refused)
        for f in faults:
            self.link.say(f"round {f.round}: client {f.client} does not count ({f.kind}): {f.reason}")
        self._late = []
        return Reply(part, tree.map(lambda x: torch.empty_like(x, device="meta"), self._like), faults)

    # --- live models ----------------------------------------------------------------------------------------------

    def deploy(self, down: Tree, mine: Tree, personal: Personalizer) -> Models:
        return _named(Models("", down, mine["version"].tolist(), personal))

    def join(self, down: Tree, newcomers: int) -> Models:
        return _named(Models("", down, [0] * newcomers, None))

    def live(self, models: Models, client: int) -> Tree:
        """A model of the right names, shapes and types, and of zeros: a client's own model does not leave its node."""
        if (known := self._shapes.get(models.recipe)) is not None:
            return known
        if client not in self._find([client]):
            raise FleetError(f"client {client}: its node is not connected; start it and resume")
        if not self.ask_all(models, [client], {}):
            raise FleetError(f"client {client} cannot make its live model; the log says why")
        return self._shapes[models.recipe]

    def _learn(self, models: Models, answer: Answer) -> None:
        """Names, shapes and types of live models come with every answer about them."""
        flat = {n: torch.zeros(shape, dtype=getattr(torch, kind)) for n, shape, kind in answer.words.get("model", ())}
        if flat:
            self._shapes.setdefault(models.recipe, nested(flat))

    def serve(
        self, models: Models, test: Shards, adapter: Adapter, protocol: StreamProtocol, trace: bool = False
    ) -> Tree:
        if trace:
            raise ValueError("analysis=true keeps traces of single samples, which may not leave the nodes of a fleet")
        name = stream_name(test)
        words = {"test": self.link.names.get(name, name), "adapter": adapter, "protocol": protocol}
        scores: dict[int, Tree] = {}
        clients = [c for c in range(test.clients) if models.personal is None or c < self.shards.clients]
        for answer in self.ask_all(models, clients, words):
            for c in clients:
                if (parcel := answer.parcels.get(f"metrics.{c}")) is not None and c not in scores:
                    scores[c] = parcel.open()
        if not scores:
            raise FleetError("no client could be tested; the log says why")
        nothing = tree.zeros(next(iter(scores.values())))  # n = 0: does not count in any mean
        return tree.stack([scores.get(c, nothing) for c in range(test.clients)])

    def ask_all(self, models: Models, clients: list[int], words: Mapping[str, Any], all: bool = False) -> list[Answer]:
        """Ask the nodes of these clients to do something with live models; with `all`, wait until all are there.

        The models travel once to each node; who has lost them says so and is sent them again.
        """
        everyone = range(self.shards.clients)
        there = self._find(everyone, None if all else self._quorum(len(everyone)))
        groups = self._hosts_of(models, clients, there)
        got: list[Answer] = []
        for _ in range(2):
            made = self._made.setdefault(models.name, set())
            asks = [
                Ask(
                    node,
                    "evaluate",
                    {} if node in made else {"down": models.down},
                    {**words, **self._recipe(models, g)},
                )
                for node, g in groups.items()
            ]
            answers = self.link.exchange(asks, self.options.deadline, "test")
            lacking = {a.node for a in answers if a.words.get("lacks")}
            made |= {a.node for a in answers if a.error is None} - lacking
            made -= lacking
            good = [a for a in answers if a.error is None and a.node not in lacking]
            for answer in good:
                self._learn(models, answer)
            got += good
            self._missed(groups, answers)
            groups = {node: g for node, g in groups.items() if node in lacking}
            if not groups:
                break
        return got

    def _hosts_of(self, models: Models, clients: list[int], there: list[int]) -> dict[int, list[int]]:
        """Which node serves which clients. Newcomers have no node of their own; they are dealt out."""
        if models.personal is not None:
            return self._by_node(c for c in clients if c in there)
        nodes = sorted({self.hosts[c] for c in there})
        if not nodes:
            return {}
        return {node: clients[i :: len(nodes)] for i, node in enumerate(nodes) if clients[i :: len(nodes)]}

    def _recipe(self, models: Models, clients: list[int]) -> dict[str, Any]:
        """What a node needs besides `down` to make live models."""
        versions = {str(c): models.versions[c] for c in clients}
        return {"models": models.name, "versions": versions, "personal": models.personal}

    def _missed(self, groups: Mapping[int, list[int]], answers: list[Answer]) -> None:
        """Clients without a test: logged now, and told with the next round."""
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
            self._late.append(Fault(int(self._versions.max()), c, str(kind), f"not tested: {reason}"))
            self.link.say(f"client {c} is not in the test ({kind}): {reason}")


def _named(models: Models) -> Models:
    """Under a name that says what they are made from: nodes make the same models once."""
    told = f"{models.versions}{models.recipe}{memo.fingerprint(*tree.leaves(models.down))}"
    return models._replace(name=hashlib.sha256(told.encode()).hexdigest()[:16])


def stream_name(test: Shards) -> str:
    """Names exactly the examples and their order, so that server and nodes can be sure to mean the same test."""
    used = test.rows.unique()
    return memo.fingerprint(test.x[used], test.y[used], test.rows, test.n)[:16]


def expected_message(worker: Worker, like: Shards) -> Tree:
    """What one message looks like (meta tensors), from one batch of zeros: against this, messages are checked."""
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


def nested(flat: Mapping[str, Tensor]) -> Tree:
    """A tree from names such as `vars/params/head.weight`; ValueError where a name is both a tensor and a branch."""
    out: Tree = {}
    for name, value in flat.items():
        at, *path = out, *name.split("/")
        for part in path[:-1]:
            at = at.setdefault(part, {})
            if not isinstance(at, dict):
                raise ValueError(f"tensor '{name}' lies below another tensor")
        if path[-1] in at:
            raise ValueError(f"tensor '{name}' is also a branch")
        at[path[-1]] = value
    return out


def with_empty_groups(got: Tree, like: Tree) -> Tree:
    """The tree, and those branches of `like` that hold no tensor, which names alone cannot carry."""
    out = dict(got)
    for name, part in like.items():
        if not isinstance(part, dict):
            continue
        if name not in out and not tree.leaves(part):
            out[name] = tree.map(lambda x: x, part)
        elif isinstance(out.get(name), Mapping):
            out[name] = with_empty_groups(out[name], part)
    return out
