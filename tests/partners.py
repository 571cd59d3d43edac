"""For every adapter a small federation whose deployed models it can serve."""

from __future__ import annotations

from dataclasses import replace

from acclimate.adapters import EM, ICON, MBSL, MEMO, SHOT, THEPlus
from acclimate.core import Adapter, Engine, Task, Work, Worker, fit
from acclimate.experiment import catalogue
from acclimate.models import CNN, LoRA, ViT
from support import CLASSES, small, task

PARTNERS: dict[str, tuple[str, str, str]] = {
    "eata": ("fedavg", "fisher", "cnn"),
    "bbse": ("fedavg", "confusion", "cnn"),
    "knn": ("fedavg", "memory", "cnn"),
    "neo-client": ("fedavg", "means", "cnn"),
    "santa": ("fedavg", "means", "cnn"),
    "ttt": ("fedttt", "none", "cnn"),
    "ttt-episodic": ("fedttt", "none", "cnn"),
    "tsa": ("fedthe", "none", "cnn"),
    "the": ("fedthe", "none", "cnn"),
    "theplus": ("fedthe", "none", "cnn"),
    "atp": ("fedatp", "none", "cnn"),
    "atp-online": ("fedatp", "none", "cnn"),
    "fedtta": ("fedtta", "none", "cnn"),
    "fedtta-plus": ("fedtta", "none", "cnn"),
    "odpfl": ("odpfl", "none", "cnn"),
    "note": ("fedavg", "none", "iabn"),
    "dpa": ("feddpa", "none", "lora"),
    "the-lora": ("feddpa-the", "none", "lora"),
}
"""Method, personaliser and model; of all others FedAvg's plain CNN."""


def partner(name: str) -> tuple[Worker, str]:
    """A client half, and the personaliser that goes with it."""
    method, personal, model = PARTNERS.get(name, ("fedavg", "none", "cnn"))
    return Worker(_task(model), small(catalogue.METHODS[method])), personal


def short(name: str) -> Adapter:
    """The adapter with little to compute; what it does is the same."""
    adapter = catalogue.ADAPTERS[name]
    if isinstance(adapter, MBSL):
        return replace(adapter, epochs=2, batch=2, views=2)
    if isinstance(adapter, ICON):
        return replace(adapter, work=Work(epochs=3, batch=4))
    if isinstance(adapter, SHOT):
        return replace(adapter, epochs=2, batch=2)
    if isinstance(adapter, MEMO | THEPlus):
        return replace(adapter, chunk=1, **{"views": 2} if isinstance(adapter, MEMO) else {})
    return replace(adapter, steps=5) if isinstance(adapter, EM) else adapter


def models(worker: Worker, engine: Engine, personal: str) -> tuple[object, str | None]:
    """The deployed models of an untrained federation."""
    state = fit.start(worker, engine, engine.shards.clients)
    down = worker.method.download(worker.task, state.server)
    return engine.deploy(down, engine.mine, catalogue.PERSONALS[personal])


def _task(model: str) -> Task:
    if model == "cnn":
        return task("cnn-batch")
    base = CNN(widths=(3, 4), hidden=8, kernel=3, norm="iabn")
    if model == "lora":
        base = LoRA(ViT(patch=5, width=8, depth=1), rank=2, private=2)
    return Task(base, (3, 10, 10), CLASSES, (0.5,) * 3, (0.5,) * 3)
