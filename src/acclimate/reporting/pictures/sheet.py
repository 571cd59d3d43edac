"""The contact sheet: what clients train on, and what every stream shows them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...data import World
from ...shifts import Stream
from . import domains, font
from .canvas import GREY, INK, PALE, Canvas, Colour, to_rgb

CLIENTS = 10
"""Rows of a block; further clients are only counted."""
IMAGES = 12
"""Images of a row."""

_GAP = 4  # between images
_TITLE = 56  # a block's title and the rule below it
_TEXT = 22  # a line of what is said about a block
_LINE = 10  # between rows
_BETWEEN = 48  # between blocks


@dataclass(frozen=True)
class Row:
    """One client: its name, how many examples it has, the colour of its domain, and some examples."""

    name: str
    count: int
    colour: Colour
    images: np.ndarray
    classes: tuple[str, ...]


@dataclass(frozen=True)
class Block:
    """The clients of one stream."""

    title: str
    note: str
    about: str
    rows: tuple[Row, ...]
    more: int
    """How many clients are not shown."""


@dataclass(frozen=True)
class _Measures:
    """Sizes in pixels that all blocks share."""

    label: int
    width: int
    tall: int
    wide: int
    scale: int
    step: int
    caption: int
    """The scale of class names."""

    @classmethod
    def of(cls, world: World, blocks: list[Block]) -> _Measures:
        names = [text for b in blocks for r in b.rows for text in (r.name, f"n={r.count}")]
        label = max(font.width(n, 2) for n in names) + 42
        scale, step = _scaling(*world.shape[1:])
        tall, wide = (-(-side // step) * scale for side in world.shape[1:])
        large = max(font.width(n, 2) for n in world.examples.classes) <= wide
        return cls(label, label + IMAGES * (wide + _GAP) - _GAP, tall, wide, scale, step, 2 if large else 1)

    def about(self, block: Block) -> list[str]:
        """What is said about a block, in lines."""
        return font.wrap(block.about, self.width, 2)[:3] if block.about else []

    def head(self, blocks: Sequence[Block]) -> int:
        """From the title to the first row, for blocks that stand side by side."""
        return _TITLE + max(_TEXT * len(self.about(b)) + (6 if b.about else 0) for b in blocks)

    @property
    def row(self) -> int:
        """From one row to the next."""
        return self.tall + 4 + 9 * self.caption + _LINE

    def height(self, blocks: Sequence[Block]) -> int:
        """Of blocks that stand side by side."""
        return self.head(blocks) + max(len(b.rows) * self.row + (24 if b.more else 0) for b in blocks)


def contact_sheet(world: World, streams: Mapping[str, Stream], about: Mapping[str, str] | None = None) -> np.ndarray:
    """A block of rows for the training examples and for every stream: uint8 [H, W, 3].

    A row is a client: its first twelve examples in stream order, or twelve spread over all of them where a stream
    changes as it goes on. `about` says something about streams, by name.
    """
    said = about or {}
    blocks = [_training(world), *(_block(world, name, s, said.get(name, "")) for name, s in streams.items())]
    m = _Measures.of(world, blocks)
    pairs = [blocks[i : i + 2] for i in range(0, len(blocks), 2)]
    height = sum(m.height(pair) + _BETWEEN for pair in pairs) - _BETWEEN
    out, top = Canvas(height, min(len(blocks), 2) * (m.width + _BETWEEN) - _BETWEEN), 0
    for pair in pairs:
        for i, block in enumerate(pair):
            _draw(out, block, m, top, i * (m.width + _BETWEEN), m.head(pair))
        top += m.height(pair) + _BETWEEN
    return out.pixels


def _training(world: World) -> Block:
    x, y = world.examples.x, world.examples.y
    colours = [domains.colour(d) for d in domains.majority(world, world.train[:CLIENTS])]
    rows = [
        _row(world, f"client {c}", len(r), colours[c], x, y, r[:IMAGES]) for c, r in enumerate(world.train[:CLIENTS])
    ]
    about = "What clients learn from: their own labelled examples."
    return Block("training", "", about, tuple(rows), max(world.clients - CLIENTS, 0))


def _block(world: World, name: str, stream: Stream, about: str) -> Block:
    shards, word = stream.shards, "new" if stream.new else "client"
    owners = domains.majority(world, (world.new if stream.new else world.train)[:CLIENTS])
    changes = "plan" in stream.card or "slots" in stream.card
    rows = []
    for c in range(min(shards.clients, CLIENTS)):
        own = shards.own(c)
        pick = torch.arange(IMAGES) * len(own) // IMAGES if changes and len(own) > IMAGES else slice(IMAGES)
        rows.append(_row(world, f"{word} {c}", len(own), domains.colour(owners[c]), shards.x, shards.y, own[pick]))
    about += " Here: images spread over the whole stream." if changes else ""
    return Block(name, "; ".join(_words(stream.card)), about.strip(), tuple(rows), max(shards.clients - CLIENTS, 0))


def _row(world: World, name: str, count: int, colour: Colour, x: Tensor, y: Tensor, rows: Tensor) -> Row:
    classes = tuple(world.examples.classes[c] for c in y[rows].tolist())
    return Row(name, count, colour, to_rgb(x[rows]), classes)


def _words(card: Mapping[str, Any]) -> list[str]:
    """What a stream's data card says, in few words."""
    out = []
    for key, value in card.items():
        if isinstance(value, Mapping):
            out.append(f"{len(value)} {key}" if len(value) > 3 else f"{key} {', '.join(map(str, value))}")
        elif key == "plan":
            kinds = list(dict.fromkeys(kind for kind, _ in value))
            out.append(f"{len(value)} segments" + (f" of {', '.join(kinds)}" if len(kinds) <= 3 else ""))
        elif isinstance(value, Sequence) and not isinstance(value, str):
            out.append(f"{key} {', '.join(str(v) for v in dict.fromkeys(value))}")
        else:
            out.append(f"{key} {value}")
    return out


def _scaling(height: int, width: int) -> tuple[int, int]:
    """How many times images are enlarged, and of how many pixels in each direction one is shown, to be 33 to 64 px."""
    side = max(height, width)
    return max(round(52 / side), 1), -(-side // 64)


def _draw(out: Canvas, block: Block, m: _Measures, top: int, left: int, head: int) -> None:
    used = out.text(top, left, block.title, INK, 3)
    out.text(top + 7, left + used + 24, font.shorten(block.note, m.width - used - 24, 2), GREY, 2)
    out.rectangle(top + 36, left, 2, m.width, PALE)
    for i, line in enumerate(m.about(block)):
        out.text(top + 50 + _TEXT * i, left, line, GREY, 2)
    top += head
    for row in block.rows:
        middle = top + m.tall // 2
        out.circle(middle - 11, left + 8, 7, row.colour)
        out.text(middle - 18, left + 24, row.name, INK, 2)
        out.text(middle + 4, left + 24, f"n={row.count}", GREY, 2)
        if not len(row.images):
            out.text(middle - 7, left + m.label, "nothing", GREY, 2)
        for i, (image, name) in enumerate(zip(shrunk(row.images, m.step), row.classes, strict=True)):
            at = left + m.label + i * (m.wide + _GAP)
            out.paste(image, top, at, m.scale)
            word = font.shorten(name, m.wide + 2, m.caption)
            out.text(top + m.tall + 4, at + m.wide // 2, word, GREY, m.caption, "centre")
        top += m.row
    if block.more:
        out.text(top + 2, left + 24, f"... and {block.more} more", GREY, 2)


def shrunk(images: np.ndarray, step: int) -> np.ndarray:
    """Means over squares of `step` pixels; those at the lower and right edge may be smaller."""
    if step == 1:
        return images
    n, height, width, _ = images.shape
    edge = ((0, 0), (0, -height % step), (0, -width % step), (0, 0))
    padded = np.pad(images, edge, mode="edge").astype(np.float32)
    squares = padded.reshape(n, padded.shape[1] // step, step, padded.shape[2] // step, step, 3)
    return np.rint(squares.mean(axis=(2, 4))).astype(np.uint8)
