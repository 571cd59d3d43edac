"""What a run chose by the kind of its data, in one line."""

from __future__ import annotations

from ..experiment import Experiment, labels
from ..shifts.numbers import kinds_for


def chosen(experiment: Experiment, given: set[str]) -> list[str]:
    """The line, and what was done to the data; nothing for images, which are what the defaults are for."""
    kind = experiment.data.inputs()
    if kind == "images":
        return []
    world = experiment.data.world(experiment.seed)
    size = " x ".join(map(str, world.shape))
    said = [f"model={labels.name(experiment.model)}"] * ("model" not in given)
    if "streams" not in given:
        names = ",".join(labels.name(s) for s in experiment.streams)
        said.append(f"streams={names} (shifts: {', '.join(kinds_for(world.examples.x))})")
    scale = "scaled by training rows" if world.mean else f"scale={getattr(experiment.data, 'scale', 'none')}"
    line = f"{len(world.examples.y):,} {kind} of {size} numbers, {scale}, {world.clients} clients"
    return ["; ".join((line, *said)), *world.notes]
