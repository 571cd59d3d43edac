"""One picture of an experiment's data: its clients and classes, its training examples, its streams."""

from __future__ import annotations

import inspect
from pathlib import Path

import numpy as np

from ... import store
from ...core import rng
from ...data import World
from ...experiment import Experiment, catalogue
from ...shifts import Shift
from . import font, png
from .bubbles import bubble_plot
from .canvas import GREY, INK, Canvas, stack, to_rgb
from .sheet import contact_sheet

MARGIN = 48
GAP = 64


def preview(experiment: Experiment, path: Path) -> Path:
    """Write the picture of an experiment's data as a PNG file, whole or not at all. Trains nothing."""
    if path.suffix.lower() != ".png":
        raise ValueError(f"{path} must end in .png: the picture is a PNG file")
    if path.is_dir():
        raise ValueError(f"{path} is a folder; name a file, for example {path / 'preview.png'}")
    if path.parent.exists() and not path.parent.is_dir():
        raise ValueError(f"{path} cannot be written: {path.parent} is not a folder")
    store.write(path, png.encode(picture(experiment)))
    return path


def picture(experiment: Experiment) -> np.ndarray:
    """The same picture as an array, uint8 [H, W, 3]."""
    world = experiment.data.world(experiment.seed)
    to_rgb(world.examples.x[:1])  # refuses what are not images before the streams are built
    key = rng.fold(rng.key(world.seed), "streams")  # the one that a run builds them with
    built = [s.build(world, key) for s in experiment.streams]
    streams = dict(zip(catalogue.distinct(experiment.streams), built, strict=True))
    about = dict(zip(streams, map(_about, experiment.streams), strict=True))
    sheet = contact_sheet(world, streams, about)
    bubbles = bubble_plot(world, sheet.shape[1])
    heading = _heading(experiment, world, bubbles.shape[1])
    return stack([heading, bubbles, sheet], GAP, MARGIN)


def _about(shift: Shift) -> str:
    """The first paragraph of what a stream's record says of itself, and how it is served."""
    first = " ".join(inspect.cleandoc(type(shift).__doc__ or "").split("\n\n")[0].split())
    afresh = {"stream": "", "batch": ", each with a fresh adapter", "shift": ", a fresh adapter at every change"}
    served = "one by one" if shift.batch == 1 else f"in batches of {shift.batch}"
    return f"{first} Served {served}{afresh.get(shift.reset, f', reset={shift.reset}')}."


def _heading(experiment: Experiment, world: World, width: int) -> np.ndarray:
    """What the picture shows: the data set and its settings, and how many examples go where."""
    parts = {"training": world.train, "validation": world.val, "test": world.test, "of new clients": world.new}
    counts = [f"{sum(map(len, rows)):,} {name}" for name, rows in parts.items() if rows]
    counts += [f"{len(world.held):,} held out"] if len(world.held) else []
    shape = " x ".join(map(str, world.shape))
    clients = f"{world.clients} clients" + (f" and {len(world.new)} new ones" if world.new else "")
    facts = f"{clients}, {world.num_classes} classes, images of {shape}, seed {world.seed}"
    settings = catalogue.entry_of(experiment.data)[1]
    settings = [s for s in settings if not s.startswith("root=")]  # pictures are shared, folders are not
    partition = [] if any(s.startswith("partition") for s in settings) else [f"partition={_partition(experiment)}"]
    lines = [facts, f"examples: {', '.join(counts)}", f"data: {', '.join([*partition, *settings])}"]
    wrapped = [piece for line in lines for piece in font.wrap(line, width, 2)]
    out = Canvas(62 + 24 * len(wrapped), width)
    out.text(0, 0, world.name, INK, 5)
    for i, line in enumerate(wrapped):
        out.text(60 + 24 * i, 0, line, INK if i == 0 else GREY, 2)
    return out.pixels


def _partition(experiment: Experiment) -> str:
    return catalogue.label(experiment.data.partition)
