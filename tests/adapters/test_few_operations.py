"""How many operations a step takes besides the model's own: on a GPU each is a kernel, whatever its size."""

from collections import Counter

import pytest
import torch
from torch.func import vmap
from torch.utils._python_dispatch import TorchDispatchMode

from acclimate.adapters import FedTTA
from acclimate.adapters.cotta import restored
from acclimate.core import Out, rng, tree
from acclimate.core.nn import kernels
from acclimate.ops.augment import hue_turned, luma
from acclimate.ops.strong_views import blurred

KEY = rng.key(0)


class Counted(TorchDispatchMode):
    """Counts operations by name; choices between numbers are none, those between tensors are."""

    def __init__(self):
        super().__init__()
        self.found = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        name = func._schema.name.removeprefix("aten::")
        if name != "where" or out.dim():
            self.found[name] += 1
        return out


def counted(f, *given):
    with Counted() as counting:
        f(*given)
    return counting.found


def test_weights_of_all_layers_go_back_by_one_draw():
    params = {f"layer {i}": torch.ones(3, i + 1) for i in range(6)}
    found = counted(restored, params, params, 0.5, KEY)
    assert (found["arange"], found["lt"] + found["where"]) == (1, 12)  # one row of numbers; a choice for every tensor


PARAMS = {f"w{i}": torch.full((2, 3), 0.1 * i) for i in range(4)}


def prepared(steps, clients=None):
    """FedTTA++ with so many steps, of one client or of several side by side."""
    model = {
        "vars": {"params": PARAMS, "buffers": {}},
        "net": {"0": {"weight": torch.ones(1, 3), "bias": torch.ones(1)}},
        "inner": {"lr": torch.tensor(0.1), "batch": torch.tensor(2.0)},
    }
    adapter, real = FedTTA(steps=steps, patience=2), torch.ones(5, dtype=torch.bool)

    def predict(model, x, mode="eval", key=None):
        return Out(x @ sum(model["vars"]["params"].values()), x, {})

    def one(model):
        return adapter.prepare(None, predict, model, adapter.init(None, model), torch.ones(5, 2), real, KEY)

    return one(model) if clients is None else vmap(one)(tree.map(lambda x: x.expand(clients, *x.shape).clone(), model))


def test_a_step_of_fedtta_plus_chooses_the_best_model_alone():
    """A model that has ended walks on: no choice keeps it where it was."""
    assert counted(prepared, 6)["where"] - counted(prepared, 5)["where"] == len(PARAMS)


@pytest.mark.skipif(not kernels.INTERPRETED, reason="needs Triton and TRITON_INTERPRET=1")
def test_a_step_of_fedtta_plus_chooses_all_tensors_by_one_kernel():
    few, more = (counted(prepared, steps, 3)["where"] for steps in (5, 6))
    assert more - few == 4  # of one number for each client: how long ago, which, how good and how many
    alone, side = prepared(6), prepared(6, 3)
    for name, p in side["params"].items():
        torch.testing.assert_close(p[1], alone["params"][name])


def test_views_pass_over_an_image_no_oftener_than_they_must():
    x, each = torch.rand(2, 3, 8, 8), torch.rand(2)
    assert counted(luma, x)["add"] == 2  # three colours, two sums
    assert counted(hue_turned, x, each[:, None, None])["amax"] == 1
    assert counted(blurred, x, each)["add"] == 8  # five columns, then five rows
