"""The bubble plot: how many training examples of which class every client has, in the colours of domains."""

from __future__ import annotations

import math

import numpy as np
import torch

from ...data import World
from . import domains, font
from .canvas import GREY, INK, PALE, Canvas, Colour

CLIENTS = 60
"""Columns; further clients are only counted."""
CLASSES = 100
"""Rows; further classes are only counted."""

_TOP = 66  # title


def bubble_plot(world: World, width: int = 0) -> np.ndarray:
    """Clients from left to right, classes from top to bottom, areas as counts: uint8 [H, W, 3].

    A client has the colour of the domain that most of its examples come from. Clients that join after training stand on
    the right in lighter colours; theirs are the examples that they are tested on. The picture is `width` or more
    pixels wide.
    """
    old, new = world.train[:CLIENTS], world.new[: max(CLIENTS - len(world.train), 0)]
    rows, names = (*old, *new), world.examples.classes[:CLASSES]
    counts = world.histogram(rows)[:, :CLASSES]
    most = max(int(counts.max()), 1)
    colours = [domains.colour(d) for d in domains.majority(world, rows)]
    colours[len(old) :] = [domains.lighter(c) for c in colours[len(old) :]]
    high, wide = max(min(1200 // len(names), 52), 20), max(min(1200 // len(rows), 80), 20)
    cell, scale = min(high, wide), 2 if high >= 26 else 1
    names = tuple(font.shorten(n, 300, scale) for n in names)
    left = max(max(font.width(n, scale) for n in names), font.width("examples", 2)) + 16
    legend = _legend(world, most, cell, bool(new))
    down, across = high * len(names), wide * len(rows)
    height = _TOP + max(down + (84 if new else 52), len(legend))
    out = Canvas(height, max(left + across + 48 + legend.shape[1], width))
    _titles(out, world, len(rows))
    for k, name in enumerate(names):
        middle = _TOP + high * k + high // 2
        out.rectangle(middle, left, 1, across, PALE)
        out.text(middle - 3 * scale, left - 12, name, INK, scale, "right")
    _columns(out, left, down, wide, len(old), [len(r) for r in rows])
    for c, own in enumerate(counts.tolist()):
        for k, n in enumerate(own):
            out.circle(_TOP + high * (k + 0.5), left + wide * (c + 0.5), radius(n, most, cell), colours[c])
    out.paste(legend, _TOP, left + across + 48)
    return out.pixels


def radius(count: int, most: int, cell: int) -> float:
    """The radius whose circle has an area in proportion to the count; the largest nearly fills its cell."""
    return 0.47 * cell * math.sqrt(count / max(most, 1))


def _titles(out: Canvas, world: World, shown: int) -> None:
    used = out.text(0, 0, "clients and classes", INK, 3)
    words = ["training examples of every client, by class"]
    if (more := world.clients + len(world.new) - shown) > 0:
        words.append(f"and {more} more clients")
    if (more := world.num_classes - CLASSES) > 0:
        words.append(f"and {more} more classes")
    out.text(7, used + 24, "; ".join(words), GREY, 2)
    out.rectangle(36, 0, 2, out.pixels.shape[1], PALE)


def _columns(out: Canvas, left: int, down: int, wide: int, old: int, sizes: list[int]) -> None:
    """A line for every client, and below it the client's number and how many examples it has."""
    foot, scale = _TOP + down, 2 if wide >= 30 else 1
    small = 2 if all(font.width(str(s), 2) + 8 <= wide for s in sizes) else 1
    for c, size in enumerate(sizes):
        x = left + wide * c + wide // 2
        out.rectangle(_TOP, x, down, 1, PALE)
        out.text(foot + 10, x, str(c if c < old else c - old), INK, scale, "centre")
        if font.width(str(size)) < wide:
            out.text(foot + 32, x, str(size), GREY, small, "centre")
    out.text(foot + 10, left - 12, "client", INK, 2, "right")
    out.text(foot + 32, left - 12, "examples", GREY, 2, "right")
    if len(sizes) > old:
        out.rectangle(_TOP - 6, left + wide * old - 1, down + 12, 2, GREY)
        out.text(foot + 58, left + wide * old + 6, "new clients", GREY, 2)


def _legend(world: World, most: int, cell: int, new: bool) -> np.ndarray:
    """Domains and their colours, areas and their counts."""
    held = set(world.examples.domain[world.held].unique().tolist())
    heading = "domain of most examples" if domains.mixed(world) else "domain"
    used = torch.cat([*world.train, *world.new, world.held])
    there = world.examples.domain[used].unique().tolist()
    lines: list[tuple[float, Colour, str]] = []
    for d in there:
        lines.append(
            (
                8,
                domains.colour(d),
                font.shorten(world.examples.domains[d], 300, 2) + (" (held out)" if d in held else ""),
            )
        )
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
