"""Batches for data of few rows: where nobody chose one, it is small enough for every client."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

from ..core import Work
from ..data.fitting import Measured
from ..data.own import OwnFiles
from ..experiment import Experiment
from ..running.build import least_examples


def is_own(data: Any) -> bool:
    """Whether it is a user's own data, of which nobody knows beforehand how much there is."""
    return isinstance(data, Measured | OwnFiles)


def fitted(experiments: Sequence[Experiment], given: set[str]) -> tuple[list[Experiment], list[str]]:
    """The experiments with batches that all clients can fill, and a sentence that says so.

    Nothing changes where somebody chose a batch, or both method and number of clients, or the method for data of a
    known size: then an error says what does not fit.
    """
    same = list(experiments)
    own = "data.clients" not in given and all(is_own(e.data) for e in same)
    if any(key.endswith(".batch") for key in given) or not (own or "method" not in given):
        return same, []
    worlds = {(e.data, e.seed): e.data.world(e.seed) for e in same}
    fewest = min(len(rows) for world in worlds.values() for rows in world.train)
    wanted = max(map(least_examples, same))
    if fewest >= wanted or fewest < 2:
        return same, []
    batch = 1 << (fewest.bit_length() - 1)
    said = f"batches of at most {batch}, not {wanted}: a client has {fewest} training examples (method.work.batch)"
    return [_with_batch(e, batch) for e in same], [said]


def _with_batch(experiment: Experiment, batch: int) -> Experiment:
    """The experiment, in which no batch of local training is larger."""
    e = replace(experiment, method=_smaller(experiment.method, batch))
    return e if e.personal is None else replace(e, personal=_smaller(e.personal, batch))


def _smaller(record: Any, batch: int) -> Any:
    works = {f.name: getattr(record, f.name) for f in fields(record) if isinstance(getattr(record, f.name), Work)}
    return replace(record, **{n: replace(w, batch=batch) for n, w in works.items() if w.batch > batch})
