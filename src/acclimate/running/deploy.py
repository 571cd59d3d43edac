"""From a trained client to its live model (`fit.deploy`): personalised, calibrated, guarded."""

from __future__ import annotations

from dataclasses import replace
from numbers import Integral
from typing import Any, Protocol

import torch

from ..adapters import Guarded, NoAdapt
from ..core import Adapter, Best, Engine, State, Tree, Worker, tree
from ..data import World
from ..data.raw import Raw
from ..experiment import Experiment, labels
from ..live import Live, session
from ..live.model import WINDOW
from ..live.module import personalised


class Trained(Protocol):
    """What deploying needs of a `Fit`."""

    @property
    def experiment(self) -> Experiment:
        """What was trained."""

    @property
    def world(self) -> World:
        """The clients' data."""

    @property
    def engine(self) -> Engine:
        """What ran the clients."""

    def selected(self, selection: str = "last") -> State | Best:
        """Round, server and private state."""


def deploy(
    fit: Trained,
    client: int,
    adapter: Adapter | None = None,
    guard: bool | Guarded = True,
    selection: str = "last",
    window: int = WINDOW,
) -> Live:
    """The live model of a client that trained.

    `adapter` defaults to the first of the experiment's that adapts and can serve the model. `guard` puts a guard around
    it, with the settings of a `Guarded` where one is given; False: none. `window` is how many recent samples an adapter
    sees that needs a batch.
    """
    if not _whole(window) or window < 2:
        raise ValueError(f"deploy: window={window!r} must be a whole number of at least 2: batch statistics need two")
    if adapter is not None and not isinstance(adapter, Adapter):
        raise ValueError(f"deploy: adapter={adapter!r} must be a record such as acclimate.adapters.Tent()")
    model, worker = live_model(fit, client, selection), fit.engine.worker_of(client)
    chosen = guarded(_chosen(fit, worker, model, adapter), guard)
    record = {"round": fit.selected(selection).round, "selection": selection}
    own = validation(fit, client) if chosen.calibrates else {}
    about = (fit.experiment, worker, fit.world.examples.classes, int(client), model, chosen)
    raw = fit.experiment.data.raw(fit.world, int(client))
    return assembled(*about, own, record, fit.world.examples.x.dtype, raw, window)


def assembled(
    experiment: Experiment,
    worker: Worker,
    classes: tuple[str, ...],
    client: int,
    model: Tree,
    adapter: Adapter,
    held: Tree,
    record: dict[str, Any],
    dtype: torch.dtype,
    raw: Raw | None = None,
    window: int = WINDOW,
) -> Live:
    """A live model out of a client's deployed one; `held` are its labelled validation examples, for a guard."""
    if adapter.calibrates:
        model = {**model, "reference": worker.calibrate(model, held, adapter)}
    model = tree.to(model, "cpu")
    return Live(
        experiment=replace(experiment, model=worker.task.model, adapters=(adapter,)),
        worker=worker,
        classes=classes,
        client=client,
        model=model,
        session=session.begin(worker.task, adapter, model, window, dtype),
        record=record,
        dtype=dtype,
        raw=raw,
    )


def _whole(value: object) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def check_client(world: World, client: int) -> None:
    """Refuse the number of a client that did not train."""
    if not _whole(client) or not 0 <= client < world.clients:
        raise ValueError(f"client={client!r} must be from 0 to {world.clients - 1}")


def live_model(fit: Trained, client: int, selection: str = "last") -> Tree:
    """A client's model when it goes live: after its personal phase and the experiment's personaliser."""
    check_client(fit.world, client)
    chosen, worker = fit.selected(selection), fit.engine.worker_of(client)
    down, mine = worker.method.download(worker.task, chosen.server), chosen.mine.take(client)
    return personalised(worker, fit.world, client, down, mine, fit.experiment.personal, fit.engine.device)


def validation(fit: Trained, client: int) -> Tree:
    """A client's labelled validation examples, as an adapter calibrates on them."""
    device, rows = fit.engine.device, fit.world.val[client]
    examples = fit.world.examples
    data = {"x": examples.x[rows], "y": examples.y[rows].to(torch.int64), "rows": torch.arange(max(len(rows), 1))}
    if not len(rows):  # the form of an example is needed all the same
        data |= {"x": examples.x[:1], "y": torch.zeros(1, dtype=torch.int64)}
    on: Tree = tree.to({**data, "n": torch.tensor(len(rows))}, device)
    return on


def _chosen(fit: Trained, worker: Worker, model: Tree, adapter: Adapter | None) -> Adapter:
    asked = list(fit.experiment.adapters) if adapter is None else [adapter]
    reasons = {a: a.refusal(worker.task, model) for a in asked}
    able = [a for a, reason in reasons.items() if reason is None]
    if not able:
        known = "; ".join(dict.fromkeys(r for r in reasons.values() if r))
        raise ValueError(f"deploy: {known}; choose another adapter, such as NoAdapt() (adapters=none)")
    return next((a for a in able if not isinstance(a, NoAdapt)), able[0])


def guarded(adapter: Adapter, guard: bool | Guarded = True) -> Adapter:
    """The adapter with a guard around it, where it adapts at all and has none."""
    if isinstance(adapter, Guarded | NoAdapt) or guard is False:
        return adapter
    if guard is not True and not isinstance(guard, Guarded):
        raise ValueError(f"deploy: guard={labels.text(guard)} must be True, False, or a Guarded with settings")
    return replace(guard, adapter=adapter) if isinstance(guard, Guarded) else Guarded(adapter)
