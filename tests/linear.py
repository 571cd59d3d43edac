"""A linear model of three inputs and what numpy makes of it, for tests that compute steps of methods by value.

The first layer and the inputs are positive, so that its ReLU does nothing; gradients of the head are then those of a
softmax regression on known features.
"""

from __future__ import annotations

import numpy as np
import torch

from acclimate.core import Task, Work, rng
from acclimate.models.frozen import Projection
from by_hand import softmax

KEY = rng.key(5)
TASK = Task(Projection(width=2), (3,), 3)
BODY = np.array([[0.5, 0.2, 0.1], [0.1, 0.4, 0.3]])
HEAD = np.array([[0.3, -0.2], [0.1, 0.5], [-0.4, 0.2]])
X = np.array([[1.0, 0.5, 0.2], [0.3, 0.9, 0.6], [0.7, 0.1, 0.8], [0.2, 0.4, 1.0]])
Y = np.array([0, 2, 0, 1])
F = X @ BODY.T
"""The features that enter the head."""
ONCE = Work(iterations=1, batch=4)
"""One step on all four examples, in any order."""


def tensor(a):
    """Numbers as the model has them."""
    return torch.tensor(a, dtype=torch.float32)


def variables(head=HEAD):
    return {"params": {"project.weight": tensor(BODY), "head.weight": tensor(head)}, "buffers": {}}


VARS, DOWN = variables(), {"vars": variables()}
BATCH = {"x": tensor(X), "y": torch.tensor(Y)}
DATA = {**BATCH, "rows": torch.arange(4), "n": torch.tensor(4), "id": torch.tensor(1), "round": torch.tensor(0)}


def close(a, b):
    found, wanted = torch.as_tensor(a).detach().numpy(), np.asarray(b)
    assert found.shape == wanted.shape and np.allclose(found, wanted, rtol=1e-4, atol=1e-5), (found, wanted)


def ce(z, y=Y):
    return -np.log(softmax(z)[np.arange(len(y)), y]).mean()


def regression(z, y=Y, f=F):
    """The gradient of softmax regression by the head, at these logits."""
    return (softmax(z) - np.eye(z.shape[-1])[y]).T @ f / len(y)


def both_layers(body, head, x=X, y=Y):
    """The gradient of cross-entropy by both layers."""
    f = x @ body.T
    error = (softmax(f @ head.T) - np.eye(len(head))[y]) / len(y)
    return (error @ head).T @ x, error.T @ f
