"""What can be known of experiments before one of them is trained."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace

from .. import store
from ..core import Personalizer, Worker, exchange
from ..data import World
from ..experiment import Experiment, dumps, encode
from ..ops.devices import device_of
from .build import check_mixed, check_sizes, worker_of


@contextlib.contextmanager
def naming(name: str) -> Iterator[None]:
    """Say in an error which of several experiments it is about."""
    try:
        yield
    except ValueError as e:
        raise ValueError(f"{name}: {e}") from e


def check_all(experiments: Sequence[Experiment]) -> None:
    """An error where one of several cannot be built: it should not stop them after hours of training the others.
    Another where none can be tested; that some cannot is for the table to say.

    Data are dealt once per seed, and everything else is tried with the first seed only.
    """
    worlds: dict[str, list[tuple[str, Experiment]]] = {}
    for name, e in zip(store.folder_names(experiments), experiments, strict=True):
        with naming(name):
            check_mixed(e)
        if e.backend.conducted() is None:  # else another process builds it, perhaps from data that are not here
            worlds.setdefault(json.dumps([encode(e.data), e.seed]), []).append((name, e))
    tried: dict[str, str | None] = {}
    for members in worlds.values():
        _check_members(members, tried)
    reasons = [reason for reason in tried.values() if reason]
    if len(reasons) == len(tried) > 0 and all(e.backend.conducted() is None for e in experiments):
        raise ValueError(reasons[0])


def check_clients(experiments: Sequence[Experiment]) -> None:
    """An error where a client of one of several has fewer examples than a batch. Data are dealt once per seed."""
    worlds: dict[str, list[Experiment]] = {}
    for e in experiments:
        worlds.setdefault(json.dumps([encode(e.data), e.seed]), []).append(e)
    for members in worlds.values():
        world = members[0].data.world(members[0].seed)
        for e in members:
            check_sizes(e, world)


def _check_members(members: Sequence[tuple[str, Experiment]], tried: dict[str, str | None]) -> None:
    """Those of one data set and seed; `tried` has what was tried already, and why that cannot be tested."""
    name, first = members[0]
    with naming(name):
        world = first.data.world(first.seed)
    for name, e in members:
        with naming(name):
            check_sizes(e, world)
            device_of(e.device)
            if (same := dumps(replace(e, seed=0))) not in tried:
                tried[same] = _check_start(e, world)


def _check_start(experiment: Experiment, world: World) -> str | None:
    """An error where the method cannot start with this model; why it cannot be tested, where that is so."""
    if check_mixed(experiment, world):
        return _of_all([exchange.mixed_refusal(a) for a in experiment.adapters])
    return untestable(experiment, world, worker_of(experiment, world))


def untestable(experiment: Experiment, world: World, worker: Worker) -> str | None:
    """Why none of the adapters can serve the model that will be trained; None where one can.

    Asked of the untrained model, which has the parts of the trained one. A personaliser may add some: then nothing is
    known before it has run.
    """
    method, task = worker.method, worker.task
    if method.several_models:  # every architecture has a model of its own
        return None
    server, own = method.init_server(task, world.clients, worker.key("init")), worker.start(0)
    if type(experiment.personal).run is not Personalizer.run:
        return None
    model = method.deploy(task, method.download(task, server), own)
    return _of_all([a.refusal(task, model) or exchange.refusal(worker, a, world.clients) for a in experiment.adapters])


def _of_all(reasons: Sequence[str | None]) -> str | None:
    """Why no adapter can be tested, out of what each refuses with; None where one can."""
    if None in reasons:
        return None
    because = "; ".join(dict.fromkeys(r for r in reasons if r))
    return f"no adapter can be tested, so nothing would be measured: {because}; adapters=none tests the model as it is"
