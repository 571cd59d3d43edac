"""Leave each node with its live model, and test it there with the chosen adapter."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from .. import store
from ..backends.flower.engine import FlowerEngine
from ..backends.flower.protocol import FleetError
from ..experiment import Experiment, labels
from ..running import run as api


def steps(experiment: Experiment) -> int:
    """How often `deploy` calls `done`: nodes have the model, they have left it for serving, a stream is through."""
    return 2 + len(experiment.streams)


def deploy(
    folder: store.RunFolder, selection: str, adapter: str, given: Mapping[str, Any], done: Callable[[], object]
) -> dict[str, Any]:
    """Send the trained model to all nodes, which personalise it and keep the result; then test. Metrics come back."""
    if selection not in ("last", "validation"):
        raise ValueError(f"selection='{selection}' must be last or validation")
    fit = api.load(folder.path, **given)
    named = dict(zip(labels.distinct(fit.experiment.adapters), fit.experiment.adapters, strict=True))
    name = adapter or next(iter(named))
    if name not in named:
        raise ValueError(f"adapter='{name}' must be one of the run's: {', '.join(named)}")
    engine, state = fit.engine, fit.state
    assert isinstance(engine, FlowerEngine)
    engine.intake = state.intake  # before anybody is asked: who is suspended is not
    chosen = state.best if selection == "validation" and state.best is not None else state
    down = fit.worker.method.download(fit.worker.task, chosen.server)
    models = engine.deploy(down, chosen.mine, fit.experiment.personal)
    done()
    if reason := named[name].refusal(fit.worker.task, engine.model_of(models, 0)):
        raise ValueError(f"adapter '{name}' cannot serve this model: {reason}")
    card = {"round": chosen.round, "selection": selection, "adapter": name, "label": fit.experiment.label}
    clients = [c for c in range(fit.world.clients) if c not in engine.suspended()]
    answers = engine.ask(models, clients, {"leave": card, "adapter": named[name]}, wait_for_all=True)
    left = [c for answer, asked in answers for c in asked if c in answer.fields.get("left", ())]
    if missing := sorted(set(clients) - set(left)):
        raise FleetError(
            f"client(s) {missing} did not get their model; the log says why. Deploy again when they are up"
        )
    done()
    accuracy = {}
    for stream, (shift, built) in api.streams_of(fit.world, fit.experiment.streams).items():
        if not built.new:  # newcomers are not sites of this fleet
            metrics = engine.serve(models, built.shards, named[name], shift.protocol)
            accuracy[stream] = [round(a, 6) for a in metrics["accuracy"].tolist()]
        done()
    return {**card, "clients": sorted(left), "accuracy": accuracy}
