"""Linear layers with long sums by their kernel, against double precision: values, gradients of two orders, maps.

They run on a CUDA device, or interpreted on a CPU, as `test_implicit.py` says.
"""

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vjp, vmap

from acclimate.backends.vmap.capture import tf32
from acclimate.core.nn import kernels, linear
from acclimate.core.nn.layers import purify

HERE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
works = pytest.mark.skipif(
    not (kernels.AVAILABLE and (torch.cuda.is_available() or kernels.INTERPRETED)),
    reason="needs Triton, and a CUDA device or TRITON_INTERPRET=1",
)


@works
@pytest.mark.parametrize(("batch", "outputs"), [(3, 5), (33, 70)])
def test_a_long_sum_in_parts_and_its_gradients_are_those_of_the_layer(batch, outputs, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    seen, run = [], linear.product
    monkeypatch.setattr(linear, "product", lambda *a: (seen.append(a[0].shape), run(*a))[1])
    net = nn.Sequential(nn.Linear(700, outputs)).to(HERE)
    plain = nn.Sequential(nn.Linear(700, outputs))
    purify(net)
    g = torch.Generator().manual_seed(0)
    vars = {n: torch.randn(2, *p.shape, generator=g) for n, p in net.named_parameters()}
    x = torch.randn(2, batch, 700, generator=g)

    def all_of(net: nn.Module):  # type: ignore[no-untyped-def]
        def each(vars: dict, x: Tensor) -> tuple:
            def value(v: dict, x: Tensor) -> Tensor:
                return (functional_call(net, v, (x,)) / 30).sin()

            slope, back = vjp(grad(lambda v, x: value(v, x).sum(), (0, 1)), vars, x)
            return value(vars, x), slope, back((vars, x))

        return each

    with tf32(False):
        found = vmap(all_of(net))({n: v.to(HERE) for n, v in vars.items()}, x.to(HERE))
    assert seen and all(shape == (2, batch, 700) for shape in seen)
    for c in range(2):
        true = all_of(plain)({n: v[c].double() for n, v in vars.items()}, x[c].double())
        pairs = zip(*(torch.utils._pytree.tree_leaves(t) for t in (found, true)), strict=True)
        for mine, theirs in pairs:
            assert float((mine[c].double().cpu() - theirs).norm()) <= 1e-5 * float(theirs.norm())


def test_short_sums_shared_weights_and_who_asks_go_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear.kernels, "usable", lambda x: True)
    served: list[bool] = []

    def ask(x: Tensor, w: Tensor) -> Tensor:
        served.append(linear.serves(x, w))
        return x.sum()

    long, short = (torch.zeros(2, 3, n) for n in (700, 100))
    vmap(ask)(long, torch.zeros(2, 4, 700))
    vmap(ask)(short, torch.zeros(2, 4, 100))
    vmap(ask, (0, None))(long, torch.zeros(4, 700))
    monkeypatch.setenv("ACCLIMATE_WITHOUT", "linear")
    vmap(ask)(long, torch.zeros(2, 4, 700))
    assert served == [True, False, False, False]
