"""Strips of sample images: PNG pictures small enough for a results.json, and how a page shows them."""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..core import Shards
from ..data import World
from ..ops.layout import counted
from ..shifts import Stream
from . import png
from .style import esc, num, words

IMAGES = 6
"""How many samples of every stream a run keeps."""
SIDE = 32
"""How many pixels a kept sample is high or wide at most; larger ones are shrunk."""
TALL = 56
"""How many pixels a sample is about high on a page."""


def samples(world: World, streams: Mapping[str, Stream]) -> dict[str, Any]:
    """One client's strip of its training data and of every stream, by name; nothing where inputs are no images."""
    try:
        to_rgb(world.examples.x[:1])
    except ValueError:
        return {}
    shards = {"training": world.shards(world.train)} | {name: stream.shards for name, stream in streams.items()}
    return {name: _first_client(world, s) for name, s in shards.items() if bool((s.n > 0).any())}


def _first_client(world: World, shards: Shards) -> dict[str, Any]:
    """Samples over the whole stream of the first client that has any."""
    client = int((shards.n > 0).int().argmax())
    return strip(world, shards.x, shards.y, spaced(shards.own(client), IMAGES), client, SIDE)


def strip(world: World, x: Tensor, y: Tensor, rows: Tensor, client: int, side: int) -> dict[str, Any]:
    """Examples side by side: `png` (a data URI), `width`, `height`, `client`, `classes`; none larger than `side`."""
    images = to_rgb(x[rows])
    pixels = np.concatenate(list(shrunk(images, -(-max(images.shape[1:3]) // side))), axis=1)
    return {
        "png": f"data:image/png;base64,{base64.b64encode(png.encode(pixels)).decode()}",
        "width": pixels.shape[1],
        "height": pixels.shape[0],
        "client": client,
        "classes": [world.examples.classes[c] for c in y[rows].tolist()],
    }


def drawn(world: World, x: Tensor) -> Tensor:
    """Inputs as grey images: images as they are, vectors as squares of cells, windows with a line per sensor.

    A number at the mean of the training rows is grey; three deviations above it is white, three below black.
    """
    if not x.is_floating_point() or x.dim() not in (2, 3):
        return x
    known = world.examples.x[torch.cat(world.train)]
    over = [d for d in range(x.dim()) if d != 1]
    shape = (-1, *[1] * (x.dim() - 2))
    mean, std = known.mean(over).view(shape), known.std(over, correction=0).view(shape)
    level = ((x - mean) / std.clamp_min(1e-12) / 6.0 + 0.5).clamp(0.0, 1.0).mul(255.0).round().to(torch.uint8)
    if x.dim() == 3:
        return level[:, None]
    side = math.isqrt(max(x.shape[1] - 1, 0)) + 1
    cells = torch.full((len(x), side * side), 128, dtype=torch.uint8)
    cells[:, : x.shape[1]] = level
    return cells.view(-1, 1, side, side)


def spaced(rows: Tensor, most: int) -> Tensor:
    """At most so many of these rows, evenly spaced over all of them."""
    count = min(most, len(rows))
    return rows[torch.arange(count) * len(rows) // max(count, 1)]


def to_rgb(images: Tensor) -> np.ndarray:
    """uint8 images [N, C, H, W], grey or RGB, as [N, H, W, 3]."""
    if images.dtype != torch.uint8 or images.ndim != 4 or images.shape[1] not in (1, 3):
        kind = str(images.dtype).removeprefix("torch.")
        raise ValueError(
            f"there is nothing to picture: inputs are {kind} of shape {tuple(images.shape[1:])}, "
            "not uint8 images with 1 or 3 channels"
        )
    rgb: np.ndarray = images.expand(-1, 3, -1, -1).permute(0, 2, 3, 1).contiguous().cpu().numpy()
    return rgb


def shrunk(images: np.ndarray, step: int) -> np.ndarray:
    """Means over squares of `step` pixels; those at the lower and right edge may be smaller."""
    if step == 1:
        return images
    n, height, width, _ = images.shape
    edge = ((0, 0), (0, -height % step), (0, -width % step), (0, 0))
    padded = np.pad(images, edge, mode="edge").astype(np.float32)
    squares = padded.reshape(n, padded.shape[1] // step, step, padded.shape[2] // step, step, 3)
    return np.rint(squares.mean(axis=(2, 4))).astype(np.uint8)


def figure(name: str, picture: Mapping[str, Any]) -> str:
    """A strip as HTML, enlarged by a whole number, with the names of classes below the images."""
    labels = list(picture.get("classes") or ())
    width, height = (max(num(picture.get(k)), 1.0) for k in ("width", "height"))
    scale = max(round(TALL / height), 1)
    alt = f"{counted(len(labels), 'sample')} of client {esc(picture.get('client'))} on {esc(name)}: {words(labels)}"
    size = f'width="{width * scale:g}" height="{height * scale:g}"'
    image = f'<img src="{picture["png"]}" {size} alt="{alt}">'
    below = "".join(f"<span>{esc(label)}</span>" for label in labels)
    return f'<div class="sample">{image}<div aria-hidden="true">{below}</div></div>'
