"""The bubble plot: how many training examples of which class every client has, in the colours of domains."""

from __future__ import annotations

import math

import numpy as np
import torch

from ..data import World
from . import domains, font
from .canvas import GREY, INK, PALE, Canvas, Colour

CLIENTS = 60
"""Columns; further clients are only counted."""
CLASSES = 100
"""Rows; further classes are only counted."""

_TOP = 66  # title
_BELOW = 84  # numbers of clients, how many examples each has, name of the axis


def bubble_plot(world: World, width: int = 0) -> np.ndarray:
    """Clients from left to right, classes from top to bottom, areas as counts: uint8 [H, W, 3].

    A client has the colour of the domain that most of its examples come from. Clients that join after training stand on
    the right in lighter colours; theirs are the examples that they are tested on. The picture is `width` pixels wide, or
    more where it needs to be.
    """
    old, new = world.train[:CLIENTS], world.new[: max(CLIENTS - len(world.train), 0)]
    rows, names = (*old, *new), world.examples.classes[:CLASSES]
    counts = world.histogram(rows)[:, :CLASSES]
    colours = [domains.colour(d) for d in domains.majority(world, rows)]
    colours[len(old) :] = [domains.lighter(c) for c in colours[len(old) :]]
    cell = max(min(1200 // len(rows), 1200 // len(names), 52), 20)
    scale = 2 if cell >= 26 else 1
    left = max(max(font.width(n, scale) for n in names), font.width("examples", scale)) + 14
    legend = _legend(world, max(int(counts.max()), 1), cell, bool(new))
    down, across = cell * len(names), cell * len(rows)
    out = Canvas(max(_TOP + down + _BELOW, len(legend) + _TOP), max(left + across + 48 + legend.shape[1], width))
    _titles(out, world, len(rows))
    _grid(out, left, down, across, cell, len(old) if new else 0)
    for i, name in enumerate(names):
        out.text(_TOP + cell * i + cell // 2 - 3 * scale, left - 12, name, INK, scale, "right")
    _foot(out, world, left, _TOP + down, cell, scale, len(old), [len(r) for r in rows])
    for c, own in enumerate(counts.tolist()):
        for k, n in enumerate(own):
            y, x = _TOP + cell * (k + 0.5), left + cell * (c + 0.5)
            out.circle(y, x, radius(n, int(counts.max()), cell), colours[c])
    out.paste(legend, _TOP, left + across + 48)
    return out.pixels


def radius(count: int, most: int, cell: int) -> float:
    """The radius whose circle has an area in proportion to the count; the largest nearly fills its cell."""
    return 0.47 * cell * math.sqrt(count / max(most, 1))


def _titles(out: Canvas, world: World, shown: int) -> None:
    used = out.text(0, 0, "clients and classes", INK, 3)
    words = ["training examples of every client, by class"]
    if (more := world.clients + len(world.new) - shown) > 0:
        words.append(f"... and {more} more clients")
    if (more := world.num_classes - CLASSES) > 0:
        words.append(f"... and {more} more classes")
    out.text(7, used + 24, ", ".join(words), GREY, 2)
    out.rectangle(36, 0, 2, out.pixels.shape[1], PALE)


def _grid(out: Canvas, left: int, height: int, width: int, cell: int, divide: int) -> None:
    for y in range(_TOP + cell // 2, _TOP + height, cell):
        out.rectangle(y, left, 1, width, PALE)
    for x in range(left + cell // 2, left + width, cell):
        out.rectangle(_TOP, x, height, 1, PALE)
    if divide:
        out.rectangle(_TOP - 6, left + cell * divide - 1, height + 12, 2, GREY)


def _foot(out: Canvas, world: World, left: int, top: int, cell: int, scale: int, old: int, sizes: list[int]) -> None:
    """Below the plot: each client's number and how many examples it has."""
    small = scale if all(font.width(str(s), scale) < cell for s in sizes) else 1
    for c, size in enumerate(sizes):
        x, number = left + cell * c + cell // 2, c if c < old else c - old
        out.text(top + 10, x, str(number), INK, scale, "centre")
        if font.width(str(size)) < cell:
            out.text(top + 32, x, str(size), GREY, small, "centre")
    out.text(top + 10, left - 12, "client", INK, scale, "right")
    out.text(top + 32, left - 12, "examples", GREY, scale, "right")
    if len(sizes) > old:
        out.text(top + 56, left + cell * old + 4, "new clients", GREY, scale)


def _legend(world: World, most: int, cell: int, new: bool) -> np.ndarray:
    """Domains and their colours, areas and their counts."""
    held = set(world.examples.domain[world.held].unique().tolist())
    heading = "domain of most examples" if domains.mixed(world) else "domain"
    used = torch.cat([*world.train, *world.new, world.held])
    there = world.examples.domain[used].unique().tolist()
    lines: list[tuple[float, Colour, str]] = []
    for d in there:
        lines.append((8, domains.colour(d), world.examples.domains[d] + (" (held out)" if d in held else "")))
    sizes = sorted({most, max(most // 4, 1), max(most // 16, 1)}, reverse=True)
    areas: list[tuple[float, Colour, str]] = [(radius(n, most, cell), GREY, str(n)) for n in sizes]
    parts = [(heading, lines), ("examples", areas)]
    if new:
        parts.append(("", [(8, PALE, "lighter: joins after training")]))
    room = max(font.width(t, 2) for h, own in parts for t in (h, *(text for _, _, text in own))) + cell + 20
    heights = [[max(int(2 * r) + 8, 26) for r, _, _ in own] for _, own in parts]
    out, top = Canvas(sum(map(sum, heights)) + 52 * len(parts), room), 0
    for (heading, own), tall in zip(parts, heights, strict=True):
        out.text(top, 0, heading, INK, 2)
        top += 28 if heading else 0
        for (r, colour, text), height in zip(own, tall, strict=True):
            middle = max(cell // 2, 9) if own is areas else 9
            out.circle(top + height / 2, middle, r, colour)
            out.text(top + height // 2 - 7, 2 * middle + 8, text, INK, 2)
            top += height
        top += 24
    return out.pixels
