"""ResNet20 with group norm, FedTHE's second model: 20 clients with 1,500 examples each, one epoch, batch 32."""

from __future__ import annotations

from federated import Round, dealt, measure, task_of, with_rates
from harness import Context, Record

from acclimate.core import SGD, Work
from acclimate.methods import FedAvg
from acclimate.models import ResNet20


def group_norm(context: Context, ceilings: Record) -> Record:
    """FedAvg's round."""
    size = context.sized(
        full={"clients": 20, "examples": 1500, "batch": 32, "model": ResNet20()},
        quick={"clients": 2, "examples": 32, "batch": 16, "model": ResNet20()},
        smoke={"clients": 2, "examples": 8, "batch": 4, "model": ResNet20(width=0.125)},
    )
    data = dealt([size["examples"]] * size["clients"]).to(context.device)
    method = FedAvg(opt=SGD(lr=0.01), work=Work(epochs=1, batch=size["batch"]))
    record = measure(Round.of(task_of(size["model"]), method, data), context, looped=2, fast=True)
    settings = {k: v for k, v in size.items() if k != "model"} | {"epochs": 1}
    return {"settings": settings, **with_rates(record, ceilings)}
