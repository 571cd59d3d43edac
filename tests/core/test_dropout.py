"""Dropout by one kernel, against masks that are drawn and multiplied: to the bit, its gradient included.

They run on a CUDA device, or interpreted on a CPU, as `test_implicit.py` says.
"""

import pytest
import torch
from torch import Tensor
from torch.func import grad, vmap

from acclimate.core import rng
from acclimate.core.nn import dropout, kernels

HERE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
works = pytest.mark.skipif(
    not (kernels.AVAILABLE and (torch.cuda.is_available() or kernels.INTERPRETED)),
    reason="needs Triton, and a CUDA device or TRITON_INTERPRET=1",
)


def plainly(x: Tensor, key: Tensor, p: float) -> Tensor:
    return x * (rng.uniform(key, *x.shape) >= p) / (1 - p)


@works
@pytest.mark.parametrize("p", [0.0, 0.25, 0.9])
def test_numbers_and_gradients_are_those_of_a_mask(p: float) -> None:
    x = torch.randn(2, 3, 5, 7, 40, generator=torch.Generator().manual_seed(0))  # more than one program each
    keys = rng.fold(rng.key(3), "dropout", torch.arange(2))
    x[1, 0, 0, 0, :2] = torch.tensor([torch.inf, torch.nan])
    ours = vmap(lambda x, k: dropout.dropped(x, k, p))(x.to(HERE), keys.to(HERE)).cpu()
    true = torch.stack([plainly(a, k, p) for a, k in zip(x, keys, strict=True)])
    torch.testing.assert_close(ours, true, rtol=0, atol=0, equal_nan=True)

    def bent(f, x: Tensor, k: Tensor) -> Tensor:  # type: ignore[no-untyped-def]
        return grad(lambda x: grad(lambda x: f(x, k, p).pow(3).sum())(x).sum())(x)

    slopes = vmap(lambda x, k: bent(dropout.dropped, x, k))(x[:, 1:].to(HERE), keys.to(HERE)).cpu()
    wanted = torch.stack([bent(plainly, a, k) for a, k in zip(x[:, 1:], keys, strict=True)])
    torch.testing.assert_close(slopes, wanted, rtol=1e-6, atol=0)


@works
def test_layouts_shared_inputs_and_maps_within_maps() -> None:
    x, keys = torch.randn(2, 3, 4, 5), rng.fold(rng.key(3), torch.arange(6)).view(2, 3)
    turned = x.transpose(2, 3).contiguous().transpose(2, 3)
    f = vmap(vmap(lambda x, k: dropout.dropped(x, k, 0.5), (None, 0)))
    true = torch.stack([torch.stack([plainly(x[i], k, 0.5) for k in keys[i]]) for i in range(2)])
    assert torch.equal(f(turned.to(HERE), keys.to(HERE)).cpu(), true)


@works
def test_what_is_alone_and_what_drops_everything_goes_the_plain_way() -> None:
    x = torch.randn(2, 3, device=HERE)
    assert not dropout.serves(x, 0.5)
    for p in (0.5, 1.0):
        assert vmap(lambda a, p=p: torch.tensor(dropout.serves(a, p)), out_dims=None)(x) == torch.tensor(p < 1)
