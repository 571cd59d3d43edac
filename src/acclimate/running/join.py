"""New clients: a personalised model for whoever joins after training, with unlabelled data alone (`ac.join`).

A newcomer gets the deployed model and lets an adapter see its samples. What comes out is kept: model, adapter state and
a record of the adaptation. It predicts from then on without changing, and is saved as safetensors and JSON.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor, nn

from .. import store
from ..adapters import NoAdapt
from ..core import Adapter, Engine, Model, Task, Tree, Worker, rng, tree
from ..core.task import architectures
from ..experiment import Experiment, dumps, labels, loads
from ..ops.losses import entropy
from .module import module_of
from .run import Fit

SCHEMA = "acclimate.joined/1"
TENSORS, CARD = "model.safetensors", "joined.json"
Architecture: TypeAlias = Model | nn.Module | Callable[[tuple[int, ...], int], nn.Module]
"""A newcomer's own model: what an experiment's `model` may be."""


class CannotJoin(ValueError):
    """Why a client with unlabelled data cannot be served by this method and adapter."""


@dataclass(frozen=True)
class Joined:
    """A newcomer's own model: `predict` answers, `record` says how it was adapted, `save` keeps it."""

    experiment: Experiment
    """What was trained, with the one adapter that was used."""
    worker: Worker
    classes: tuple[str, ...]
    client: int
    model: Tree
    """The deployed model, as the newcomer got it."""
    state: Tree
    """What the adapter made of it."""
    record: dict[str, Any]
    """`samples`, mean entropy `entropy_before` and `entropy_after` adaptation, and what the adapter itself keeps: for
    FedTTA `entropy` and `learned_loss` from step 0 on, `chosen_step` and `steps_taken`."""

    @property
    def adapter(self) -> Adapter:
        """What adapted the model."""
        return self.experiment.adapters[0]

    def predict(self, x: Tensor | np.ndarray, batch: int = 256) -> Tensor:
        """Logits [N, classes] of images (uint8, or floats in 0..1). Every batch meets the model as it was joined."""
        x, key = _checked(self.worker.task, x), self.worker.key("adapt", self.client)
        parts = []
        for start in range(0, len(x), batch):
            now = rng.advance(rng.fold(key, "samples"), start)
            part = x[start : start + batch]
            logits, _ = self.adapter.step(
                self.worker.task, self.worker.predict(), self.model, self.state, part.to(now.device), now
            )
            parts.append(logits.detach().cpu())
        return torch.cat(parts)

    def module(self) -> nn.Module:
        """The model as a plain `nn.Module` in eval mode, where nothing adapts it: uint8 pixels, or floats in 0..1, to
        logits."""
        if not isinstance(self.adapter, NoAdapt):
            raise ValueError(
                f"module: {type(self.adapter).__name__} answers with a state of its own, which no plain module has; "
                "join with adapter=NoAdapt() (adapters=none), or keep to `predict`"
            )
        return module_of(self.worker, self.model)

    def save(self, path: str | Path, overwrite: bool = False) -> Path:
        """Write a folder of two files that `load_joined` reads: no pickle, and no data."""
        folder = Path(path)
        if (folder / CARD).exists() and not overwrite:
            raise store.RunError(f"{folder} holds a joined client; pass overwrite, or choose another folder")
        trees = {"model": self.model, "state": self.state}
        raw = save_tensors({k: v.detach().cpu().contiguous().clone() for k, v in tree.flatten(trees).items()})
        task = self.worker.task
        card = {
            "schema": SCHEMA,
            "client": self.client,
            "classes": list(self.classes),
            "task": {"shape": list(task.shape), "mean": list(task.mean), "std": list(task.std)},
            "record": self.record,
            "outline": _outline(trees),
            "sha256": hashlib.sha256(raw).hexdigest(),
            "config": json.loads(dumps(self.experiment)),
        }
        store.write(folder / TENSORS, raw)
        store.write(folder / CARD, json.dumps(card, indent=1) + "\n")
        return folder


def join(
    fit: Fit,
    x: Tensor | np.ndarray,
    adapter: Adapter | None = None,
    client: int = 0,
    selection: str = "last",
    batch: int = 32,
    model: Architecture | int | None = None,
) -> Joined:
    """A personalised model for a client that was not there for training, from its unlabelled samples `x`.

    `adapter` defaults to the first of the experiment's that can serve a newcomer, preferring those that adapt at all.
    `client` numbers newcomers from 0: it draws what an adapter or method draws. `selection` is the round: `last` or
    `validation`. An adapter that is not transductive sees the samples once, `batch` at a time.

    Where clients share no weights (HeteroFedTTA), `model` is the newcomer's own architecture: one of the federation's
    by its number, from 0, or any other; None: as the federation would deal it.
    """
    if client < 0:
        raise ValueError(f"join: client={client} must be at least 0: newcomers are numbered from 0")
    worker, device = _worker(fit, client, model), fit.engine.device
    x = _checked(worker.task, x).to(device)
    live = _deployed(fit, worker, client, selection)
    chosen = _choose(fit, worker, live, x, adapter, client, selection)
    key = worker.key("adapt", client, like=torch.empty(0, device=device))
    state = _adapted(worker, chosen, live, x, key, batch)
    joined = Joined(
        experiment=replace(fit.experiment, model=worker.task.model, adapters=(chosen,)),
        worker=worker,
        classes=fit.world.examples.classes,
        client=client,
        model=tree.to(live, "cpu"),
        state=tree.to(state, "cpu"),
        record={},
    )
    before = worker.predict()(live, x).logits
    record = {
        "samples": len(x),
        "round": _server(fit, selection)[0],
        "entropy_before": float(entropy(before).mean()),
        "entropy_after": float(entropy(joined.predict(x.cpu())).mean()),
    }
    return replace(joined, record={**record, **_told(state.get("record", {}))})


def load_joined(path: str | Path, **given: Any) -> Joined:
    """A joined client from its folder; `given` supplies Python objects that JSON cannot hold, such as `model`."""
    folder = Path(path)
    card = store.read_json(folder / CARD)
    if card.get("schema") != SCHEMA:
        raise store.RunError(f"{folder / CARD}: schema={card.get('schema')!r} must be '{SCHEMA}'")
    trees = _read(folder / TENSORS, card)
    e = loads(json.dumps(card["config"]), **given)
    about = card["task"]
    task = Task(e.model, tuple(about["shape"]), len(card["classes"]), tuple(about["mean"]), tuple(about["std"]))
    worker = Worker(task, e.method, (), e.seed)
    return Joined(e, worker, tuple(card["classes"]), card["client"], trees["model"], trees["state"], card["record"])


def _read(path: Path, card: Mapping[str, Any]) -> Tree:
    try:
        raw = path.read_bytes()
        if hashlib.sha256(raw).hexdigest() != card["sha256"]:
            raise store.RunError(f"{path} is damaged: its content does not match {CARD}; join again")
        return _filled(card["outline"], load_tensors(raw))
    except (SafetensorError, OSError, KeyError) as e:
        raise store.RunError(f"{path} is damaged or missing ({e}); join again") from e


def _outline(a: Any) -> Any:
    """The names of a tree without its tensors: empty dicts stay, which flat names would lose."""
    return {k: _outline(v) for k, v in a.items()} if isinstance(a, Mapping) else None


def _filled(outline: Any, tensors: Mapping[str, Tensor], prefix: str = "") -> Any:
    if outline is None:
        return tensors[prefix.removesuffix("/")]
    return {k: _filled(v, tensors, f"{prefix}{k}/") for k, v in outline.items()}


_ALLOWED = "expected uint8 (pixels) or float (pixels in 0..1, features)"


def _checked(task: Task, x: Tensor | np.ndarray) -> Tensor:
    """The samples as a tensor of the model's shape, or an error that says what is wrong with them."""
    if isinstance(x, np.ndarray):
        try:
            x = torch.from_numpy(np.array(x))
        except TypeError:  # text, objects, dates
            raise ValueError(f"join: x is of type {x.dtype}, {_ALLOWED}") from None
    if x.dim() != 1 + len(task.shape) or tuple(x.shape[1:]) != task.shape:
        raise ValueError(f"join: x has shape {tuple(x.shape)}, expected [N, {', '.join(map(str, task.shape))}]")
    if not len(x):
        raise ValueError("join: x has no samples; a newcomer needs at least one")
    if x.dtype != torch.uint8 and not x.is_floating_point():
        raise ValueError(f"join: x is of type {x.dtype}, {_ALLOWED}")
    if x.is_floating_point() and not bool(torch.isfinite(x).all()):
        raise ValueError("join: x holds values that are not finite")
    return x.float() if x.is_floating_point() else x


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
