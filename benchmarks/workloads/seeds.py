"""Three seeds trained together (`backends.vmap.lanes`) against one, in FedTHE's setting.

In the engine's own precision, which is TF32 for convolutions on a GPU, and in float32.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace

from federated import ALLOWED, Round, apart
from harness import Context, Record, Way, compare, insist

from acclimate.backends import Vmap
from acclimate.backends.vmap.capture import tf32
from acclimate.backends.vmap.lanes import Lane
from acclimate.core import SGD, Stacked, fit, tree
from acclimate.methods import FedAvg

from .fedthe import setting


def three(context: Context, ceilings: Record) -> Record:
    """Seconds of a round of three seeds, as a multiple of one seed's."""
    round, told = setting(context, FedAvg(opt=SGD(lr=0.01)))
    seeds = [replace(round, worker=replace(round.worker, seed=s)) for s in range(3)]
    agreement = _agreement(seeds, context)
    seconds, cost = {}, {}
    for precision, fast in {"": True, ", float32": False}.items():
        with tf32(fast), closing(Vmap().open(round.worker, round.data, context.device)) as engine:
            one, three = Way(round.ours(engine), tf32=fast), Way(together(seeds, context), tf32=fast)
            ways = {f"one seed{precision}": one, f"three seeds{precision}": three}
            found = compare(ways, context)["seconds"]
        first, all_ = (found[name]["median"] for name in ways)
        seconds |= found
        cost["float32" if precision else "default"] = all_ / first
    return {
        "settings": told,
        "agreement": agreement,
        "seconds": seconds,
        "cost_in_seeds": cost["default"],
        "cost_in_seeds_float32": cost["float32"],
    }


def together(rounds: Sequence[Round], context: Context) -> Callable[[], list[tree.Tree]]:
    """One round of several seeds as one cohort: each seed's new parameters."""
    engine = Vmap().open_lanes([Lane(r.worker, r.data) for r in rounds], context.device)
    workers, data, clients = [r.worker for r in rounds], [r.data for r in rounds], rounds[0].data.clients
    states = [
        replace(s, server=r.cast(s.server), mine=Stacked(r.cast(s.mine)))
        for r, s in zip(rounds, fit.start_together(workers, engine, clients), strict=True)
    ]
    schedule = fit.RoundPlan(2, clients, clients, eval_every=2)  # the first of two rounds is not evaluated

    def once() -> list[tree.Tree]:
        after = next(fit.rounds_together(workers, engine, schedule, data, states))
        return [s.server["vars"]["params"] for s in after]

    return once


def _agreement(seeds: Sequence[Round], context: Context) -> Record:
    """Whether every seed ends where it ends alone, in double precision."""
    small = [r.exact() for r in seeds]
    distances = {}
    for r, result in zip(small, together(small, context)(), strict=True):
        with closing(Vmap().open(r.worker, r.data, context.device)) as engine:
            alone = r.ours(engine)()
        distances[f"seed {r.worker.seed}"] = apart(alone, result, r.server()["vars"]["params"])
    return insist(distances, ALLOWED)
