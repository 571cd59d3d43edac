"""The network for windows: roles, what a layer sees, many clients at once, and what it refuses."""

import pytest
import torch
import torch.nn.functional as F

from acclimate.core import Task, rng
from acclimate.models import WindowCNN
from mapped import each_is_alone

X = torch.randn(4, 3, 17, generator=torch.Generator().manual_seed(0))
Y = torch.tensor([0, 1, 2, 1])


def task(**settings):
    return Task(WindowCNN(**{"widths": (4, 6), "kernel": 3, **settings}), (3, 17), 3)


@pytest.mark.parametrize("norm", ["batch", "group", "iabn", "none"])
def test_roles_are_head_norm_and_body(norm):
    t = task(norm=norm)
    assert t.head == {"head.weight", "head.bias"} and t.dim == 6
    affine = {n.rpartition(".")[0] for n in t.norm if n.endswith("weight")}
    assert affine == ({"body.1", "body.5"} if norm != "none" else set())
    assert t.has_batch_norm == (norm in ("batch", "iabn")) and t.apply(t.init(rng.key(0)), X).logits.shape == (4, 3)


def test_answers_are_those_of_convolutions_along_time():
    t = task()
    vars = t.init(rng.key(0))
    p = vars["params"]
    first = F.relu(F.conv1d(X, p["body.0.weight"][:, :, 0], p["body.0.bias"], padding=1))
    halved = F.max_pool1d(first, 2)
    assert halved.shape == (4, 4, 8)  # of 17 readings the last is left out
    second = F.relu(F.conv1d(halved, p["body.3.weight"][:, :, 0], p["body.3.bias"], padding=1))
    out = t.apply(vars, X)
    torch.testing.assert_close(out.features, second.mean(-1))
    torch.testing.assert_close(out.logits, F.linear(second.mean(-1), p["head.weight"], p["head.bias"]))


@pytest.mark.parametrize("norm", ["batch", "none"])
def test_many_clients_at_once_are_each_alone(norm):
    each_is_alone(task(norm=norm, dropout=0.2), X, Y)


def test_what_it_cannot_read_is_refused():
    with pytest.raises(ValueError, match=r"needs windows \[sensors, time\], .* got inputs of \(5,\)"):
        Task(WindowCNN(), (5,), 3)
    with pytest.raises(ValueError, match=r"windows of 3 readings are too short to be halved between 3 layers"):
        Task(WindowCNN(), (2, 3), 3)
    assert Task(WindowCNN(), (2, 4), 3).dim == 64
    for field, settings in {"kernel": {"kernel": 4}, "widths": {"widths": ()}, "dropout": {"dropout": 1.0}}.items():
        with pytest.raises(ValueError, match=f"WindowCNN: {field}="):
            WindowCNN(**settings)
