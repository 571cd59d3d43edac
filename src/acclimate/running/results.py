"""Parts of what a run writes into results.json."""

from __future__ import annotations

from typing import Any

from ..core import State, Worker
from ..data import World
from ..eval import Cost
from ..experiment import Experiment, encode


def faults_of(ended: State, worker: Worker) -> dict[str, Any]:
    """Clients whose messages did not count. None where cohorts are secret: a fault tells that its client was drawn.

    The checkpoint and the server's log have them all the same.
    """
    if worker.cohort_key is not None:
        return {"faults": []}
    counts = {"fault_counts": ended.fault_counts} if ended.fault_counts else {}
    return {"faults": list(ended.faults), **counts}


def served(cost: Cost) -> dict[str, Any]:
    """What serving an adapter took, for results.json; it is a time, so a rerun has another."""
    return {"ms_per_sample": round(1000 * cost.seconds / max(cost.samples, 1), 4), "state_bytes": cost.state_bytes}


def dealing(experiment: Experiment, world: World) -> dict[str, Any]:
    """Which partition dealt the examples, with its revision, where they were dealt here."""
    partition = experiment.data.partition
    revision = {"revision": partition.revision} if hasattr(partition, "revision") else {}
    return {"partition": {**encode(partition), **revision}} if world.content else {}
