"""Cross-entropy by its written gradient, against torch's own: values, gradients of two orders, maps within maps."""

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import grad, vjp, vmap

from acclimate.core.nn import cross_entropy
from acclimate.core.nn.cross_entropy import _CrossEntropy


def test_values_and_gradients_of_two_orders_under_maps() -> None:
    g = torch.Generator().manual_seed(0)
    logits, way = torch.randn(2, 2, 3, 5, 4, generator=g, dtype=torch.float64)
    y = torch.randint(0, 4, (2, 3, 5), generator=g)

    def all_of(f):  # type: ignore[no-untyped-def]
        def each(x: Tensor, y: Tensor, way: Tensor) -> tuple:
            slope, back = vjp(grad(lambda x: f(3 * x, y).square()), x)
            return f(x, y), slope, back(way)

        return vmap(vmap(each))

    for ours, true in zip(
        all_of(_CrossEntropy.apply)(logits, y, way), all_of(F.cross_entropy)(logits, y, way), strict=True
    ):
        torch.testing.assert_close(ours, true, rtol=1e-12, atol=1e-14)


def test_a_few_operators_do_it() -> None:
    from torch.utils._python_dispatch import TorchDispatchMode

    class Counted(TorchDispatchMode):
        seen = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            self.seen += not func.is_view
            return func(*args, **(kwargs or {}))

    x, y = torch.randn(2, 3, 4), torch.zeros(2, 3, dtype=torch.int64)
    counts = []
    for f in (F.cross_entropy, _CrossEntropy.apply):
        with Counted() as counted:
            vmap(grad(f))(x, y)
        counts.append(counted.seen)
    assert 2 * counts[1] <= counts[0], counts
    assert torch.equal(cross_entropy.cross_entropy(x[0], y[0]), F.cross_entropy(x[0], y[0]))
