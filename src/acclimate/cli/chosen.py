"""What a run chose by the kind of its data, in one line."""

from __future__ import annotations

from ..experiment import Experiment, labels
from ..shifts.suited import kinds_of


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
        said.append(f"streams={names} (shifts: {', '.join(kinds_of(world.examples))})")
    scale = "scaled by training rows" if world.mean else f"scale={getattr(experiment.data, 'scale', 'none')}"
    what = f"{size} numbers, {scale}" if kind != "texts" else f"{size} {'bytes' if world.examples.text else 'tokens'}"
    line = f"{len(world.examples.y):,} {kind} of {what}, {world.clients} clients"
    return ["; ".join((line, *said)), *world.notes]
