"""Which tiles of a product are tried."""

import torch

from acclimate.core.nn import cuts
from acclimate.core.nn.cutting import Layer, Tile

WIDE = Layer(128, 6, 5, 128, 6, 5, 3, 3, 1, 1, 1)


def test_a_wide_layer_has_no_tile_that_fetches_more_for_as_many_numbers() -> None:
    for kind in ("convolve", "spread"):
        assert cuts.candidates(kind, WIDE, torch.float32) == [Tile(128, 128, 32, 8, 3), Tile(128, 64, 32, 4, 3)]
    assert cuts.candidates("convolve", WIDE._replace(outputs=64), torch.float32)[1] == Tile(256, 64, 32, 8, 3)
