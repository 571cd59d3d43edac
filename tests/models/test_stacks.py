"""AlexNet- and VGG11-shaped networks: layers, outputs, and images that are too small."""

import pytest
import torch
from torch import nn

from acclimate.core import Task, rng
from acclimate.models import VGG11, AlexNet


@pytest.mark.parametrize(
    ("model", "side", "widths"),
    [
        (AlexNet(hidden=32), 63, [64, 192, 384, 256, 256]),
        (VGG11(hidden=32), 32, [64, 128, 256, 256, 512, 512, 512, 512]),
    ],
    ids=["alexnet", "vgg11"],
)
def test_layers_and_outputs(model, side, widths):
    net = model.build((3, side, side), 7)
    assert [m.out_channels for m in net.modules() if isinstance(m, nn.Conv2d)] == widths
    t = Task(model, (3, side, side), 7)
    assert t.dim == 32 and len(t.dropout_keys) == 2 and t.has_batch_norm == (model.norm == "batch")
    out = t.apply(t.init(rng.key(0)), torch.rand(2, 3, side, side), "train", rng.key(1))
    assert out.logits.shape == (2, 7) and bool(torch.isfinite(out.logits).all())
    with pytest.raises(ValueError, match="too small"):
        model.build((3, side - 1, side - 1), 7)
    with pytest.raises(ValueError, match="needs images"):
        model.build((12,), 7)
