"""What a run chose by the kind of its data, in one line."""

from __future__ import annotations

from ..data.group_partitions import ByClient
from ..data.world import World
from ..experiment import Experiment, labels
from ..ops.layout import counted
from ..shifts.suited import kinds_of
from .small import is_own


def chosen(experiment: Experiment, given: set[str]) -> list[str]:
    """The line, who got how much, and what was done to the data; of images, which are what the defaults are for,
    the second alone, where they are a user's own."""
    kind = experiment.data.inputs()
    if kind == "images" and not is_own(experiment.data):
        return []
    world = experiment.data.world(experiment.seed)
    dealt = client_names(world) if is_own(experiment.data) else []
    dealt += _dealt(experiment, world) if "data.clients" not in given else []
    if kind == "images":
        return dealt
    size = " x ".join(map(str, world.shape))
    said = [f"model={labels.name(experiment.model)}"] * ("model" not in given)
    if "streams" not in given:
        names = ",".join(labels.name(s) for s in experiment.streams)
        said.append(f"streams={names} (shifts: {', '.join(kinds_of(world.examples))})")
    scale = "scaled by training rows" if world.mean else f"scale={getattr(experiment.data, 'scale', 'none')}"
    what = (
        f"{size} {'number' if size == '1' else 'numbers'}, {scale}"
        if kind != "texts"
        else f"{size} {'bytes' if world.examples.text else 'tokens'}"
    )
    line = f"{len(world.examples.y):,} {kind} of {what}, {counted(world.clients, 'client')}"
    return ["; ".join((line, *said)), *dealt, *world.notes]


def client_names(world: World, most: int = 10) -> list[str]:
    """Which client is whom, where the data says so, and not by the same numbers."""
    names = [f"{c} = {name}" for c, name in enumerate(world.client_names)]
    if all(name == str(c) for c, name in enumerate(world.client_names)):
        return []
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return [f"clients are {', '.join(names[:most])}{more}"] if names else []


def _dealt(experiment: Experiment, world: World) -> list[str]:
    """To how many clients examples were dealt that name none, and how much each has."""
    partition, pool = experiment.data.partition, world.examples.pool()
    if not is_own(experiment.data) or (isinstance(partition, ByClient) and partition.count(pool)):
        return []
    parts = {"training": world.train, "validation": world.val, "test": world.test}
    sizes = ", ".join(f"{_range([len(r) for r in rows])} {name}" for name, rows in parts.items())
    named = "no clients are named" if isinstance(partition, ByClient) else f"partition={labels.name(partition)}"
    return [f"{named}: dealt to {world.clients}, each with {sizes} examples (data.clients, data.split)"]


def _range(sizes: list[int]) -> str:
    low, high = min(sizes), max(sizes)
    return str(low) if low == high else f"{low} to {high}"
