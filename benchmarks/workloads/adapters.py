"""Test-time adapters: per sample against a loop over samples, per batch against a loop over clients."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import testtime
from federated import dealt, task_of
from harness import Context, Disagreement, Record, Way, compare, insist

from acclimate.adapters import T3A, BNStats, Tent
from acclimate.backends import Serial, Vmap
from acclimate.core import Adapter, Engine, Personalizer, Protocol, Shards, Work, Worker
from acclimate.methods import FedAvg
from acclimate.models import CNN

LOSS = 1e-4
"""How far the mean losses of both ways may be apart."""


def per_sample(context: Context, ceilings: Record) -> Record:
    """THE, MEMO, THEPlus and TTT, by benchmarks/testtime.py."""
    size = context.sized(full={"sizes": (20, 320, 16)}, quick={"sizes": (2, 4, 2)}, smoke={"sizes": (2, 4, 2)})["sizes"]
    clients, samples, looped = size
    rows = [testtime.measure(name, clients, samples, looped, context.device) for name in testtime.CASES]
    wrong = [r["adapter"] for r in rows if not r["loss_difference"] <= LOSS]
    if wrong:
        raise Disagreement(f"{', '.join(wrong)}: one sample at a time gives another loss than all together")
    settings = {"clients": clients, "samples": samples, "looped_samples": looped}
    return {"settings": settings, "agreement": {"agree": True, "allowed": LOSS}, "adapters": rows}


def per_batch(context: Context, ceilings: Record) -> Record:
    """Tent, batch statistics and T3A, in batches of 32: all clients at once against one after the other."""
    size = context.sized(
        full={"clients": 20, "samples": 320, "batch": 32, "model": CNN(norm="batch")},
        quick={"clients": 2, "samples": 64, "batch": 32, "model": CNN(norm="batch")},
        smoke={"clients": 2, "samples": 12, "batch": 4, "model": CNN(widths=(2, 3), hidden=4, norm="batch")},
    )
    worker = Worker(task_of(size["model"]), FedAvg(work=Work(epochs=1, batch=8)))
    test = dealt([size["samples"]] * size["clients"]).to(context.device)
    with (
        closing(Serial().open(worker, test, context.device)) as loop,
        closing(Vmap().open(worker, test, context.device)) as fast,
    ):
        adapters: dict[str, Adapter] = {"Tent": Tent(), "BNStats": BNStats(), "T3A": T3A()}
        rows = [
            {"adapter": name, **_both(loop, fast, test, adapter, Protocol(size["batch"]), context)}
            for name, adapter in adapters.items()
        ]
    return {"settings": {k: v for k, v in size.items() if k != "model"}, "agreement": {"agree": True}, "adapters": rows}


def _both(loop: Engine, fast: Engine, test: Shards, adapter: Adapter, protocol: Protocol, context: Context) -> Record:
    server = loop.worker.method.init_server(loop.worker.task, test.clients, loop.worker.key("init", like=test.n))
    down = loop.worker.method.download(loop.worker.task, server)

    def serving(engine: Engine) -> Any:
        models = engine.deploy(down, engine.mine, Personalizer())
        return lambda: engine.serve(models, test, adapter, protocol)["loss"]

    ways = {"loop": serving(loop), "ours": serving(fast)}
    expected, found = (f() for f in ways.values())
    agreement = insist({"ours": float((expected - found).abs().max())}, LOSS)
    record = compare({name: Way(f) for name, f in ways.items()}, context)
    samples = int(test.n.sum())
    per = {name: 1e3 * t["median"] / samples for name, t in record["seconds"].items()}
    return {"milliseconds_per_sample": per, "times_faster": record["times_faster"]["ours"], **agreement}
