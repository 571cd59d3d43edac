"""What tests of adapters compute for themselves: a linear model on pixels, and numpy in the place of autograd."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import torch

from acclimate.core import Out
from acclimate.ops.augment import Views

TASK = SimpleNamespace(
    head_weight="w",
    head_bias="b",
    num_classes=3,
    dim=3,
    norm=frozenset(),
    shape=(1, 1, 3),
    has_batch_norm=False,
    tokens=None,
    pixels=True,
    params=("w", "b"),
)
"""All that adapters ask of a task."""
X = np.array(
    [
        [[0.9, 0.1, 0.2], [0.1, 0.8, 0.3], [0.5, 0.4, 0.6], [0.7, 0.7, 0.1]],
        [[0.2, 0.1, 0.9], [0.3, 0.9, 0.2], [0.8, 0.2, 0.3], [0.1, 0.5, 0.5]],
    ]
)
"""Two batches of four inputs."""
W = np.array([[3.0, -1.0, 0.5], [-0.5, 2.5, 0.2], [0.4, -0.3, 2.0]])


def predict(model, x, mode="eval", key=None):
    """Features are the pixels in the model's basis, logits are the features: a change of `w` changes both."""
    z = x.flatten(1) @ model["vars"]["params"]["w"]
    return Out(z, z, {})


def model(**more):
    return {"vars": {"params": {"w": torch.tensor(W)}, "buffers": {}}, **more}


def images(batch):
    return torch.tensor(batch)[:, None, None]


@dataclass(frozen=True)
class Halved(Views):
    """A view that is known: every pixel at half its value."""

    def views(self, x, key):
        return 0.5 * x


def softmax(z):
    e = np.exp(z - z.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def entropy(z):
    p = softmax(z)
    return -(p * np.log(p)).sum(-1)


def slope(loss, at, step=1e-6):
    """The gradient of a function of an array, by differences."""
    out = np.zeros_like(at)
    for i in np.ndindex(at.shape):
        way = np.zeros_like(at)
        way[i] = step
        out[i] = (loss(at + way) - loss(at - way)) / (2 * step)
    return out


def close(found, wanted, tolerance=1e-7):
    np.testing.assert_allclose(torch.as_tensor(found).detach().numpy(), wanted, rtol=tolerance, atol=tolerance)
