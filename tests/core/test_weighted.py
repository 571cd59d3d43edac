"""The weighted sum of what clients send, by its kernel and without it. As `test_implicit.py` says where it runs."""

import pytest
import torch

from acclimate.core import message, tree
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


@pytest.mark.skipif(not KERNELS, reason="needs Triton")
def test_sums_of_many_tensors_are_those_of_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weighted, "MOST", 2)
    g = torch.Generator().manual_seed(0)
    w = torch.tensor([0.5, 0.0, 3.0], device=HERE)
    x = [torch.randn(3, *s, generator=g).to(HERE) for s in ((300,), (2, 3), ())]
    x.insert(1, torch.arange(6, device=HERE).view(3, 2))
    for each, sum in zip(x, weighted.totals(x, w), strict=True):
        assert torch.equal(sum, weighted.total(each, w)) and sum.dtype == each.dtype


@pytest.mark.skipif(not KERNELS, reason="needs Triton")
@pytest.mark.parametrize("weight", [7.0, -0.3, 0.0])
def test_means_are_sums_over_their_weight_to_the_bit(weight: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weighted, "MOST", 2)
    g = torch.Generator().manual_seed(0)
    part = {"a": torch.randn(300, generator=g), "b": {"c": torch.randn(2, 3, generator=g).t(), "d": torch.ones(())}}
    part, w = tree.to(part, HERE), torch.tensor(weight, device=HERE)
    found = message.finish({"x": message.Mean()}, message.Partial(w, {"x": part}, {"x": w}, {}), w)["x"]
    for path, x in tree.flatten(found).items():
        assert torch.equal(x, tree.flatten(part)[path] / w if weight else torch.zeros_like(x)), path
    assert weighted.means([w, w.double()], w) is None and weighted.means([w], w.view(1)) is None
