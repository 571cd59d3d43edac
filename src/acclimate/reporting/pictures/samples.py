"""A few samples of every stream, small enough to lie in a run's results.json: the report shows them."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from ...core import Shards
from ...data import World
from ...shifts import Stream
from . import png
from .canvas import to_rgb
from .sheet import shrunk

IMAGES = 6
"""Samples of a stream."""
SIDE = 32
"""The most pixels that a sample may be high or wide; larger ones are shrunk."""


def samples(world: World, streams: Mapping[str, Stream]) -> dict[str, Any]:
    """One client's samples, spread over its training data and over every stream; nothing where inputs are no images.

    By stream: `png` (a data URI, the samples side by side), `width`, `height`, `client`, `classes`.
    """
    try:
        to_rgb(world.examples.x[:1])
    except ValueError:
        return {}
    shards = {"training": world.shards(world.train)} | {name: stream.shards for name, stream in streams.items()}
    return {name: _strip(world, s) for name, s in shards.items() if bool((s.n > 0).any())}


def _strip(world: World, shards: Shards) -> dict[str, Any]:
    """The samples of the first client that has any."""
    client = int((shards.n > 0).int().argmax())
    own = shards.own(client)
    kept = own[torch.arange(min(IMAGES, len(own))) * len(own) // min(IMAGES, len(own))]
    images = to_rgb(shards.x[kept])
    small = shrunk(images, -(-max(images.shape[1:3]) // SIDE))
    pixels = np.concatenate(list(small), axis=1)
    return {
        "png": f"data:image/png;base64,{base64.b64encode(png.encode(pixels)).decode()}",
        "width": pixels.shape[1],
        "height": pixels.shape[0],
        "client": client,
        "classes": [world.examples.classes[c] for c in shards.y[kept].tolist()],
    }
