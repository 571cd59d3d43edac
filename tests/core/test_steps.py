"""What a recorded step of local training spares: kernels that take all parameters, tables of all steps, layouts.

Kernels run on a CUDA device, or interpreted on a CPU, as `test_implicit.py` says.
"""

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from acclimate.core import SGD, tree
from acclimate.core.agenda import Agenda, arranged, lower, plain
from acclimate.core.loops import Stepwise, at, driven, repeat
from acclimate.core.nn import kernels, linear, many, pooled, products, sum_kernels
from acclimate.core.nn.layers import purify
from acclimate.core.optim import Adam
from acclimate.core.task import Task
from acclimate.core.tree import Tree
from by_kernel import every_shape_by_its_kernel  # noqa: F401

HERE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
works = pytest.mark.skipif(
    not (kernels.AVAILABLE and (torch.cuda.is_available() or kernels.INTERPRETED)),
    reason="needs Triton, and a CUDA device or TRITON_INTERPRET=1",
)


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(HERE)


@works
@pytest.mark.parametrize("over", [False, True])
@pytest.mark.parametrize("coarse", [torch.float32, torch.bfloat16])
def test_a_step_of_many_tensors_is_that_of_each(over: bool, coarse: torch.dtype) -> None:
    shapes = [(3, 350), (1025,), (2, 3, 4, 5), (7,), *[(2,)] * 20]
    x = [drawn(*s, seed=i) for i, s in enumerate(shapes)]
    y = [drawn(*s, seed=i + 50).to(coarse) for i, s in enumerate(shapes)]
    y[2] = y[2].permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)
    want = [a.double() - 0.3 * b.double() for a, b in zip(x, y, strict=True)]
    low = [a.to(torch.bfloat16) for a in x]
    given = [a.clone() for a in x]
    places = [a.data_ptr() for a in x]
    found, lows = sum_kernels.sums_in_both(x, low, y, -0.3, over)
    for a, c, b, w in zip(found, lows, y, want, strict=True):
        torch.testing.assert_close(a.double(), w, rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(c.double(), a.double(), rtol=2**-7, atol=1e-30)
        assert c.dtype == torch.bfloat16 and a.stride() == c.stride() == b.stride()
    assert [a.data_ptr() for a in found] != places, "one lies in another order, so all are new"
    assert all(torch.equal(a, b) for a, b in zip(x, given, strict=True))
    del x[2], y[2], want[2], places[2]
    again = sum_kernels.sums(x, y, -0.3, over)
    assert ([a.data_ptr() for a in again] == places) is over
    for a, w in zip(again, want, strict=True):
        torch.testing.assert_close(a.double(), w, rtol=1e-6, atol=1e-6)


def test_a_dense_order_is_known_whatever_axes_of_length_one_say() -> None:
    x = torch.zeros(4, 3, 1, 5)
    assert sum_kernels._dense(x.permute(3, 1, 0, 2)) and not sum_kernels._dense(x[:, ::2])
    assert not sum_kernels._dense(torch.zeros(3, 1).expand(3, 4)[None])
    assert sum_kernels._order(x.as_strided((4, 3, 1, 5), (15, 5, 77, 1))) == sum_kernels._order(x)


@works
def test_both_precisions_of_a_tree_and_gradients_through_them() -> None:
    p = {"a": drawn(2, 3, 4), "b": {"c": drawn(2, 5, seed=1)}}
    g = tree.map(lambda x: x.cos().to(torch.bfloat16), p)
    low = tree.map(lambda x: x.to(torch.bfloat16), p)
    fine, coarse = vmap(lambda p, low, g: many.add_both(p, low, g, -0.5))(p, low, g)
    for path, x in tree.flatten(fine).items():
        want = tree.flatten(p)[path] - 0.5 * tree.flatten(g)[path].float()
        torch.testing.assert_close(x, want)
        torch.testing.assert_close(tree.flatten(coarse)[path].float(), want, rtol=2**-7, atol=1e-30)

    def total(p: Tree, g: Tree, low: Tree) -> Tensor:
        fine, coarse = many.add_both(p, low, g, -0.5)
        return tree.dot(fine, fine) + 3 * sum(x.float().sum() for x in tree.leaves(coarse))

    to_p, to_g = vmap(lambda p, g, low: grad(total, (0, 1))(p, g, low))(p, g, low)
    torch.testing.assert_close(to_p["a"], 2 * fine["a"] + 3)
    assert to_g["a"].dtype == torch.bfloat16
    torch.testing.assert_close(to_g["a"].float(), -0.5 * (2 * fine["a"] + 3), rtol=2**-6, atol=1e-2)


@pytest.mark.parametrize("opt", [SGD(lr=0.1), SGD(lr=0.1, momentum=0.9, weight_decay=0.1), Adam()])
@pytest.mark.parametrize("scale", [0.5, torch.tensor(0.5)])
def test_an_update_of_both_precisions_is_the_update(opt: SGD, scale: float) -> None:
    p = {"a": drawn(3, 4).cpu(), "b": drawn(5).cpu()}
    low, g = (tree.map(lambda x, f=f: f(x).to(torch.bfloat16), p) for f in (torch.clone, torch.sin))
    params, state, coarse = opt.update_both(g, opt.init(p), p, low, scale)
    want, wanted = opt.update(tree.map(lambda x: x.float(), g), opt.init(p), p, scale)
    for path, x in tree.flatten({"p": params, "s": state}).items():
        assert torch.equal(x, tree.flatten({"p": want, "s": wanted})[path]), path
    assert all(torch.equal(coarse[n], want[n].to(torch.bfloat16)) for n in want)


def test_the_agenda_of_a_step_is_what_its_parts_say() -> None:
    data = {"rows": torch.tensor([5, 3, 8, 1]), "y": torch.arange(10) * 7}
    positions, keys = torch.tensor([[0, 1], [3, 2], [1, 3]]), torch.tensor([11, -12, 13])
    happens = torch.tensor([True, True, False])
    for labels in (data["y"], data["y"].float(), torch.arange(20).view(10, 2)):
        together = labels.dtype == torch.int64 and labels.dim() == 1
        agenda, even = (Agenda.of({**data, "y": labels}, positions, keys, which) for which in (happens, None))
        assert (len(agenda.parts), len(even.parts)) == ((1, 1) if together else (4, 3))
        for t in (0, 1, 2):
            for time in (t, torch.tensor(t)):
                rows, y, key, real = agenda.at(time)
                assert torch.equal(rows, data["rows"][positions[t]])
                assert torch.equal(y, labels[rows]) and torch.equal(key, keys[t])
                assert real is not None and real.dtype == torch.int64 and bool(real) == happens[t]
                for a, b in zip(even.at(time), (rows, y, key, None), strict=True):
                    assert a is b if b is None else torch.equal(a, b)


def test_a_row_is_one_selection_for_all_clients_and_differentiable_twice() -> None:
    x, t = drawn(2, 3, 5, 4).cpu(), torch.tensor(3)
    assert torch.equal(vmap(vmap(lambda a: at(a, t)))(x), x[:, :, 3])
    assert torch.equal(vmap(lambda a: at(a, t), 1)(x.permute(2, 1, 0, 3)), x[:, :, 3].transpose(0, 1))
    bent = vmap(grad(lambda a: grad(lambda b: at(b, t).sin().sum())(a).square().sum()))
    want = vmap(grad(lambda a: grad(lambda b: b[3].sin().sum())(a).square().sum()))
    torch.testing.assert_close(bent(x[0]), want(x[0]))


def test_a_loop_may_keep_its_time_though_the_clock_moves_on() -> None:
    def body(t: Tensor, s: Tree) -> tuple[Tree, Tree]:
        return {"sum": s["sum"] + t, "last": t if isinstance(t, Tensor) else torch.tensor(t)}, {"t": t * 1, "own": t}

    with driven(Stepwise()):
        end, outs = repeat(body, {"sum": torch.tensor(0), "last": torch.tensor(9)}, 4, torch.zeros(1))
    assert end == {"sum": torch.tensor(6), "last": torch.tensor(3)}
    assert outs["t"].tolist() == outs["own"].tolist() == [0, 1, 2, 3]


def test_weights_lie_otherwise_inside_of_training_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "takes", lambda x: True)
    monkeypatch.setattr(products, "NATIVE", False)  # on x86 a client alone has an order of its own (test_lone.py)
    p = {"w": drawn(2, 4, 3, 5, 5).cpu(), "b": drawn(2, 4).cpu()}
    assert arranged({"w": p["w"][0]})["w"].is_contiguous(), "there are no kernels for one client"
    laid = vmap(arranged)(p)
    assert laid["w"].stride() == (300, 75, 1, 15, 3) and torch.equal(laid["w"], p["w"])
    back = vmap(plain)(laid)
    assert back["w"].stride() == p["w"].stride() and torch.equal(back["w"], p["w"])


def test_parameters_are_kept_in_both_precisions_for_the_tasks_own_loss_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "takes", lambda x: True)
    task = Task(nn.Linear(3, 2), (3,), 2, dtype=torch.bfloat16)
    params = {"w": torch.randn(2, 3)}
    seen: list[Tree | None] = []
    ask = lambda p, loss: (seen.append(lower(loss, p)), p["w"])[1]  # noqa: E731
    other = lambda *a: task.loss(*a)  # noqa: E731
    for loss in (task.loss, other, task.computing(None).loss):
        vmap(lambda p, loss=loss: ask(p, loss))(params)
    ask(params, task.loss)
    assert [low is not None for low in seen] == [True, False, False, False]
    assert seen[0] is not None and seen[0]["w"].dtype == torch.bfloat16


def flattening(bias: bool) -> nn.Sequential:
    """A network that pools images and flattens them."""
    first, last = nn.Conv2d(3, 8, 3, bias=bias), nn.Linear(72, 5, bias=bias)
    return nn.Sequential(first, nn.MaxPool2d(2), nn.ReLU(), nn.Flatten(), last, nn.ReLU())


@works
@pytest.mark.parametrize("bias", [True, False])
def test_a_network_whose_images_are_flattened_is_that_of_its_layers(
    bias: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain_net, ours = flattening(bias), flattening(bias).to(HERE)
    purify(ours)
    monkeypatch.setattr(linear, "LONG", 16)
    flags: list[tuple[bool, bool]] = []
    run = pooled._Pooled.apply
    monkeypatch.setattr(pooled._Pooled, "apply", lambda *a: (flags.append(a[4:]), run(*a))[1])
    vars = {n: drawn(2, *p.shape, seed=i) for i, (n, p) in enumerate(plain_net.named_parameters())}
    x = drawn(2, 2, 3, 9, 8, seed=9)

    def slope(net: nn.Module):  # type: ignore[no-untyped-def]
        def value(v: dict, x: Tensor) -> Tensor:
            return (functional_call(net, v, (x,)) / 90).sin().sum()

        return lambda v, x: (value(v, x), grad(value)(v, x))

    value, found = vmap(slope(ours))(vars, x)
    assert flags and set(flags) == {(True, True)}
    for c in range(2):
        true, wanted = slope(plain_net)({n: v[c].double().cpu() for n, v in vars.items()}, x[c].double().cpu())
        assert float(value[c]) == pytest.approx(float(true), rel=1e-4)
        for name, w in wanted.items():
            assert float((found[name][c].double().cpu() - w).norm()) <= 1e-5 * float(w.norm()), name
