"""Clients at the nodes of a Flower network: the server's half.

The engine runs inside a Flower ServerApp (`acclimate.fleet.server_app`), which gives it a `Link`: a way to send nodes
requests and to wait for their answers. Nodes hold the data and the private states; the engine holds neither. Its `mine`
is a number per client, the version of the private state at its node: 0 before the first round, r + 1 after round r. It
is checkpointed like any state. A request says from which version a client starts, so a message that did not count, and
a server that goes on from an older checkpoint, leave no trace in the private states.

Every wait has an end: `deadline` for a round or a test, `patience` for nodes that are not there.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...core import (
    Adapter,
    Attempt,
    Backend,
    Engine,
    Fault,
    Personalizer,
    Private,
    Reply,
    Shards,
    Stacked,
    Tree,
    Worker,
    check,
    exchange,
    tree,
)
from ...core.stream import Protocol as StreamProtocol
from . import secure_rounds, stretches
from .intake import Intake
from .live_models import LiveModels, ModelRecipe, Trees
from .messages import NOBODY, OpenRound, RoundMessages, expected_message, metrics_of, of_nobody
from .protocol import LINK, FleetError, Link, NodeAnswer, Request, brief, stream_name
from .roster import Roster
from .settling import settled

ROUNDING = 1e-9
"""0.28 of 25 clients are 7, whatever the product is in floating point."""


@dataclass(frozen=True)
class Flower(Backend):
    """The nodes of a Flower network. Start one on this machine with `acclimate fleet up`."""

    deadline: float = 600.0
    """Seconds that nodes have for a round, or for a test. An answer that is later does not count."""
    quorum: float = 0.5
    """The share of a round's clients whose messages must count. Below it the missing ones are asked again."""
    tries: int = 3
    """How often a round is tried before the run stops."""
    patience: float = 60.0
    """Seconds to wait for nodes: for all of them at the start, later while fewer than the quorum are connected."""
    max_share: float = check.later(0.5)
    """The largest share of a round's weights that one client may have; where so few take part that this cannot be, all
    count alike."""
    clip: float = check.later(5.0)
    """An update is scaled down to so many times the running median of the norms of updates; 0: it is not."""
    strikes: int = check.later(3)
    """In how many rounds a client may break rules before it is suspended, for the rest of the run; 0: it never is."""

    def __post_init__(self) -> None:
        check.within(self, "quorum", 0.0, 1.0)
        check.at_least(self, "tries", 1)
        check.at_least(self, "clip", 0.0)
        check.whole(self, "strikes", 0)
        if not 0 < self.max_share <= 1:
            raise check.FieldError(f"Flower: max_share={self.max_share!r} must be above 0 and at most 1", "max_share")
        for name in ("deadline", "patience"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"Flower: {name}={getattr(self, name)!r} must be a number of seconds above 0")

    def needed(self, clients: int) -> int:
        """How many of so many clients the quorum is: at least one."""
        return max(math.ceil(self.quorum * clients - ROUNDING), 1)

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


class FlowerEngine(Engine):
    """Sends requests to nodes. Knows the version of each client's private state."""

    shards: Shards

    def __init__(self, worker: Worker, train: Shards, device: torch.device, options: Flower, link: Link) -> None:
        super().__init__(worker, train, torch.device("cpu"))
        self.options, self.link = options, link
        self.roster = Roster(link, train.clients, options.patience)
        self._live = LiveModels(link, self.roster, options.deadline)
        self._versions = torch.zeros(train.clients, dtype=torch.int64)
        self._expected = expected_message(worker, self.shards)
        self._intake = Intake(worker, self.shards.sizes, options.clip, options.max_share)
        self._open = OpenRound({}, self._arriving({}, 0), self._versions)
        self._sums = secure_rounds.of(worker, link, self.roster, options.deadline, options.tries)
        self._idle = 0
        """Rounds in a row that were left out because the server's half failed."""
        self._missed: list[Fault] = []
        """Clients that missed a test. They are reported with the next round, or at the end."""

    @property
    def mine(self) -> Private:
        return Stacked({"version": self._versions})

    @mine.setter
    def mine(self, value: Any) -> None:
        self._versions = value["version"]

    @property
    def intake(self) -> Tree:
        return self._intake.state

    @intake.setter
    def intake(self, value: Tree) -> None:
        self._intake.state = value

    # --- a round --------------------------------------------------------------------------------------------------

    def train(self, down: Tree, cohort: Tensor, round: int) -> Reply:
        arrived = self._arriving(down, round)
        shut = self.suspended()
        for c in (c for c in cohort.tolist() if c in shut):
            arrived.absent([c], "suspended", shut[c])
        clients = [c for c in cohort.tolist() if c not in shut]
        for _ in range(self.options.tries if clients else 0):
            have = arrived.decoded if self._sums is None else {}  # a new try is a new sum, of everybody
            left = [c for c in clients if c not in have and c not in arrived.struck]
            self._collect(down, left, self._needed(clients, arrived) - len(have), arrived, len(clients))
            arrived.judge()
            count, needed = len(arrived.decoded), self._needed(clients, arrived)
            needed = needed if self._sums is None else max(needed, self._sums.threshold)
            if count >= needed or arrived.struck.issuperset(clients):
                break
            why = "; ".join(f"client {f.client}: {f.reason}" for f in list(arrived.faults.values())[:3])
            self.link.log(f"round {round}: {count} of {len(clients)} clients, {needed} needed ({why})")
        else:
            if not clients or (self._sums is not None and self._sums.came >= self._needed(clients, arrived)):
                return self._reply(cohort.tolist(), arrived)
            raise FleetError(
                f"round {round}: messages of {count} of {len(clients)} clients count after {self.options.tries} "
                f"tries, {needed} are needed (backend.quorum={self.options.quorum}): {why}; mend the nodes and resume"
            )
        return self._reply(cohort.tolist(), arrived)

    def silence(self, down: Tree, round: int) -> Reply:
        return self._reply([], self._arriving(down, round))

    def _arriving(self, down: Tree, round: int) -> RoundMessages:
        return RoundMessages(round, self._expected, self.worker, self._intake, down)

    def _needed(self, clients: list[int], arrived: RoundMessages) -> int:
        """The quorum. Those whose messages broke rules are not waited for, so that nobody ends a run by them."""
        return self.options.needed(len(set(clients) - (arrived.struck - arrived.decoded.keys())))

    def suspended(self) -> dict[int, str]:
        """Clients that are not asked any more, and why."""
        strikes, most = self._intake.state["strikes"], self.options.strikes
        over = (strikes >= most).nonzero()[:, 0].tolist() if most else []
        shut = {c: f"it broke rules in {int(strikes[c])} rounds, and is not asked any more" for c in over}
        return shut | dict(self.link.barred)

    def _collect(self, down: Tree, clients: list[int], enough: int, arrived: RoundMessages, of: int) -> None:
        """Ask some clients of a round of so many for theirs, and take the messages that come back."""
        there = self.roster.find(clients, enough)
        arrived.absent([c for c in clients if c not in there], "lost", self.roster.why_absent())
        there = there if self._sums is None else self._sums.agree(there, of, arrived)
        asked = self.roster.by_node(there)
        requests = [self._request(down, node, members, arrived.round) for node, members in asked.items()]
        answers = self.link.exchange(requests, self.options.deadline, str(arrived.round)) if requests else []
        for answer in answers:
            arrived.take(answer, asked.get(answer.node, []))
        silent = asked.keys() - {a.node for a in answers}
        connected = set(self.link.nodes()) if silent else set()
        for node in silent:
            if node in connected:
                arrived.absent(asked[node], "late", f"no answer within {self.options.deadline:.0f} s")
            else:
                arrived.absent(asked[node], "lost", "its node went away")

    def _request(self, down: Tree, node: int, clients: list[int], round: int) -> Request:
        """The request to one node: from which versions its clients start, and which older ones it must keep."""
        versions = {str(c): int(self._versions[c]) for c in clients}
        older = [self._versions, *(mine["version"] for mine in self.link.keep)]
        keep = {str(c): sorted({int(v[c]) for v in older}) for c in clients}
        fields = {"round": round, "versions": versions, "keep": keep}
        extra = {} if self._sums is None else self._sums.fields(clients)
        return Request(node, "train", {"down": down}, {**fields, **extra})

    def _reply(self, clients: list[int], arrived: RoundMessages) -> Reply:
        present = [c for c in clients if c in arrived.decoded]
        messages = arrived.bounded(present)
        part, lost = arrived.combined(messages), []
        if self._sums is not None:
            try:
                part = self._sums.unmasked(part, self._expected, arrived)
            except secure_rounds.SumLost as e:
                part, messages, present = NOBODY, {}, []
                lost = [Fault(arrived.round, -1, "round", brief(f"nobody's message counts: {e}"))]
        if self._intake.noised and part is NOBODY:
            part = of_nobody(self._expected, self.worker)
        self._intake.strike(sorted(arrived.struck))
        self._open = OpenRound(messages, arrived, self._versions)
        self._versions = self._versions.clone()
        self._versions[present] = arrived.round + 1
        faults = (*self.missed(), *(arrived.faults[c] for c in clients if c in arrived.faults), *arrived.refused, *lost)
        self._log(faults)
        return Reply(part, self._expected, faults)

    def settle(self, reply: Reply, server: Tree, attempt: Attempt) -> tuple[Tree, Reply]:
        messages, arrived, before = self._open
        hidden = self._intake.hidden
        if not messages and (hidden or not self._intake.noised):  # else a model that stays tells who was not drawn
            return server, reply

        def look(total: Tree) -> None:
            self._intake.look_at_sum(total, list(messages), arrived.down, arrived.round)

        end = settled(
            messages,
            arrived.combined,
            reply,
            server,
            lambda given: attempt(given, look if hidden else None),
            alone=not hidden,
        )
        out = list(end.blamed) if end.error is None else list(messages)
        self._versions[out] = before[out]
        self._intake.strike(sorted(end.blamed))
        faults = [Fault(arrived.round, c, "error", brief(f"the server: {why}")) for c, why in end.blamed.items()]
        if end.error is not None:
            faults.append(Fault(arrived.round, -1, "round", brief(f"nobody's message counts: {end.error}")))
        self._idle = self._idle + 1 if not isinstance(end.error, ArithmeticError | None) else 0
        if self._idle >= self.options.tries:  # not the messages' fault, which differ from round to round
            raise FleetError(f"rounds up to {arrived.round} had to be left out: {end.error}") from end.error
        self._log(faults)
        return end.server, end.reply._replace(faults=(*end.reply.faults, *faults))

    def _log(self, faults: Iterable[Fault]) -> None:
        for f in faults:
            self.link.log(f"round {f.round}: client {f.client} does not count ({f.kind}): {f.reason}")

    # --- live models ----------------------------------------------------------------------------------------------

    def deploy(self, down: Tree, mine: Private, personal: Personalizer) -> ModelRecipe:
        return ModelRecipe.of(down, mine.saved()["version"].tolist(), personal)

    def join(self, down: Tree, newcomers: int) -> ModelRecipe:
        return ModelRecipe.of(down, [0] * newcomers, None)

    def model_of(self, models: ModelRecipe, client: int) -> Tree:
        """A model of the right names, shapes and types, and of zeros: a client's own model does not leave its node.

        All clients have models of one form, so all are asked for it: the node of this one alone may lie.
        """
        if self._live.zeros(models) is None:
            self.ask(models, list(range(len(models.versions))), {})
        if (model := self._live.zeros(models)) is None:
            raise FleetError("no client can make its live model; the log says why")
        return model

    def calibrated(self, models: ModelRecipe, held: Shards, adapter: Adapter) -> ModelRecipe:
        return models  # a node calibrates on validation examples of its own, which never leave it

    def serve(
        self, models: ModelRecipe, test: Shards, adapter: Adapter, protocol: StreamProtocol, trace: bool = False
    ) -> Tree:
        if trace:
            raise ValueError("analysis=true keeps traces of single samples, which may not leave the nodes of a fleet")
        if exchange.exchanges(adapter):
            return stretches.serve(self, models, test, adapter, protocol)
        name = stream_name(test)
        fields = {"test": self.link.stream_names.get(name, name), "adapter": adapter, "protocol": protocol}
        scores: dict[int, Tree] = {}
        clients = [c for c in range(test.clients) if models.personal is None or c < self.shards.clients]
        for answer, asked in self.ask(models, clients, fields):
            for c in asked:  # metrics of other clients are not read: this node may not speak for them
                found = metrics_of(answer.parcels.get(f"metrics.{c}"), c, self._rounds_done)
                if isinstance(found, Fault):
                    self.leave_out(c, found.kind, f"not tested: {found.reason}")
                else:
                    scores[c] = found
        if not scores:
            raise FleetError("no client could be tested; the log says why")
        nothing = tree.zeros(next(iter(scores.values())))  # n = 0: does not count in any mean
        return tree.stack([scores.get(c, nothing) for c in range(test.clients)])

    def ask(
        self,
        models: ModelRecipe,
        clients: list[int],
        fields: Mapping[str, Any],
        wait_for_all: bool = False,
        trees: Trees = lambda _: {},
    ) -> list[tuple[NodeAnswer, list[int]]]:
        """Ask the nodes of these clients to do something with live models; see `LiveModels.ask`.

        Clients whose nodes do not do it are noted as left out.
        """
        shut = self.suspended()
        everyone = [c for c in range(self.shards.clients) if c not in shut]
        there = self.roster.find(everyone, None if wait_for_all else self.options.needed(len(everyone)))
        if models.personal is not None:  # newcomers have numbers of their own
            for c in (c for c in clients if c in shut):
                self.leave_out(c, "suspended", shut[c])
            clients = [c for c in clients if c not in shut]
        answers, missing = self._live.ask(models, clients, there, fields, trees)
        what = "not tested" if "test" in fields else "no live model"
        for client, (kind, reason) in missing.items():
            self.leave_out(client, kind, f"{what}: {reason}")
        return answers

    def missed(self) -> tuple[Fault, ...]:
        outside = [f._replace(round=self._rounds_done) for f in self.link.refused]
        missed, self._missed = (*outside, *self._missed), []
        self.link.refused.clear()
        return missed

    @property
    def _rounds_done(self) -> int:
        return int(self._versions.max())

    def leave_out(self, client: int, kind: str, reason: str) -> None:
        """Note a client that is left out of a test: logged now, and reported with the next round or by `missed`."""
        fault = Fault(self._rounds_done, client, kind, brief(reason))
        if fault not in self._missed:  # every adapter and stream is a test of its own
            self._missed.append(fault)
            self.link.log(f"client {client} is left out ({kind}): {fault.reason}")
