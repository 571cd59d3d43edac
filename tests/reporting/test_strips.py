"""The samples that a run keeps of its streams: small, true to the stream, and nothing where inputs are no images."""

import base64
import dataclasses
import io

import numpy as np
import torch
from PIL import Image

import acclimate as ac
from acclimate.reporting.strips import IMAGES, SIDE, samples
from acclimate.running.run import streams_of


def decoded(strip):
    raw = base64.b64decode(strip["png"].removeprefix("data:image/png;base64,"))
    return np.asarray(Image.open(io.BytesIO(raw)))


def test_samples_are_those_of_the_stream_and_weigh_little():
    world = ac.data.Digits(clients=4).world(0)
    built = streams_of(world, (ac.shifts.Original(), ac.shifts.Corrupted()))
    found = samples(world, {name: stream for name, (_, stream) in built.items()})
    assert list(found) == ["training", "original", "corrupted"]
    shards = built["corrupted"][1].shards
    own = shards.own(0)
    rows = own[torch.arange(IMAGES) * len(own) // IMAGES]
    side = world.shape[-1]
    pixels = decoded(found["corrupted"])
    assert pixels.shape == (side, IMAGES * side, 3) == (found["corrupted"]["height"], found["corrupted"]["width"], 3)
    wanted = shards.x[rows].permute(2, 0, 3, 1).reshape(side, IMAGES * side, -1).expand(-1, -1, 3).numpy()
    assert (pixels == wanted).all()
    assert found["corrupted"]["classes"] == [world.examples.classes[c] for c in shards.y[rows].tolist()]
    assert sum(len(strip["png"]) for strip in found.values()) < 100_000


def test_large_images_are_shrunk_and_other_inputs_left_out():
    world = ac.data.Digits(clients=4).world(0)
    large = world.examples.x.repeat_interleave(5, 2).repeat_interleave(5, 3)
    big = dataclasses.replace(world, examples=dataclasses.replace(world.examples, x=large))
    assert samples(big, {})["training"]["height"] <= SIDE
    numbers = dataclasses.replace(world, examples=dataclasses.replace(world.examples, x=large.float()))
    assert samples(numbers, {}) == {}
