"""Clients with fewer steps than others: those that are done keep what they have to the bit, in the kernels of a step.

Kernels run on a CUDA device, or interpreted on a CPU, as `test_implicit.py` says.
"""

from collections import Counter

import pytest
import torch
from torch import Tensor
from torch.func import grad, vmap
from torch.utils._python_dispatch import TorchDispatchMode

from acclimate.core import SGD, Work, local, rng, tree
from acclimate.core.loops import Stepwise, driven
from acclimate.core.nn import choice_kernels, kernels, many, soundness, sum_kernels
from acclimate.core.optim import Adam, AdamW, Optimizer
from acclimate.core.tree import Tree

HERE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
works = pytest.mark.skipif(
    not (kernels.AVAILABLE and (torch.cuda.is_available() or kernels.INTERPRETED)),
    reason="needs Triton, and a CUDA device or TRITON_INTERPRET=1",
)
SHAPES = [(17,), (2, 3, 4), (), (2,)]
"""Of one client."""


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program has few numbers, and a launch few tensors, so that there are several of both."""
    for module in (sum_kernels, choice_kernels, soundness):
        monkeypatch.setattr(module, "BLOCK", 16)
        monkeypatch.setattr(module, "MOST", 3)


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(HERE)


def turned(x: Tensor) -> Tensor:
    """The same numbers with the last axis outermost within a client."""
    return x.movedim(-1, 1).contiguous().movedim(1, -1) if x.dim() > 2 else x


@works
@pytest.mark.parametrize("over", [False, True])
@pytest.mark.parametrize("coarse", [torch.float32, torch.bfloat16])
def test_a_sum_leaves_clients_that_are_done_as_they_are(over: bool, coarse: torch.dtype) -> None:
    active = torch.tensor([[5, 1], [5, 0], [5, 1]], device=HERE)[:, 1]
    x = [turned(drawn(3, *s, seed=i)) for i, s in enumerate(SHAPES)]
    y = [turned(drawn(3, *s, seed=i + 50)).to(coarse) for i, s in enumerate(SHAPES)]
    all_learn = sum_kernels.sums(x, y, -0.3, False)
    for b in y:
        b[1] = torch.nan  # what a client that is done computes counts for nothing
    given, places = [a.clone() for a in x], [a.data_ptr() for a in x]
    low = [a.to(torch.bfloat16) for a in x]
    found, lows = sum_kernels.sums_in_both([a.clone() for a in x], low, y, -0.3, over, active)
    again = sum_kernels.sums(x, y, -0.3, over, active)
    for a, b, c, full, old in zip(found, again, lows, all_learn, given, strict=True):
        assert torch.equal(a[::2], full[::2]) and torch.equal(a[1], old[1]) and torch.equal(a, b)
        assert c.dtype == torch.bfloat16 and a.stride() == b.stride() == c.stride() == old.stride()
        torch.testing.assert_close(c.double(), a.double(), rtol=2**-7, atol=1e-30)
        assert not over or torch.equal(c[1], old[1].to(torch.bfloat16))
    assert ([a.data_ptr() for a in again] == places) is over
    assert over or all(torch.equal(a, b) for a, b in zip(x, given, strict=True))


@works
@pytest.mark.parametrize("some", [False, True])
def test_a_summand_that_all_clients_share_is_read_where_it_lies(some: bool) -> None:
    active = torch.tensor([1, 0, 1], device=HERE) if some else None
    one = [turned(drawn(1, *s, seed=i))[0] for i, s in enumerate(SHAPES)]
    many_ = [turned(drawn(3, *s, seed=i + 50)) for i, s in enumerate(SHAPES)]
    shared, own = [a.expand(3, *a.shape) for a in one], [a.expand(3, *a.shape).contiguous() for a in one]
    for x, y, plain in ((shared, many_, (own, many_)), (many_, shared, (many_, own))):
        for a, b in zip(sum_kernels.sums(x, y, 0.5, True, active), sum_kernels.sums(*plain, 0.5, False), strict=True):
            assert torch.equal(a[::2], b[::2])
    kept = sum_kernels.sums(shared, many_, 0.5, True, active)
    assert not some or all(torch.equal(a[1], b[1]) for a, b in zip(kept, own, strict=True))
    assert all(torch.equal(a, b[0]) for a, b in zip(one, own, strict=True)), "what all clients share has changed"


@works
@pytest.mark.parametrize("active", [torch.tensor([True, False, True]), torch.tensor([[3, 7], [0, 7], [1, 7]])[:, 0]])
def test_a_choice_of_all_tensors_is_that_of_each(active: Tensor) -> None:
    active = active.to(HERE)
    old, new = ([drawn(3, *s, seed=i + k) for i, s in enumerate(SHAPES)] for k in (0, 50))
    new[1] = turned(new[1])
    want = [torch.where((active != 0).view(3, *[1] * (a.dim() - 1)), a, b) for a, b in zip(new, old, strict=True)]
    shared = [b[:1].expand(b.shape) for b in old]
    first = [torch.where((active != 0).view(3, *[1] * (a.dim() - 1)), a, b) for a, b in zip(new, shared, strict=True)]
    places = [b.data_ptr() for b in old]
    for over in (False, True):
        assert all(map(torch.equal, choice_kernels.chosen(new, shared, active, over), first))
        found = choice_kernels.chosen(new, old, active, over)
        assert all(map(torch.equal, found, want))
        same = [f.data_ptr() == place for f, place in zip(found, places, strict=True)]
        assert same == [over and i != 1 for i in range(len(SHAPES))]


@works
def test_a_choice_reads_what_changes_places_before_it_is_written() -> None:
    a, b, active = drawn(3, 5), drawn(3, 5, seed=1), torch.tensor([1, 0, 1], device=HERE)
    want = [torch.where((active != 0)[:, None], *pair) for pair in ((b, a), (a, b))]
    assert all(map(torch.equal, choice_kernels.chosen([b, a], [a, b], active, True), want))


def client(opt: Optimizer, ragged: bool = True, work: Work | None = None):  # type: ignore[no-untyped-def]
    """Training of one client, as a function of its parameters, rows and number of examples."""
    x = torch.randn(12, 3, generator=torch.Generator().manual_seed(0)).to(HERE)

    def loss(vars: Tree, batch: Tree, key: Tensor) -> tuple[Tensor, Tree]:
        p, mean = vars["params"], vars["buffers"]["mean"]
        moved = {"mean": mean.lerp(batch["x"].mean(0), 0.1), "seen": vars["buffers"]["seen"] + 1}
        return ((batch["x"] - mean) @ p["w"] + p["b"]).sin().sum(), moved

    def one(w: Tree, rows: Tensor, n: Tensor) -> Tree:
        zero = torch.zeros((), dtype=torch.int64, device=HERE)
        data = {"x": x, "y": torch.zeros(12, dtype=torch.int64, device=HERE), "rows": rows, "n": n, "round": zero}
        data |= {"ragged": zero > 0} if ragged else {}
        vars = {"params": w, "buffers": {"mean": torch.zeros(3, device=HERE), "seen": zero}}
        return local.train(loss, vars, data, opt, work or Work(epochs=3, batch=2, clip=4.0), rng.key(0, HERE))

    return one


OPTIMISERS = [
    SGD(lr=0.1),
    SGD(lr=0.1, momentum=0.9, weight_decay=0.1),
    SGD(lr=0.1, momentum=0.9, nesterov=True),
    Adam(lr=0.1),
    AdamW(lr=0.1),
]


@pytest.mark.parametrize("opt", OPTIMISERS, ids=lambda o: f"{type(o).__name__}-{getattr(o, 'momentum', 0)}")
def test_an_uneven_client_trains_as_it_does_alone(opt: Optimizer) -> None:
    w = {"w": drawn(3), "b": drawn(1)[0]}
    rows, n = torch.arange(12, device=HERE).view(2, 6), torch.tensor([6, 3], device=HERE)
    for params, dim in ((w, None), (tree.map(lambda x: x.expand(2, *x.shape), w), 0)):
        run = vmap(client(opt), in_dims=(dim, 0, 0))
        plain = run(params, rows, n)
        with driven(Stepwise()):
            placed = run(params, rows, n)
        for path, x in tree.flatten(placed).items():
            assert torch.equal(x, tree.flatten(plain)[path]), path
    for k in range(2):
        alone = client(opt, ragged=False)(w, rows[k, : int(n[k])], n[k])
        for path, x in tree.flatten(alone).items():
            torch.testing.assert_close(tree.flatten(plain)[path][k], x, rtol=1e-5, atol=1e-6)
    assert plain["buffers"]["seen"].tolist() == [9, 6]


@pytest.mark.parametrize("opt", OPTIMISERS, ids=lambda o: f"{type(o).__name__}-{getattr(o, 'momentum', 0)}")
@pytest.mark.parametrize("both", [False, True])
def test_an_update_of_some_clients_is_the_update_or_nothing(opt: Optimizer, both: bool) -> None:
    p = {"a": drawn(2, 3, 4), "b": drawn(2, 5, seed=1)}
    low = tree.map(lambda x: x.to(torch.bfloat16), p) if both else None
    g = tree.map(lambda x: x.sin().to(torch.bfloat16) if both else x.sin(), p)
    state = vmap(opt.init)(p)
    active = torch.tensor([0, 1], device=HERE)
    if low is None:
        found = vmap(lambda k, g, s, p: opt.update_some(k, g, s, p, None, 0.5)[:2])(active, g, state, p)
        wanted = vmap(lambda g, s, p: opt.update(g, s, p, 0.5))(g, state, p)
        before: tuple[Tree, ...] = (p, state)
    else:
        found = vmap(lambda k, g, s, p, low: opt.update_some(k, g, s, p, low, 0.5))(active, g, state, p, low)
        wanted = vmap(lambda g, s, p, low: opt.update_both(g, s, p, low, 0.5))(g, state, p, low)
        before = (p, state, low)
    for got, want, old in zip(found, wanted, before, strict=True):
        for path, x in tree.flatten(got).items():
            assert torch.equal(x[0], tree.flatten(old)[path][0]), path
            assert torch.equal(x[1], tree.flatten(want)[path][1]), path
            assert path == "t" or not torch.equal(x[1], x[0])


def test_an_optimiser_of_ones_own_is_asked_for_its_own_update() -> None:
    class Bounded(SGD):
        def update(self, grads, state, params, scale=1.0):  # type: ignore[no-untyped-def]
            new, state = super().update(grads, state, params, scale)
            return tree.map(lambda x: x.clamp(0.0, 1.0), new), state

    p, opt = {"a": torch.tensor([[0.5], [0.5]], device=HERE)}, Bounded(lr=1.0)
    g = tree.map(lambda x: x * 8, p)
    low = tree.map(lambda x: x.to(torch.bfloat16), p)
    for extra in (None, low):
        found = opt.update_some(torch.tensor(1), g, {}, p, extra)
        assert found[0]["a"].tolist() == [[0.0], [0.0]]
    assert opt.update_both(g, {}, p, low)[2]["a"].tolist() == [[0.0], [0.0]]


def test_gradients_go_to_what_was_chosen() -> None:
    p, q = {"a": drawn(2, 3), "b": drawn(2, seed=1)}, {"a": drawn(2, 3, seed=2), "b": drawn(2, seed=3)}
    active = torch.tensor([1, 0], device=HERE)

    def bent(add, choose, p: Tree, q: Tree, k: Tensor) -> Tensor:  # type: ignore[no-untyped-def]
        return tree.dot(add(p, q, k), tree.map(torch.sin, choose(k, q, p)))

    ours = lambda p, q, k: grad(bent, (2, 3))(lambda a, b, k: many.add(a, b, -0.3, k), many.where, p, q, k)  # noqa: E731
    added = lambda a, b, k: tree.where(k != 0, tree.add(a, b, -0.3), a)  # noqa: E731
    each = lambda p, q, k: grad(bent, (2, 3))(added, lambda k, a, b: tree.where(k != 0, a, b), p, q, k)  # noqa: E731
    for found, want in zip(vmap(ours)(p, q, active), vmap(each)(p, q, active), strict=True):
        for name in found:
            torch.testing.assert_close(found[name], want[name])


def test_a_number_of_iterations_is_the_same_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SGD, "update_some", lambda *a: pytest.fail("nobody is done before the others"))
    w = {"w": drawn(2, 3), "b": drawn(2)}
    rows, n = torch.arange(12, device=HERE).view(2, 6), torch.tensor([6, 3], device=HERE)
    ways = [vmap(client(SGD(lr=0.1), ragged, Work(iterations=4, batch=2)))(w, rows, n) for ragged in (True, False)]
    for path, x in tree.flatten(ways[0]).items():
        assert torch.equal(x, tree.flatten(ways[1])[path]), path


@works
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_a_step_of_uneven_clients_takes_no_kernel_for_every_parameter(momentum: float) -> None:
    class Count(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            seen[func._schema.name.removeprefix("aten::")] += 1
            return func(*args, **(kwargs or {}))

    w = {"w": drawn(2, 3), "b": drawn(2)}
    rows, n = torch.arange(12, device=HERE).view(2, 6), torch.tensor([6, 3], device=HERE)
    counted = []
    for ragged in (False, True):
        seen: Counter[str] = Counter()
        run = client(SGD(lr=0.1, momentum=momentum), ragged, Work(epochs=3, batch=2))
        vmap(run)(w, rows, n)  # on a GPU kernels are tried first, which takes operations of its own
        with Count(), driven(Stepwise()):
            vmap(run)(w, rows, n)
        counted.append(seen)
    even, uneven = counted
    # the count of batches is a whole number, which is chosen by itself: once a step
    assert uneven["where"] - even["where"] == 9
    assert uneven["index_select"] == even["index_select"] == 9


@works
@pytest.mark.parametrize("wrong", [torch.nan, torch.inf, -torch.inf])
def test_one_number_that_is_not_finite_is_found_wherever_it_is(wrong: float) -> None:
    for i in range(len(SHAPES)):
        each = {str(k): turned(drawn(3, *s, seed=k)) for k, s in enumerate(SHAPES)}
        each["count"] = torch.arange(3, device=HERE)
        assert soundness.finite(each).item() and vmap(soundness.finite)(each).tolist() == [True] * 3
        place = each[str(i)][1]
        place[(-1,) * place.dim()] = wrong
        assert vmap(soundness.finite)(each).tolist() == [True, False, True]
        assert not soundness.finite(each) and not tree.finite(each)
        pairs = tree.map(lambda x: x.expand(2, *x.shape), each)
        assert vmap(vmap(soundness.finite))(pairs).tolist() == [[True, False, True]] * 2
        one = tree.take(each, 1)
        alike = vmap(lambda x, one=one: soundness.finite({"x": x, **one}))(drawn(2, 5))
        assert alike.tolist() == [False, False]


@pytest.mark.parametrize("shared", [True, False])
def test_a_difference_is_that_of_each_leaf(shared: bool) -> None:
    a = {"a": turned(drawn(2, 3, 4, 5)), "n": torch.arange(2, device=HERE), "d": drawn(2, 3).double()}
    b = tree.map(lambda x: x[0] - 3 if shared else x.flip(0) - 3, a)
    found = vmap(many.sub, in_dims=(0, None if shared else 0))(a, b)
    assert all(torch.equal(found[name], a[name] - b[name]) for name in a)
