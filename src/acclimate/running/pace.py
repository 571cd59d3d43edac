"""How long adapters will take, guessed before training from one batch of one client."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping

from ..core import Adapter, Shards, Worker, stream
from ..core.adapter import Wrapping
from .evaluate import Built

MINUTE = 60.0
"""Seconds from which on an adapter is worth a warning."""


def slow(
    worker: Worker, clients: int, adapters: Mapping[str, Adapter], built: Built, least: float = MINUTE
) -> dict[str, float]:
    """The adapters that will take at least so many seconds on all streams together, and how many.

    Measured on the untrained model, one client at a time: clients that are served together may be faster. Adapters that
    need what only training or a personaliser gives are left out, and so is what fails here: this is a guess, and the
    test of the trained model says what is wrong.
    """
    if worker.method.several_models:
        return {}
    out = {}
    for name, adapter in adapters.items():
        with contextlib.suppress(Exception):
            seconds = _seconds(worker, clients, adapter, built)
            if seconds >= least:
                seconds = _seconds(worker, clients, adapter, built)  # the first call has what is done once
            if seconds >= least:
                out[name] = seconds
    return out


def _seconds(worker: Worker, clients: int, adapter: Adapter, built: Built) -> float:
    """What serving one batch takes, by the number of batches of all streams."""
    method, task = worker.method, worker.task
    inner = adapter.adapter if adapter.calibrates and isinstance(adapter, Wrapping) else adapter
    server = method.init_server(task, clients, worker.key("init"))
    model = method.deploy(task, method.download(task, server), worker.start(0))
    if inner.refusal(task, model):
        return 0.0
    shift, first = next(iter(built.values()))
    if not isinstance(first.shards, Shards):
        return 0.0
    client = int(first.shards.n.argmax())
    rows = first.shards.own(client)[: shift.protocol.batch]
    data = {"x": first.shards.x, "rows": rows, "n": first.shards.n[client].clamp_max(len(rows))}
    began = time.perf_counter()
    stream.run(task, worker.predict(), inner, model, data, shift.protocol, worker.key("pace"))
    samples = sum(int(test.shards.n.sum()) for _, test in built.values())
    return (time.perf_counter() - began) * samples / len(rows)
