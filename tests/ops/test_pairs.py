"""The mixture of a shared and a local LoRA pair, by hand."""

import torch

from acclimate.ops import pairs


def test_the_second_factors_are_scaled_by_their_shares():
    names = ("layer.local.a", "layer.local.b", "layer.shared.a", "layer.shared.b", "layer.weight")
    params = {n: torch.full((2,), i + 1.0) for i, n in enumerate(names)}
    found = pairs.mixed({"params": params, "buffers": {}}, 0.25)["params"]
    wanted = dict(zip(names, (1.0, 0.25 * 2.0, 3.0, 0.75 * 4.0, 5.0), strict=True))
    assert {n: p.tolist() for n, p in found.items()} == {n: [v, v] for n, v in wanted.items()}
