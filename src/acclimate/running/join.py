"""New clients: a live model for whoever joins after training, with unlabelled data alone (`ac.join`).

A newcomer gets the deployed model and lets an adapter see its samples. What comes out is a live model like any other,
with a record of the adaptation: it answers, and goes on adapting when it is called.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from ..adapters import NoAdapt
from ..core import Adapter, Engine, Model, Tree, Worker, rng, tree
from ..core.nn.wrapped import Wrap
from ..core.task import architectures
from ..experiment import labels
from ..live import Live, inputs, session
from ..live.inputs import Samples
from ..live.model import SNAPSHOTS
from ..ops import guarding
from ..ops.losses import entropy
from .run import Fit

Architecture: TypeAlias = Model | Wrap | nn.Module | Callable[[tuple[int, ...], int], nn.Module]
"""A newcomer's own model: what an experiment's `model` may be."""


class CannotJoin(ValueError):
    """Why a client with unlabelled data cannot be served by this method and adapter."""


def join(
    fit: Fit,
    x: Samples,
    adapter: Adapter | None = None,
    client: int = 0,
    selection: str = "last",
    batch: int = 32,
    model: Architecture | int | None = None,
) -> Live:
    """A live model for a client that was not there for training, from its unlabelled samples `x`.

    `adapter` defaults to the first of the experiment's that can serve a newcomer, preferring those that adapt at all.
    `client` numbers newcomers from 0: it draws what an adapter or method draws. `selection` is the round: `last` or
    `validation`. An adapter that is not transductive sees the samples once, `batch` at a time.

    Where clients share no weights (HeteroFedTTA), `model` is the newcomer's own architecture: one of the federation's
    by its number, from 0, or any other; None: as the federation would deal it.
    """
    if client < 0:
        raise ValueError(f"join: client={client} must be at least 0: newcomers are numbered from 0")
    worker, device = _worker(fit, client, model), fit.engine.device
    dtype = fit.world.examples.x.dtype
    raw = fit.experiment.data.raw(fit.world, None)
    x = inputs.taken(worker.task, inputs.read(x, raw, "join", set()), dtype, "join").to(device)
    deployed = _deployed(fit, worker, client, selection)
    chosen = _choose(fit, worker, deployed, x, adapter, client, selection)
    if chosen.calibrates:
        deployed = {**deployed, "reference": worker.calibrate(deployed, guarding.nothing(x), chosen)}
    key = worker.key("adapt", client, like=torch.empty(0, device=device))
    state = _adapted(worker, chosen, deployed, x, key, batch)
    start = session.begin(worker.task, chosen, deployed, batch, dtype)
    now: Tree = tree.to({**start, "adapter": state, **_met(start, x)}, "cpu")
    live = Live(
        experiment=replace(fit.experiment, model=worker.task.model, adapters=(chosen,)),
        worker=worker,
        classes=fit.world.examples.classes,
        client=client,
        model=tree.to(deployed, "cpu"),
        session=now,
        snapshots=deque([(1, now)], maxlen=SNAPSHOTS),  # so that a reset can be taken back
        prepared=True,
        dtype=dtype,
        raw=raw,
    )
    before = worker.predict()(deployed, x).logits
    record = {
        "samples": len(x),
        "round": _server(fit, selection)[0],
        "entropy_before": float(entropy(before).mean()),
        "entropy_after": float(entropy(live.predict(x.cpu())).mean()),
    }
    return replace(live, record={**record, **_told(state.get("record", {}))})


def _met(start: Tree, x: Tensor) -> Tree:
    """What a session says of samples that its adapter has seen: the last of them, again and again, are its window."""
    size, count = start["window"].shape[0], torch.tensor(len(x))
    last = x[torch.arange(len(x) - size, len(x)) % len(x)]
    return {"window": last, "filled": torch.tensor(size), "seen": count, "step": torch.tensor(1)}


def _server(fit: Fit, selection: str) -> tuple[int, Tree]:
    if selection not in ("last", "validation"):
        raise ValueError(f"join: selection={selection!r} must be 'last' or 'validation'")
    best = fit.state.best
    if selection == "validation" and best is not None:
        return best.round, best.server
    return fit.state.round, fit.state.server


def _worker(fit: Fit, client: int, model: Architecture | int | None) -> Worker:
    """The client half of a newcomer: that of all clients, or with an architecture of its own."""
    engine, method = fit.engine, fit.worker.method
    if not method.several_models:
        if model is not None:
            raise ValueError(
                f"join: model={model!r} can be chosen only where clients share no weights (heterofedtta, fedmd); "
                f"{labels.name(method)} gives every newcomer the shared model"
            )
        return fit.worker
    if model is None:
        return engine.worker_of(fit.world.clients + client)
    if isinstance(model, int):
        return engine.architectures[_number(engine, model)]
    for worker in engine.architectures:
        if worker.task.model == model:
            return worker
    if (several := architectures(model)) is not None:
        raise ValueError(
            f"join: model=Mixed(...) has {len(several)} architectures, and a newcomer has one: {_known(engine)}; "
            "or another model"
        )
    return replace(engine.architectures[0], task=engine.worker.task.having(model))


def _number(engine: Engine, number: int) -> int:
    """The number of an architecture, where the federation has it."""
    if not 0 <= number < len(engine.architectures):
        raise ValueError(f"join: model={number} must be one of the federation's, {_known(engine)}; or another model")
    return number


def _known(engine: Engine) -> str:
    """The federation's architectures by number."""
    return ", ".join(f"{i} ({worker.task.model})" for i, worker in enumerate(engine.architectures))


def _deployed(fit: Fit, worker: Worker, client: int, selection: str, shake: float = 0.0) -> Tree:
    """What a newcomer gets. `shake` is added to the private state it would start from (see `untrained`)."""
    method, task, number = worker.method, worker.task, fit.world.clients + client
    like = torch.empty(0, device=fit.engine.device)
    fresh = tree.to(worker.start(number, like=like), fit.engine.device)
    down = method.download(task, _server(fit, selection)[1])
    fresh = method.welcome(task, down, fresh, worker.key("join", number, like=like))
    fresh = tree.map(lambda v: v + shake if v.is_floating_point() else v, fresh)
    return method.deploy(task, down, fresh)


def _choose(
    fit: Fit, worker: Worker, model: Tree, x: Tensor, adapter: Adapter | None, client: int, selection: str
) -> Adapter:
    """The adapter to join with; an error that says why none can."""
    asked = list(fit.experiment.adapters) if adapter is None else [adapter]
    # what a newcomer has learned without labels is its own: nothing in it waits for training
    own = worker.method.several_models
    shaken = model if own else _deployed(fit, worker, client, selection, shake=1.0)
    reasons = {a: refusal(worker, a, model, shaken, x[:1]) for a in asked}
    able = [a for a, reason in reasons.items() if reason is None]
    if not able:
        raise CannotJoin("; ".join(dict.fromkeys(r for r in reasons.values() if r)))
    return next((a for a in able if not isinstance(a, NoAdapt)), able[0])


def refusal(worker: Worker, adapter: Adapter, model: Tree, shaken: Tree, x: Tensor) -> str | None:
    """Why a newcomer cannot be served, in one sentence, or None where it can.

    `shaken` is `model` with other numbers in the private state that a newcomer starts from. What differs between the
    two is made by training on labels, which a newcomer does not have.
    """
    method = labels.name(worker.method)
    if reason := adapter.refusal(worker.task, model):
        return reason
    own = untrained(model, shaken)
    if needed := [k for k in adapter.requires if k in own]:
        return (
            f"{type(adapter).__name__} needs {', '.join(needed)}, which with {method} only clients that trained "
            "on labels have; choose another adapter"
        )
    answers = [worker.predict()(m, x).logits for m in (model, shaken)]
    if not torch.equal(*answers):
        return (
            f"{method} cannot serve newcomers without labels: its model has private parts that each client trains for "
            "itself; train a method whose model is shared, such as fedavg or fedtta"
        )
    return None


def untrained(model: Tree, shaken: Tree) -> set[str]:
    """The entries of a newcomer's model that depend on its private state, which nobody has trained."""
    flat, other = (tree.flatten(m) for m in (model, shaken))
    return {name.partition("/")[0] for name, v in flat.items() if not torch.equal(v, other[name])}


def _adapted(worker: Worker, adapter: Adapter, model: Tree, x: Tensor, key: rng.Key, batch: int) -> Tree:
    """The adapter's state when it has seen the samples: all at once, or batch by batch as a stream is served."""
    task, predict = worker.task, worker.predict()
    state = adapter.init(task, model)
    if adapter.transductive:
        real = torch.ones(len(x), dtype=torch.bool, device=x.device)
        return adapter.prepare(task, predict, model, state, x, real, rng.fold(key, "prepare"))
    for start in range(0, len(x), batch):
        at = torch.arange(start, start + batch, device=x.device) % len(x)  # full batches: the last wraps around
        _, state = adapter.step(task, predict, model, state, x[at], rng.advance(rng.fold(key, "samples"), start))
    return state


def _told(record: Tree) -> dict[str, Any]:
    """An adapter's own record as plain JSON; curves end where adaptation did."""
    plain = {name: v.detach().cpu().tolist() for name, v in record.items()}
    for name in ("chosen_step", "steps_taken"):
        if name in plain:
            plain[name] = int(plain[name])
    end = plain.get("steps_taken")
    return {n: v[: end + 1] if isinstance(v, list) and end is not None else v for n, v in plain.items()}
