"""Very uneven clients: client k holds a share of the examples that falls as 1/k (Zipf)."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing

from federated import Round, dealt, measure, task_of, with_rates
from harness import Context, Record
from torch import Tensor

from acclimate.backends import Vmap
from acclimate.core import SGD, Work
from acclimate.methods import FedAvg
from acclimate.models import CNN


def zipf_sizes(clients: int, largest: int, smallest: int) -> list[int]:
    """largest / k, but no less than the smallest."""
    return [max(round(largest / k), smallest) for k in range(1, clients + 1)]


def zipf(context: Context, ceilings: Record) -> Record:
    """FedAvg on such clients, and how much of the vectorised computation is padding."""
    size = context.sized(
        full={"clients": 200, "largest": 6000, "smallest": 20, "batch": 20, "model": CNN(bias=False)},
        quick={"clients": 6, "largest": 240, "smallest": 20, "batch": 20, "model": CNN(bias=False)},
        smoke={"clients": 6, "largest": 48, "smallest": 8, "batch": 4, "model": CNN(widths=(2, 3), hidden=4)},
    )
    held = zipf_sizes(size["clients"], size["largest"], size["smallest"])
    method = FedAvg(opt=SGD(lr=0.01), work=Work(epochs=1, batch=size["batch"]))
    whole = Round.of(task_of(size["model"]), method, dealt(held).to(context.device))
    record = with_rates(measure(whole, context, looped=size["clients"] // 3), ceilings)
    settings = {k: v for k, v in size.items() if k != "model"} | {"examples": sum(held), "epochs": 1}
    return {"settings": settings, **record, "padding": padding(whole, context, [whole.cohort])}


def padding(round: Round, context: Context, cohorts: Sequence[Tensor]) -> Record:
    """The share of the vectorised local steps that is undone: padded steps, and clients that fill up a recording."""
    work, real, computed, groups = round.work, 0, 0, 0
    with closing(Vmap().open(round.worker, round.data, context.device)) as engine:
        for cohort in cohorts:
            for g in engine.buckets.groups(engine.shards, cohort):
                real += sum(work.steps(int(n)) for n in g.n[: g.real])
                computed += len(g.ids) * work.steps(g.most)  # rows may have room for more, which no step takes
                groups += 1
    return {"real_steps": real, "computed_steps": computed, "waste": 1.0 - real / computed, "groups": groups}
