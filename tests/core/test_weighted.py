"""The weighted sum of what clients send, by its kernel and without it. As `test_implicit.py` says where it runs."""

import pytest
import torch

from acclimate.core.nn import kernels, weighted

HERE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
KERNELS = kernels.AVAILABLE and (torch.cuda.is_available() or kernels.INTERPRETED)


@pytest.mark.parametrize(
    "dtype", [torch.float64, pytest.param(torch.float32, marks=pytest.mark.skipif(not KERNELS, reason="needs Triton"))]
)
@pytest.mark.parametrize("shape", [(), (3,), (5, 60)])
def test_sums_leave_out_what_has_no_weight(shape: tuple, dtype: torch.dtype) -> None:
    g = torch.Generator().manual_seed(0)
    x, w = torch.randn(19, *shape, generator=g, dtype=torch.float64), torch.rand(19, generator=g, dtype=torch.float64)
    w[[2, 17]] = 0.0
    true = (x * w.view(-1, *[1] * len(shape))).sum(0)
    x[2], x[17] = torch.nan, torch.inf
    found = weighted.total(x.to(HERE, dtype), w.to(HERE, dtype)).cpu()
    torch.testing.assert_close(found.double(), true, rtol=1e-5, atol=1e-5)
    x[3] = torch.nan
    assert weighted.total(x.to(HERE, dtype), w.to(HERE, dtype)).isnan().all()


def test_weights_of_each_class_leave_out_its_rows() -> None:
    x, w = (
        torch.tensor([[[1.0, 2.0], [torch.nan, 0.0]], [[3.0, 4.0], [5.0, 6.0]]]),
        torch.tensor([[2.0, 0.0], [1.0, 3.0]]),
    )
    assert weighted.total(x, w).tolist() == [[5.0, 8.0], [15.0, 18.0]]
