"""What the server makes of malformed messages, at every method and filter.

Every message goes the way of a real one: an answer of a node, whose parcels are read, checked, decoded, judged and
combined with those of honest clients, and from which the method's server half makes the next state. Counted are errors
that reach the loop, ends of the run, and moves beyond the bounds, which are worked out here a second time.
"""

from __future__ import annotations

import functools
import random
import resource
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from attacked import FIRST, Federation, data_of, experiment, parcel
from malformed import LIAR, answer, of_a_test

from acclimate.backends.flower import stretches
from acclimate.backends.flower.intake import Intake
from acclimate.backends.flower.messages import RoundMessages, metrics_of
from acclimate.backends.flower.protocol import FleetError, NodeAnswer
from acclimate.core import Fault, Mean, Reply, Tree, Worker, exchange, fit, tree
from acclimate.core.stream import Protocol
from acclimate.experiment import catalogue


@dataclass
class Tally:
    """What happened to so many messages."""

    messages: int = 0
    crashes: int = 0
    ends: int = 0
    moves: int = 0
    """Messages that moved the model beyond the bounds."""
    not_finite: int = 0
    counted: int = 0
    """Messages that were in order after all, or became so by scaling."""
    left_out: int = 0
    """Rounds in which nobody's message counted: of hidden messages only the sum can be refused."""
    faults: Counter[str] = field(default_factory=Counter)
    sent: Counter[str] = field(default_factory=Counter)
    first: list[str] = field(default_factory=list)
    """The first things that went wrong, in words."""

    def wrong(self, what: str) -> None:
        if len(self.first) < 20:
            self.first.append(what)


CLIENTS = 4
NUMBERS = ("messages", "crashes", "ends", "moves", "not_finite", "counted", "left_out")
HIGHEST = {"accuracy": 1.001, "confidence": 1.001, "ece": 1.001, "loss": 1e30, "n": 1e12}
"""The largest values of metrics: those of all clients are added up."""
SMALLER = {"ccvr": ("method.virtual=2",)}
"""Settings of methods whose server half would take most of the time, and would do the same with less."""


class Target:
    """A method with a filter, three honest messages, and a server that gets a fourth again and again."""

    def __init__(self, method: str, filters: tuple[Any, ...] = ()) -> None:
        self.name = f"{method} {' '.join(type(f).__name__ for f in filters)}".strip()
        uniform = ["method.weights=uniform"] if any(hasattr(f, "withhold") for f in filters) else []
        more = (*uniform, *SMALLER.get(method, ()))
        self.federation = f = Federation(experiment(method, "data.fraction=0.1", *more, filters=filters))
        self.worker: Worker = f.worker
        self.expected, self.intake = f.engine._expected, f.engine._intake
        down = self.worker.method.download(self.worker.task, f.state.server)
        self.down = self.worker.outgoing(down, torch.arange(CLIENTS))
        self._listen()

    def _listen(self) -> None:
        """Let everybody send an honest message."""
        self.honest = {c: self._message(c) for c in range(CLIENTS)}
        self.decoded = self._arrived({c: self.honest[c] for c in range(CLIENTS) if c != LIAR}).decoded
        self.sizes = {c: self._sizes(up) for c, up in self.decoded.items()}

    def _sizes(self, up: Tree) -> dict[str, float]:
        return {group: length(up[group]) for group in self.intake.updates}

    def _message(self, client: int) -> Tree:
        data = data_of(self.federation.link.train, client, 0)
        up, _, _ = self.worker.train(self.down, self._mine(client), data)
        return up

    def _mine(self, client: int) -> Tree:
        return self.worker.start(client)

    def _arrived(self, ups: dict[int, Tree]) -> RoundMessages:
        arrived = RoundMessages(0, self.expected, self.worker, self.intake, self.down)
        for c, up in ups.items():
            arrived.take(NodeAnswer(FIRST + c, {f"up.{c}": parcel(up)}, {"round": 0, "failed": {}}), [c])
        assert not arrived.faults, (self.name, arrived.faults)
        return arrived

    def hit(self, chance: random.Random, tally: Tally) -> None:
        """A malformed message, or two: of training, or now and then of a test."""
        draw = chance.random()
        if draw < 0.04:
            self._tested(chance, tally)
            return
        liars = [LIAR] if draw < 0.9 else [LIAR - 1, LIAR]
        arrived, what = RoundMessages(0, self.expected, self.worker, self.intake, self.down), ""
        arrived.decoded = {c: up for c, up in self.decoded.items() if c not in liars}
        try:
            for liar in liars:
                word, sent = answer(self.honest[liar], 0, chance, liar)
                what = f"{what} {word}".strip()
                tally.messages += 1
                tally.sent[word] += 1
                arrived.take(sent, [liar])
            if not arrived.decoded.keys().isdisjoint(liars):  # the honest ones alone pass always
                arrived.judge()
            for fault in (*arrived.faults.values(), *arrived.refused):
                tally.faults[fault.kind] += 1
            if counted := len(arrived.decoded.keys() & set(liars)):
                tally.counted += counted
                self._settle(arrived, tally, what)
        except FleetError as e:
            tally.ends += 1
            tally.wrong(f"{self.name}, {what}: {e}"[:300])
        except Exception as e:
            tally.crashes += 1
            tally.wrong(f"{self.name}, {what}: {type(e).__name__}: {e}"[:300])

    def _tested(self, chance: random.Random, tally: Tally) -> None:
        tally.messages += 1
        tally.sent["metrics"] += 1
        try:
            found = metrics_of(of_a_test(chance), LIAR, 0)
        except Exception as e:
            tally.crashes += 1
            tally.wrong(f"{self.name}, metrics: {type(e).__name__}: {e}"[:300])
            return
        if isinstance(found, Fault):
            tally.faults[found.kind] += 1
            return
        tally.counted += 1
        if odd := {k: float(v) for k, v in tree.flatten(found).items() if not 0 <= float(v) <= HIGHEST[k]}:
            tally.moves += 1
            tally.wrong(f"{self.name}, metrics: {odd}"[:300])

    def _settle(self, arrived: RoundMessages, tally: Tally, what: str) -> None:
        engine, before = self.federation.engine, self.federation.state.server
        self.intake.state = self.federation.state.intake  # every message meets the same server
        reply = engine._reply(list(range(CLIENTS)), arrived)
        self._look(engine._open.messages, arrived, tally, what)
        cohort = torch.arange(CLIENTS)

        def attempt(given: Any, look: Any) -> Tree:
            return fit.update(self.worker, before, given, cohort, 0, torch.device("cpu"), look=look)

        server, reply = engine.settle(reply, before, attempt)
        tally.left_out += len(reply.part.clients) == 0
        tally.not_finite += not bool(tree.finite(server))
        if self.intake.hidden:
            moved = length(tree.sub(server["vars"], before["vars"]))
            if moved > (bound := self.federation.options.clip * length(self.down)):
                tally.moves += 1
                tally.wrong(f"{self.name}, {what}: the model moved by {moved}, and the bound is {bound}")

    def _look(self, used: dict[int, Tree], arrived: RoundMessages, tally: Tally, what: str) -> None:
        for reason in self.beyond(used, arrived.decoded):
            tally.moves += 1
            tally.wrong(f"{self.name}, {what}: {reason}"[:300])

    def beyond(self, used: dict[int, Tree], came: dict[int, Tree]) -> list[str]:
        """Where what is combined lies beyond the bounds: worked out by numpy, from the messages that came."""
        intake, options = self.intake, self.federation.options
        if intake.hidden:
            return []  # only their sum can be looked at
        if own := [f for f in self.worker.filters if f.bounds]:
            return [f"{c} has {length(up)}" for c, up in used.items() if length(up) > own[0].clip]
        out = []
        sizes = {c: self.sizes[c] if up is self.decoded.get(c) else self._sizes(up) for c, up in came.items()}
        for group in intake.updates:
            order = sorted(own[group] for own in sizes.values())
            bound = options.clip * order[(len(order) - 1) // 2] * (2 if group in intake.levels else 1)
            for c, up in used.items():
                size = sizes[c][group] if up[group] is came[c][group] else length(up[group])
                if size > bound * 1.001 + 1e-12:
                    out.append(f"{group} has {size}, {bound}")
        for group in {r.by for r in self.worker.method.uplink.values() if isinstance(r, Mean) and r.by}:
            held = np.stack([up[group].double().numpy()[0] for up in used.values()])
            if getattr(intake.limits.get(group), "pooled", False):
                held = held.sum(1)  # clients choose where they count: their share is that of all places
            most = np.maximum(options.max_share, 1 / np.maximum((held > 0).sum(0), 1))
            if np.any(held < 0) or np.any(held > most * held.sum(0) * 1.001 + 1e-9):
                out.append(f"{group} has {held.tolist()}")
        return out


class ExchangeTarget(Target):
    """The same of an adapter whose clients exchange in the middle of their streams."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.federation = f = Federation(experiment("fedavg", "data.fraction=0.1", "model.norm=batch"))
        self.serving = replace(catalogue.ADAPTERS[name], every=1)
        self.worker = exchange.serving(f.worker, self.serving, Protocol(batch=8))
        self.down: Tree = {}
        self.model = f.worker.method.deploy(f.worker.task, f.state.server, f.worker.start(0))
        self.expected = stretches.expected(self.worker, self.model, f.link.train)
        self.intake = Intake(self.worker, f.link.train.n, f.options.clip, f.options.max_share)
        self.first = self.intake.state
        self._listen()

    def _mine(self, client: int) -> Tree:
        size = int(self.federation.link.train.n.max())
        return self.worker.method.begin(self.worker.task, self.model, size, self.worker.key("adapt", client))

    def _settle(self, arrived: RoundMessages, tally: Tally, what: str) -> None:
        self.intake.state = self.first
        used = arrived.bounded([c for c in range(CLIENTS) if c in arrived.decoded])
        self._look(used, arrived, tally, what)
        reply = Reply(arrived.combined(used), self.expected)
        try:
            _, down = exchange._exchange(self.worker, {}, reply, reply.part.clients, 0, torch.device("cpu"))
            tally.not_finite += not bool(tree.finite(down))
        except (exchange.CannotExchange, ArithmeticError):  # the adapter has no row; the run goes on
            tally.left_out += 1


def length(part: Any) -> float:
    return float(np.sqrt(sum(np.square(x.numpy().astype(np.float64)).sum() for x in tree.leaves(part))))


def targets(quick: bool = False) -> list[Target]:
    """Every method and adapter that sends messages, and every filter on methods that it serves."""
    names = ["fedavg", "scaffold", "afl", "pfl-ensemble"] if quick else [n for n in catalogue.METHODS if n != "local"]
    made = [Target(n) for n in names]
    adapters = ["latte"] if quick else [n for n, a in catalogue.ADAPTERS.items() if exchange.exchanges(a)]
    made += [ExchangeTarget(n) for n in adapters]
    for key, f in catalogue.FILTERS.items():
        if quick and key not in ("median", "int8", "top-k", "masked"):
            continue
        for name in ("fedavg", "scaffold", "afl", "fedpcl")[: 1 if quick else None]:
            method = catalogue.METHODS[name]
            probe = Worker(made[0].worker.task, method, (f,))
            uniform = key in ("central-dp", "local-dp")
            if (not uniform and probe.refusal()) or (uniform and name != "fedavg"):
                continue
            if key in ("krum", "multi-krum"):
                f = type(f)(liars=0, select=f.select)
            made.append(Target(name, (f,)))
    return made


def resident() -> float:
    """Megabytes of memory that this process has now."""
    with open("/proc/self/statm") as f:
        return int(f.read().split()[1]) * resource.getpagesize() / 2**20


def bombard(made: Sequence[Target], count: int, seed: int = 0) -> Tally:
    """So many messages, in turn at all targets; a seed says which they are, and where the turn begins."""
    chance, tally = random.Random(seed), Tally()
    for i in range(count):
        made[(seed + i) % len(made)].hit(chance, tally)
    return tally


# --- in pieces --------------------------------------------------------------------------------------------------------

PIECE = 1000
"""Messages of one piece."""


@functools.cache
def everybody() -> list[Target]:
    """Every method and filter; each process makes them once."""
    warnings.simplefilter("ignore")
    return targets()


def piece(number: int) -> dict[str, Any]:
    """One piece of the attack, and the memory of the process after it."""
    made = everybody()
    return {"targets": len(made), **vars(bombard(made, PIECE, number)), "memory_mb": round(resident(), 1)}


def merged(pieces: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """All pieces in one."""
    total = {name: sum(p[name] for p in pieces) for name in NUMBERS}
    kinds = {name: dict(sum((Counter(p[name]) for p in pieces), Counter())) for name in ("faults", "sent")}
    first = [text for p in pieces for text in p["first"]][:20]
    return {"targets": pieces[0]["targets"], **total, **kinds, "first": first}
