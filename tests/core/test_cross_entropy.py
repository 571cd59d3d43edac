"""Cross-entropy by its written gradient, against torch's own: values, gradients of two orders, maps within maps."""

import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import grad, vjp, vmap

from acclimate.core.nn import cross_entropy, kernels
from acclimate.core.nn.cross_entropy import _CrossEntropy

KERNELS = kernels.AVAILABLE and (torch.cuda.is_available() or kernels.INTERPRETED)


def ours(x: Tensor, y: Tensor) -> Tensor:
    loss: Tensor = _CrossEntropy.apply(x.unsqueeze(0), y.unsqueeze(0), x.dtype).squeeze(0)
    return loss


def of_two_orders(f, *tensors: Tensor) -> tuple:  # type: ignore[no-untyped-def]
    def each(x: Tensor, y: Tensor, way: Tensor) -> tuple:
        slope, back = vjp(grad(lambda x: f(3 * x, y).square()), x)
        return f(x, y), slope, *back(way)

    found: tuple = vmap(vmap(each))(*tensors)
    return found


def torch_each(x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(x, y, reduction="none")


def drawn(batch: int, classes: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    g = torch.Generator().manual_seed(0)
    logits, way = torch.randn(2, 2, 3, batch, classes, generator=g, dtype=dtype)
    return logits, torch.randint(0, classes, (2, 3, batch), generator=g), way


def test_values_and_gradients_of_two_orders_under_maps() -> None:
    tensors = drawn(5, 4, torch.float64)
    for found, true in zip(of_two_orders(ours, *tensors), of_two_orders(F.cross_entropy, *tensors), strict=True):
        torch.testing.assert_close(found, true, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_what_torchs_function_consists_of_gives_its_numbers_to_the_bit(dtype: torch.dtype) -> None:
    """Also where samples are left out, and where labels or logits are not of its usual kind."""
    for batch, classes in ((32, 10), (7, 62), (1, 2)):
        logits, y, way = drawn(batch, classes, dtype)
        y[..., 1:2] = cross_entropy.LEFT_OUT
        found, true = (of_two_orders(f, 10 * logits, y, way) for f in (cross_entropy._plain, F.cross_entropy))
        assert all(map(torch.equal, found, true))
    for x, labels in (
        (logits[0], logits[0].softmax(-1)),
        (logits[0].mT.unsqueeze(1), y[0].unsqueeze(1)),
        (logits[0, :, 0], y[0, :, 0]),
    ):
        assert torch.equal(vmap(cross_entropy._plain)(x, labels), vmap(F.cross_entropy)(x, labels))
    with pytest.raises(ValueError, match="batch_size"):
        vmap(cross_entropy._plain)(logits[0].expand(3, 2, classes), y[0])


def test_what_it_is_of_every_sample_has_torchs_numbers_to_the_bit() -> None:
    logits, y, way = drawn(7, 62, torch.float32)
    y[..., 1:2] = cross_entropy.LEFT_OUT

    def own(logits: Tensor, y: Tensor) -> Tensor:
        return cross_entropy.each(logits, y).square().mean()

    def torchs(logits: Tensor, y: Tensor) -> Tensor:
        return torch_each(logits, y).square().mean()

    assert all(map(torch.equal, of_two_orders(own, 10 * logits, y, way), of_two_orders(torchs, 10 * logits, y, way)))
    soft = logits[0].softmax(-1)
    assert torch.equal(vmap(cross_entropy.each)(logits[0], soft), vmap(torch_each)(logits[0], soft))
    assert torch.equal(cross_entropy.each(logits[0, 0], y[0, 0]), torch_each(logits[0, 0], y[0, 0]))


FIRST = """
import sys, torch
from torch.func import vmap
from acclimate.core import stream
from acclimate.core.gradient import grad
from acclimate.adapters import MBSL
from acclimate.core.nn.cross_entropy import cross_entropy

x, y, ones = torch.zeros(3, 2, 4), torch.zeros(3, 2, dtype=torch.int64), torch.ones(3, 2)
vmap(grad(cross_entropy))(x, y)
vmap(stream.score)(x, y, y[:, 0])

def student(x, taught, margin):
    batch = {"taught": taught, "margin": margin, "delta": margin[0]}
    return MBSL().equations.loss(x, None, batch, {"strong": 1.0, "weak": 0.1}, ("strong", "weak"))

vmap(grad(student))(x, x, ones)
assert "torch.fx.experimental.symbolic_shapes" not in sys.modules
"""


def test_steps_and_scores_of_many_clients_import_none_of_what_torch_compiles_with() -> None:
    """That takes longer than the first round of a small network."""
    subprocess.run([sys.executable, "-c", FIRST], check=True, timeout=250)


@pytest.mark.skipif(not KERNELS, reason="needs Triton, and a GPU or TRITON_INTERPRET=1")
@pytest.mark.parametrize(("batch", "classes"), [(5, 4), (3, 1), (7, 62), (9, 1500)])
def test_the_kernel_gives_values_and_gradients_of_two_orders(batch: int, classes: int) -> None:
    tensors = drawn(batch, classes, torch.float64)
    place = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    small = [t.to(place, torch.float32 if t.is_floating_point() else t.dtype) for t in tensors]
    assert cross_entropy._serves(small[0].flatten(0, 1))
    for found, true in zip(of_two_orders(ours, *small), of_two_orders(F.cross_entropy, *tensors), strict=True):
        torch.testing.assert_close(found.cpu().double(), true, rtol=1e-4, atol=1e-5)


@pytest.mark.skipif(not KERNELS, reason="needs Triton, and a GPU or TRITON_INTERPRET=1")
def test_large_logits_do_not_overflow_and_no_number_stays_none() -> None:
    place = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    x = torch.tensor([[[1e4, 0.0], [-1e4, 1e4]], [[float("nan"), 0.0], [0.0, 1.0]]], device=place)
    y = torch.tensor([[0, 0], [1, 1]], device=place)
    loss = vmap(ours)(x, y)
    assert loss[0] == 1e4
    assert loss[1].isnan()
    slope = vmap(grad(ours))(x, y)
    assert slope[0].tolist() == [[0.0, 0.0], [-0.5, 0.5]]
    assert slope[1, 0].isnan().all()
    assert slope[1, 1].isfinite().all()


def test_a_few_operators_do_it() -> None:
    from torch.utils._python_dispatch import TorchDispatchMode

    class Counted(TorchDispatchMode):
        seen = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            self.seen += not func.is_view
            return func(*args, **(kwargs or {}))

    x, y = torch.randn(2, 3, 4, dtype=torch.float64), torch.zeros(2, 3, dtype=torch.int64)
    counts = []
    for f in (F.cross_entropy, ours):
        with Counted() as counted:
            vmap(grad(f))(x, y)
        counts.append(counted.seen)
    assert 2 * counts[1] <= counts[0], counts
    assert torch.equal(cross_entropy.cross_entropy(x[0], y[0]), F.cross_entropy(x[0], y[0]))
