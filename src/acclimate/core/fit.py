"""The one round loop, for every method and every engine, of one training or of several in lanes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from . import message, rng, tree, variances
from .adapter import Adapter
from .backend import Engine, Fault, Reply
from .message import Partial
from .nn import soundness
from .personal import Personalizer
from .poisson import poisson
from .private import Private
from .shards import Shards
from .stream import Protocol
from .tree import Tree
from .worker import Worker

KEPT = 20
"""Faults of one client that are kept with their reasons; all are counted. So a checkpoint does not grow without end."""
SPARSE = 16
"""With so many times more clients than a cohort has, it is drawn without a look at every client."""


Look = Callable[[Tree], None]
"""Looks at the combined messages of a round before the method gets them."""


@dataclass(frozen=True)
class RoundPlan:
    """How many rounds, who takes part, and when to look at the validation data."""

    rounds: int
    clients: int
    cohort: int
    eval_every: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.cohort <= self.clients:
            raise ValueError(f"cohort={self.cohort} must be between 1 and the number of clients, {self.clients}")
        if self.rounds < 1:
            raise ValueError(f"rounds={self.rounds} must be at least 1")
        if self.eval_every < 1:
            raise ValueError(f"eval_every={self.eval_every} must be at least 1")

    def evaluates(self, round: int) -> bool:
        """Whether the validation data is looked at after this round (always after the last)."""
        return (round + 1) % self.eval_every == 0 or round + 1 == self.rounds


@dataclass(frozen=True)
class Best:
    """The round that validation accuracy selected so far, and the states it left."""

    round: int
    score: float
    server: Tree = field(repr=False)
    mine: Private = field(repr=False)


@dataclass(frozen=True)
class State:
    """All that the loop carries from round to round: what a checkpoint holds."""

    round: int
    """Rounds done."""
    server: Tree = field(repr=False)
    mine: Private = field(repr=False)
    best: Best | None = None
    history: tuple[dict[str, Any], ...] = ()
    """One row per evaluated round."""
    cost: dict[str, Any] = field(default_factory=dict)
    """Bytes so far, summed over clients (`up`: of messages that counted; `down`), and what one `message`
    consists of."""
    faults: tuple[dict[str, Any], ...] = ()
    """Clients whose messages did not count in some round (`round`, `client`, `kind`, `reason`), in order: of every
    client the first `KEPT`."""
    fault_counts: dict[str, dict[str, int]] = field(default_factory=dict)
    """How many faults there were of every client, by kind."""
    intake: Tree = field(default_factory=dict)
    """What the engine remembers of messages that came (`Engine.intake`)."""
    added: Mapping[str, float] = field(default_factory=dict)
    """Of a state that a checkpoint is checked against: what fills parts of `server` that it lacks (`Method.added`)."""


def start(worker: Worker, engine: Engine, clients: int) -> State:
    """The state before the first round."""
    return start_together([worker], engine, clients)[0]


def start_together(workers: Sequence[Worker], engine: Engine, clients: int) -> list[State]:
    """The state of every lane before the first round."""
    like, states = torch.empty(0, device=engine.device), []
    for worker, mine in zip(workers, engine.lanes.each_mine(engine.mine), strict=True):
        server = worker.method.init_server(worker.task, clients, worker.key("init", like=like))
        tree.check(server, f"{type(worker.method).__name__}.init_server")
        cost = {"up": 0, "down": 0, "message": []}
        states.append(
            State(0, tree.to(server, engine.device), mine, cost=cost, intake=engine.intake, added=worker.method.added)
        )
    return states


def sample(worker: Worker, schedule: RoundPlan, round: int) -> Tensor:
    """The clients of a round, ascending: `cohort` of them by seed and round, or each by a secret coin of its own."""
    if (secret := worker.cohort_key) is not None:
        return poisson(secret, schedule.clients, schedule.cohort, round)
    clients, cohort = schedule.clients, schedule.cohort
    if cohort == clients:
        return torch.arange(clients)
    if cohort * SPARSE <= clients:  # a draw for every client would make rounds slower the more clients there are
        draws = rng.bits(worker.key("cohort", round, "sparse"), 2 * cohort) % clients
        chosen = list(dict.fromkeys(draws.tolist()))
        if len(chosen) >= cohort:
            return torch.tensor(chosen[:cohort]).sort().values
    return rng.bits(worker.key("cohort", round), clients).topk(cohort, largest=False).indices.sort().values


def rounds(worker: Worker, engine: Engine, schedule: RoundPlan, val: Shards, state: State) -> Iterator[State]:
    """Train from `state` to the last round, yielding the state after each round."""
    return (after for (after,) in rounds_together([worker], engine, schedule, [val], [state]))


def rounds_together(
    workers: Sequence[Worker], engine: Engine, schedule: RoundPlan, vals: Sequence[Shards], states: list[State]
) -> Iterator[list[State]]:
    """Train one or more lanes, all after the same round, to the last, yielding the state of each after each round."""
    lanes, val = engine.lanes, engine.gather(vals)
    engine.mine, engine.intake = lanes.mine([s.mine for s in states]), states[0].intake
    following = [sample(w, schedule, states[0].round) for w in workers]
    for r in range(states[0].round, schedule.rounds):
        cohorts = following
        if r + 1 < schedule.rounds:
            following = [sample(w, schedule, r + 1) for w in workers]
            engine.expect(lanes.cohort([_shown(c) for c in following], schedule.clients))
        done = _one_round(workers, engine, [s.server for s in states], cohorts, r, schedule.cohort)
        ended = zip(workers, states, done, lanes.each_mine(engine.mine), cohorts, strict=True)
        states = [
            _after(s, *one, mine, len(cohort), schedule.cohort if w.cohort_key is not None else None, engine.intake)
            for w, s, one, mine, cohort in ended
        ]
        if schedule.evaluates(r):
            states = validate(workers, engine, val, states)
        yield states


def one_round(worker: Worker, engine: Engine, server: Tree, cohort: Tensor, round: int) -> tuple[Tree, Reply, Tree]:
    """Download, train, combine, filter, update."""
    return _one_round([worker], engine, [server], [cohort], round)[0]


def _one_round(
    workers: Sequence[Worker],
    engine: Engine,
    servers: Sequence[Tree],
    cohorts: Sequence[Tensor],
    round: int,
    expected: int | None = None,
) -> list[tuple[Tree, Reply, Tree]]:
    """One round of every lane: its server's new state, the reply of its clients, and what they got."""
    lanes, before = list(zip(workers, servers, cohorts, strict=True)), engine.mine
    shown = [_shown(cohort) for cohort in cohorts]
    downs = [w.outgoing(w.method.download(w.task, s), c) for w, s, c in zip(workers, servers, shown, strict=True)]
    nobody = any(len(cohort) == 0 for cohort in cohorts)  # of secret cohorts, which have no lanes beside them
    silent = engine.silence(downs[0], round) if nobody else None
    replies = engine.train_lanes(downs, shown, round) if silent is None else [silent]
    if nobody:
        replies, engine.mine = [r._replace(part=_nobody(r.part)) for r in replies], before
    done = []
    for (w, server, cohort), reply, down in zip(lanes, replies, downs, strict=True):
        attempt = partial(_attempt, w, server, cohort, round, engine.device, expected)
        done.append((*engine.settle(reply, server, attempt), down))
    return done


def _attempt(
    worker: Worker,
    server: Tree,
    cohort: Tensor,
    round: int,
    device: torch.device,
    expected: int | None,
    reply: Reply,
    look: Look | None,
) -> Tree:
    return update(worker, server, reply, cohort, round, device, expected, look)


def _shown(cohort: Tensor) -> Tensor:
    """Who runs. Where nobody was drawn, client 0 shows the form of a message, and its values count for nothing.

    The round must take place all the same: a round without noise would tell that nobody was in it.
    """
    return cohort if len(cohort) else torch.zeros(1, dtype=torch.int64)


def _nobody(part: Partial) -> Partial:
    """The partial sums of no client, in the form of these."""
    return part.of(slice(0))._replace(sums=tree.zeros(part.sums), weights=tree.zeros(part.weights))


def _after(
    state: State, server: Tree, reply: Reply, down: Tree, mine: Private, asked: int, expected: int | None, intake: Tree
) -> State:
    """A lane's state when a round is over."""
    after = replace(state, round=state.round + 1, server=server, mine=mine, intake=intake)
    return with_faults(replace(after, cost=add_cost(state.cost, reply, down, asked, expected)), reply.faults)


def with_faults(state: State, faults: Sequence[Fault]) -> State:
    """The state with more faults: counted, and kept as long as their client has few."""
    kept, counts = list(state.faults), {c: dict(kinds) for c, kinds in state.fault_counts.items()}
    for fault in faults:
        own = counts.setdefault(str(fault.client), {})
        if sum(own.values()) < KEPT:
            kept.append(fault._asdict())
        own[fault.kind] = own.get(fault.kind, 0) + 1
    return replace(state, faults=tuple(kept), fault_counts=counts)


def update(
    worker: Worker,
    server: Tree,
    reply: Reply,
    cohort: Tensor,
    round: int,
    device: torch.device,
    expected: int | None = None,
    look: Look | None = None,
) -> Tree:
    """The server's half of a round: combine what came back, filter it, and let the method make of it what it will.

    `look` is shown what the method gets, before it gets it.
    """
    task, method, asked, absent = worker.task, worker.method, len(cohort), cohort[:0]
    if len(reply.part.clients) < len(cohort):  # some were lost; the order of the rest is kept
        there = torch.isin(cohort, reply.part.clients.to(cohort.device))
        cohort, absent = cohort[there], cohort[~there]
    total = message.finish(worker.uplink, reply.part, cohort)
    like = torch.empty(0, device=device)
    total = worker.receive(total, round, len(cohort), asked, like, expected, tuple(absent.tolist()))
    if look is not None:
        look(total)
    server = variances.not_below_zero(method.server(task, server, total, worker.key("server", round, like=like)))
    if not bool(soundness.finite(server)):
        raise ArithmeticError(f"round {round}: the server's state is not finite after {type(method).__name__}.server")
    return server


def add_cost(cost: dict[str, Any], reply: Reply, down: Tree, asked: int, expected: int | None = None) -> dict[str, Any]:
    """The bytes so far, with those of one more round: sent to all that were asked, received from those that counted.

    Secret cohorts are counted as `expected`, because their true number tells whether one client was in them.
    """
    up, down_ = (len(reply.part.clients), asked) if expected is None else (expected, expected)
    return {
        "up": cost["up"] + tree.nbytes(reply.up) * up,
        "down": cost["down"] + tree.nbytes(down) * down_,
        "message": message.describe(reply.up),
    }


def validate(workers: Sequence[Worker], engine: Engine, val: Shards, states: Sequence[State]) -> list[State]:
    """Score the deployed models of every lane on the clients' validation data and keep its best round."""
    downs = [w.method.download(w.task, s.server) for w, s in zip(workers, states, strict=True)]
    models = engine.deploy(engine.lanes.downs(downs), engine.mine, Personalizer())
    metrics = engine.lanes.each(engine.serve(models, val, Adapter(), Protocol()))
    return [judge(s, m) for s, m in zip(states, metrics, strict=True)]


def judge(state: State, metrics: Tree) -> State:
    """The state with a row more in its history, and with the best round by validation accuracy.

    Where nobody holds validation data there is no accuracy, and no round is the best.
    """
    held = metrics["n"] > 0
    accuracy, loss = metrics["accuracy"][held], metrics["loss"][held]
    score, std, mean = (
        (float(accuracy.mean()), float(accuracy.std(correction=0)), float(loss.mean()))
        if len(accuracy)
        else (None, None, None)
    )
    row = {
        "round": state.round,
        "val_accuracy": score,
        "val_std": std,
        "val_loss": mean,
        "up_bytes": state.cost["up"],
        "down_bytes": state.cost["down"],
    }
    best = state.best
    if score is not None and (best is None or score > best.score):
        best = Best(state.round, score, state.server, state.mine)
    return replace(state, best=best, history=(*state.history, row))
