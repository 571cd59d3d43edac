"""Clients that are registered and lie: what each of them sends, and how well the others' model does beside them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from attacked import FIRST, Federation, data_of, experiment, parcel

from acclimate.backends.flower.protocol import NodeAnswer, Parcel, Request
from acclimate.core import Tree, tree
from acclimate.filters import Krum, Masked, Median, TrimmedMean

DEFAULT = (
    "weight 2^62",
    "number 10^9",
    "share 1e30",
    "loss 1e38",
    "delta 3e38",
    "control 1e38",
    "flood",
    "hello hijack",
)
"""Attacks that the defaults of a network must bear."""
ROBUST = ("scaled by -4", "label flip", "sign flip")
"""Attacks of the right form, for which the robust reducers are."""
SHOWN = ("scaled by 100", "masked + 2^18")
"""Attacks that are also run with the defaults, to show what these do not promise."""
LIARS = {4: 1, 10: 3}
"""How many of so many clients lie."""
ROUNDS = 10
FLOOD = 20_000
"""Empty records that a flooding client sends in every round."""
Change = Callable[[Tree, Tree], Tree]
"""From an honest message and what the server sent to the message of a liar."""


def heavy(up: Tree, down: Tree) -> Tree:
    return up | {
        "n": torch.full_like(up["n"], 2**62),
        "delta": tree.map(lambda d: torch.full_like(d, -3.0), up["delta"]),
    }


def other_number(up: Tree, down: Tree) -> Tree:
    return up | {"id": torch.full_like(up["id"], 10**9)}


def large_share(up: Tree, down: Tree) -> Tree:
    return {**up, "share": torch.full_like(up["share"], 1e30), "delta": tree.scale(up["delta"], -1.0)}


def large_loss(up: Tree, down: Tree) -> Tree:
    return up | {"loss": torch.full_like(up["loss"], 1e38)}


def filled(group: str, value: float) -> Change:
    return lambda up, down: up | {group: tree.map(lambda d: torch.full_like(d, value), up[group])}


def shifted(up: Tree, down: Tree) -> Tree:
    """A masked message: every word moved by 2^18."""
    return tree.map(lambda x: x + 2**18, up)


def times(factor: float) -> Change:
    return lambda up, down: up | {"delta": tree.scale(up["delta"], factor)}


MESSAGES: dict[str, Change] = {
    "weight 2^62": heavy,
    "number 10^9": other_number,
    "share 1e30": large_share,
    "loss 1e38": large_loss,
    "delta 3e38": filled("delta", 3e38),
    "control 1e38": filled("control", 1e38),
    "masked + 2^18": shifted,
    "sign flip": times(-1.0),
    "scaled by 100": times(100.0),
    "scaled by -4": times(-4.0),
}
SHAPES = ("flood", "label flip", "hello hijack")
"""Attacks that are no change of a message."""


def tamper(attack: str, liars: Sequence[int]) -> Any:
    """What the nodes of some clients send instead of their honest answers."""
    empty = Parcel(0, dict)

    def act(client: int, request: Request, answer: NodeAnswer) -> list[NodeAnswer]:
        if client not in liars:
            return [answer]
        if attack == "hello hijack" and request.kind == "query":
            return [answer._replace(fields={"clients": list(range(10))})]
        if request.kind != "train" or attack in SHAPES[1:]:
            return [answer]
        if attack == "flood":
            return [answer._replace(parcels={**answer.parcels, **{f"up.{10**6 + i}": empty for i in range(FLOOD)}})]
        name = f"up.{client}"
        up = MESSAGES[attack](answer.parcels[name].open(), request.trees["down"])
        return [answer._replace(parcels={name: parcel(up)})]

    return act


def flipped(federation: Federation, liars: Sequence[int]) -> None:
    """Let some clients train on wrong labels: 9 for 0, 8 for 1, and so on."""
    link = federation.link
    honest = link.honest

    def lying(request: Request) -> NodeAnswer:
        c = request.node - FIRST
        if request.kind != "train" or c not in liars:
            return honest(request)
        data = data_of(link.train, c, request.fields["round"])
        up, _, _ = link.worker.train(request.trees["down"], link.worker.start(c), {**data, "y": 9 - data["y"]})
        return NodeAnswer(request.node, {f"up.{c}": parcel(up)}, {"round": request.fields["round"], "failed": {}})

    link.honest = lying


def method_of(attack: str) -> str:
    """A method whose messages have what the attack changes."""
    needed = {"number 10^9": "pfl-ensemble", "share 1e30": "afl", "loss 1e38": "afl", "control 1e38": "scaffold"}
    return needed.get(attack, "fedavg")


def defences(clients: int, liars: int) -> dict[str, tuple[Any, ...]]:
    """Filters by name: the defaults of a network, and the robust reducers, told how many may lie.

    Krum's proof needs more than 2 f + 2 clients. Of four it can be told of none: it takes the nearest to two others.
    """
    share = liars / clients + 0.01
    krum = Krum(liars=liars if clients > 2 * liars + 2 else 0)
    return {"default": (), "median": (Median(),), "trimmed": (TrimmedMean(share=share),), "krum": (krum,)}


def run(
    attack: str, clients: int, liars: int, filters: Sequence[Any] = (), rounds: int = 10, **options: Any
) -> dict[str, Any]:
    """One training with liars: the last ones, so that a hello that comes first is an honest one, or the first ones."""
    who = range(liars) if attack == "hello hijack" else range(clients - liars, clients)
    chosen = (*filters, *([Masked()] if attack == "masked + 2^18" else []))
    extra = ["method.weights=uniform"] if attack == "masked + 2^18" else []
    e = experiment(method_of(attack), "model.hidden=32", *extra, clients=clients, filters=chosen)
    f = Federation(e, tamper(attack, who), **options)
    if attack == "label flip":
        flipped(f, who)
    state = f.run(ROUNDS)
    kinds: dict[str, int] = {}
    for c, own in state.fault_counts.items():
        for kind, count in own.items() if int(c) in (*who, -1) else ():
            kinds[kind] = kinds.get(kind, 0) + count
    return {
        "attack": attack,
        "method": method_of(attack),
        "clients": clients,
        "liars": liars,
        "rounds": state.round,
        "accuracy": round(f.accuracy(), 4),
        "faults of liars": kinds,
        "faults of others": sum(sum(k.values()) for c, k in state.fault_counts.items() if int(c) not in (*who, -1)),
        "suspended": sorted(f.engine.suspended()),
        "faults kept": len(state.faults),
    }


def without(attack: str, clients: int, liars: int, filters: Sequence[Any] = ()) -> float:
    """The accuracy of the same training in which the liars' messages never arrive: what their honest data is worth is
    not lost by a defence."""
    who = range(liars) if attack == "hello hijack" else range(clients - liars, clients)
    extra = ["method.weights=uniform"] if attack == "masked + 2^18" else []
    e = experiment(method_of(attack), "model.hidden=32", *extra, clients=clients, filters=filters)

    def silent(client: int, request: Request, answer: NodeAnswer) -> list[NodeAnswer]:
        return [] if client in who and request.kind == "train" else [answer]

    f = Federation(e, silent)
    f.run(ROUNDS)
    return round(f.accuracy(), 4)


# --- in pieces --------------------------------------------------------------------------------------------------------


def plan(clients: int) -> list[tuple[str, str]]:
    """Which attacks meet which defence."""
    names = [d for d in defences(clients, LIARS[clients]) if d != "krum" or clients > 2 * LIARS[clients] + 2]
    rows = [(a, d) for a in ROBUST for d in names] + [(a, "default") for a in (*DEFAULT, *SHOWN)]
    return rows + [(a, "krum") for a in ROBUST if "krum" not in names]  # last, so that pieces keep their numbers


def row(clients: int, number: int) -> dict[str, Any]:
    """One row of the plan: a training with liars, and the same training in which they send nothing."""
    (attack, defence), liars = plan(clients)[number], LIARS[clients]
    found = run(attack, clients, liars, defences(clients, liars)[defence])
    silent = without(attack, clients, liars, defences(clients - liars, 0)[defence])
    return {**found, "defence": defence, "without": silent}


def merged(clients: int, rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """All rows in one table."""
    return {"rounds": ROUNDS, "rows_asked_for": len(plan(clients)), "rows": list(rows)}
