"""FedTHE's CIFAR-10 setting: 20 clients (and 100) with 1,500 examples each, five epochs, batch 32, its CNN.

FedAvg and Per-FedAvg against their plain loops; SCAFFOLD and FedTHE against the Serial backend. Per-FedAvg
differentiates twice, and its step takes three batches of 32.
"""

from __future__ import annotations

import dataclasses
import time
from contextlib import closing
from typing import Any

import limits
import torch
from federated import Round, apart, dealt, images, measure, task_of, with_rates
from harness import Context, Record, wait

from acclimate.backends import Auto, Serial, Vmap
from acclimate.backends.vmap.capture import tf32
from acclimate.core import SGD, Backend, Shards, Work, fit
from acclimate.methods import SCAFFOLD, FedAvg, FedTHE
from acclimate.methods.perfedavg import PerFedAvg
from acclimate.models import CNN

SGD_01 = SGD(lr=0.01)


def setting(context: Context, method: Any, clients: int = 20) -> tuple[Round, Record]:
    """The round of a method in this setting, and what the setting is."""
    size = context.sized(
        full={"clients": clients, "examples": 1500, "epochs": 5, "model": CNN(bias=False)},
        quick={"clients": 4, "examples": 160, "epochs": 1, "model": CNN(bias=False)},
        smoke={"clients": 2, "examples": 40, "epochs": 1, "model": CNN(widths=(2, 3), hidden=4, bias=False)},
    )
    work = Work(epochs=size["epochs"], batch=32 if context.scale != "smoke" else 8)
    data = dealt([size["examples"]] * size["clients"]).to(context.device)
    told = {"clients": size["clients"], "examples": size["examples"], "epochs": work.epochs, "batch": work.batch}
    return Round.of(task_of(size["model"]), dataclasses.replace(method, work=work), data), told


def _measured(context: Context, ceilings: Record, method: Any, looped: int, clients: int = 20) -> Record:
    round, told = setting(context, method, clients)
    return {"settings": told, **with_rates(measure(round, context, looped, fast=True), ceilings)}


def fedavg_20(context: Context, ceilings: Record) -> Record:
    """FedAvg, also on each backend and with each precision that the engine offers."""
    round, told = setting(context, FedAvg(opt=SGD_01))
    more: dict[str, Backend] = {"serial": Serial(), "vmap": Vmap(capture=False)}
    if context.scale == "full":
        del more["serial"]  # slower than plain, and a figure that benchmarks/round.py has
    record = {"settings": told, **with_rates(measure(round, context, 20, more, fast=True), ceilings)}
    return {**record, "precision": _precisions(round, context)}


def fedavg_100(context: Context, ceilings: Record) -> Record:
    """FedAvg with five times as many clients."""
    return _measured(context, ceilings, FedAvg(opt=SGD_01), looped=4, clients=100)


def perfedavg_20(context: Context, ceilings: Record) -> Record:
    """Per-FedAvg, second order."""
    return _measured(context, ceilings, PerFedAvg(opt=SGD_01), looped=5)


def scaffold_20(context: Context, ceilings: Record) -> Record:
    """SCAFFOLD."""
    return _measured(context, ceilings, SCAFFOLD(opt=SGD_01), looped=2)


def fedthe_20(context: Context, ceilings: Record) -> Record:
    """FedTHE: one round, and many with validation after each (every client's deployed model, 300 examples)."""
    head = Work(epochs=1, batch=8 if context.scale == "smoke" else 32)
    round, told = setting(context, FedTHE(opt=SGD_01, head_opt=SGD_01, head_work=head))
    record = measure(round, context, looped=2)
    rounds = context.rounds or context.sized(full={"n": 20}, quick={"n": 1}, smoke={"n": 1})["n"]
    return {"settings": told, **record, "run": _validated(round, context, rounds, told["examples"] // 5)}


def _validated(round: Round, context: Context, rounds: int, examples: int) -> Record:
    """Training as `core.fit` does it; the first round, which records the graph, is timed apart."""
    clients = round.data.clients
    x, y = images(clients * examples, (3, 32, 32), 10, seed=1)
    val = Shards.of(x, y, list(torch.arange(len(y)).view(clients, examples))).to(context.device)
    schedule = fit.RoundPlan(rounds + 1, clients, clients)
    with closing(Auto().open(round.worker, round.data, context.device)) as engine:
        marks = [time.perf_counter()]
        for _ in fit.rounds(round.worker, engine, schedule, val, fit.start(round.worker, engine, clients)):
            wait(context.device)
            marks.append(time.perf_counter())
    took = marks[-1] - marks[1]
    return {
        "rounds": rounds,
        "seconds": took,
        "seconds_per_round": {"mean": took / rounds},
        "seconds_of_first_rounds": marks[1] - marks[0],
        "seconds_of_100_rounds": {"scaled": 100 * took / rounds},
    }


def _precisions(round: Round, context: Context) -> Record:
    """How far a round in TF32, and in what else the engine offers, ends from the one in float32."""
    start = round.server()["vars"]["params"]

    def result(backend: Backend, fast: bool) -> Any:
        with tf32(fast), closing(backend.open(round.worker, round.data, context.device)) as engine:
            return round.ours(engine)()

    exact = result(Auto(), False)
    found = {"tf32": apart(exact, result(Auto(), True), start)} if context.device.type == "cuda" else {}
    for name in set(offered()) - {"tf32"}:
        reduced: Any = {PRECISION: name}
        found[name] = apart(exact, result(Vmap(**reduced), False), start)
    return {"relative_distance_from_float32": found, "switches_of_the_engine": offered()}


PRECISION = "precision"
"""The field of `Vmap` that names the number format of local training, where it has one."""


def offered() -> list[str]:
    """The reduced precisions that the vectorised backend can be asked for."""
    fields = {f.name: f for f in dataclasses.fields(Vmap)}
    return ["tf32", "bf16"] if PRECISION in fields else []


def profile(context: Context, ceilings: Record) -> Record:
    """Where the time of one FedAvg round of 20 clients goes."""
    round, told = setting(context, FedAvg(opt=SGD_01))
    with tf32(False), closing(Auto().open(round.worker, round.data, context.device)) as engine:
        return {"settings": told, "profile": limits.profiled(round.ours(engine), context.device)}
