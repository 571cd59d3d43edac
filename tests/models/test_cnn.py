"""The two-layer networks: sizes counted by hand, and padding."""

import pytest
import torch

from acclimate.models import CNN
from acclimate.models.mixed_architectures import BIG, MEDIUM, SMALL
from acclimate.recipes.fedtta import LENET


def parameters(model, shape=(3, 32, 32), classes=10):
    return sum(p.numel() for p in model.build(shape, classes).parameters())


def by_hand(a, b, side, channels=3, hidden=512, classes=10, kernel=5):
    """Two convolutions of a and b channels that leave b maps of this side, one hidden layer, one output per class."""
    convolutions = channels * a * kernel**2 + a + a * b * kernel**2 + b
    return convolutions + b * side**2 * hidden + hidden + hidden * classes + classes


def test_fedttas_lenet_has_the_released_size_and_had_another_without_padding():
    assert parameters(LENET) == 2_156_490 == by_hand(32, 64, 8)
    assert parameters(CNN(hidden=512)) == 878_538 == by_hand(32, 64, 5)
    assert parameters(LENET, (1, 28, 28)) == by_hand(32, 64, 7, channels=1) == 1_663_370


@pytest.mark.parametrize(("model", "widths"), [(SMALL, (16, 32)), (MEDIUM, (32, 64)), (BIG, (64, 128))])
def test_table_3s_networks_pad_too(model, widths):
    assert parameters(model) == by_hand(*widths, side=8)


def test_padding_surrounds_every_convolution_with_zeros():
    spec = CNN(widths=(2, 3), hidden=4, padding=1, kernel=3)
    net, x = spec.build((1, 6, 6), 2), torch.randn(5, 1, 6, 6, generator=torch.Generator().manual_seed(0))
    plain = CNN(widths=(2,), hidden=4, kernel=3).build((1, 8, 8), 2)
    plain.body[0].load_state_dict(net.body[0].state_dict())
    wide = torch.zeros(5, 1, 8, 8)
    wide[:, :, 1:-1, 1:-1] = x
    assert torch.allclose(net.body[:3](x), plain.body[:3](wide), atol=1e-6)
    with pytest.raises(ValueError, match="CNN: padding=-1 must be a whole number of at least 0"):
        CNN(padding=-1)
