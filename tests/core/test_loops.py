"""Loops on the device's clock, in fixed places, give the numbers of unrolled ones to the bit."""

import pytest
import torch
from torch.func import grad, vmap

from acclimate.core import loops
from acclimate.core.loops import Stepwise, Warming, at, chunked, driven, repeat
from support import equal

X = torch.arange(24.0).view(3, 8)


class Counting(Stepwise):
    """Notes how often a loop's body is traced: by a recording it would be so often."""

    def __init__(self):
        self.traced, self.taken = 0, []

    def run(self, loop):
        self.traced += 1
        self.taken.append(loop.left)
        super().run(loop)


def walked(x, shared, count=6):
    """A loop whose state is alike for all clients at first, swaps two leaves, and keeps one."""

    def body(t, s):
        new = {"a": s["b"] * 0.5 + at(x, t), "b": s["a"], "same": s["same"]}
        return new, {"sum": new["a"].sum() + t, "t": torch.zeros_like(s["same"]) + t}

    return repeat(body, {"a": shared, "b": shared, "same": shared * 3}, count, x)


def test_every_step_runs_in_fixed_places_with_the_numbers_of_the_unrolled_loop():
    shared = torch.tensor([1.0, 2.0])
    run = vmap(walked, in_dims=(0, None))
    plain = run(X, shared)
    with driven(driver := Counting()):
        driven_ = run(X, shared)
    assert equal(dict(zip("so", plain, strict=True)), dict(zip("so", driven_, strict=True)))
    # `a` differs between clients from the first step on, `b` from the second: then the form stays
    assert driver.taken == [6, 5, 4]
    assert torch.equal(shared, torch.tensor([1.0, 2.0]))
    assert torch.equal(plain[1]["t"][0, :, 0], torch.arange(6.0))


def test_what_all_clients_share_becomes_their_own_and_keeps_its_numbers():
    shared = {"a": torch.tensor([1.0, float("nan"), -0.0]), "n": torch.tensor(7), "none": torch.zeros(0)}

    def given(x, own):
        start = {**shared, "own": own}
        state = loops.spread(start, x)
        assert state["own"] is own and all(loops.functorch.is_batchedtensor(v) for v in state.values())
        assert loops.spread(start, x[:0]) is start
        return state

    found = vmap(given)(X * float("nan"), X)
    for name, value in shared.items():
        assert found[name].shape == (3, *value.shape) and found[name].dtype == value.dtype
        assert all(row.numpy().tobytes() == value.numpy().tobytes() for row in found[name])
    assert loops.spread(shared, X) is shared  # nobody's own without vmap


def test_on_a_device_that_records_the_first_step_has_the_form_of_all_others():
    with driven(driver := Counting()):
        vmap(walked, in_dims=(0, None))(X.to("meta"), torch.ones(2, device="meta"))
    assert driver.taken == [6]


def test_a_state_that_swaps_its_leaves_is_read_before_it_is_written():
    start = {"a": torch.tensor(1.0), "b": torch.tensor(2.0)}
    with driven(Stepwise()):
        end, _ = repeat(lambda t, s: ({"a": s["b"], "b": s["a"]}, {}), start, 5, X)
    assert (float(end["a"]), float(end["b"])) == (2.0, 1.0)


def test_a_state_whose_order_in_memory_never_rests_is_recorded_a_few_times_only():
    def body(t, s):
        return {"m": (s["m"] * 0.5 + t).t(), "n": s["n"].t()}, {"m": s["m"], "n": s["n"]}

    def run(count):
        return repeat(body, {"m": torch.eye(3) + X[:, :3], "n": X[:, :3].clone()}, count, X)

    assert run(1)[0]["m"].stride() != run(2)[0]["m"].stride()
    with driven(driver := Counting()):
        found = run(40)
    assert driver.traced == loops.LATEST + 1
    assert equal(dict(zip("so", run(40), strict=True)), dict(zip("so", found, strict=True)))


def test_loops_nest():
    def outer(x):
        def inner(t, s):
            return {"v": s["v"] * 1.5 + t}, {"v": s["v"]}

        def body(t, s):
            s, outs = repeat(inner, {"v": s["v"] + at(x, t)}, 4, x)
            return s, {"all": outs["v"]}

        return repeat(body, {"v": torch.zeros(())}, 5, x)

    plain = vmap(outer)(X)
    with driven(Stepwise()):
        nested = vmap(outer)(X)
    assert equal(dict(zip("so", plain, strict=True)), dict(zip("so", nested, strict=True)))


def test_what_is_differentiated_through_is_unrolled():
    def end(w, x):
        return repeat(lambda t, s: ({"v": s["v"] * w + at(x, t)}, {}), {"v": w * 0}, 5, x)[0]["v"]

    plain = vmap(grad(end), in_dims=(None, 0))(torch.tensor(0.5), X)
    with driven(Stepwise()):
        assert torch.equal(vmap(grad(end), in_dims=(None, 0))(torch.tensor(0.5), X), plain)


def test_a_warm_up_takes_as_few_steps_as_tell_the_form():
    calls = []

    def body(t, s):
        calls.append(1)
        return {"v": s["v"] + 1}, {"v": s["v"]}

    with driven(Warming()):
        _, outs = repeat(body, {"v": torch.zeros(())}, 1000, X)
    assert len(calls) == 1 and outs["v"].shape == (1000,)


@pytest.mark.parametrize("size", [3, 12, 14])
def test_chunks_cover_all_rows(size):
    x = torch.arange(size * 2.0).view(size, 2)
    got = []
    for driver in (None, Stepwise()):
        with driven(driver):
            got.append(chunked(lambda rows: {"y": rows["x"].sum(-1)}, {"x": x}, 4)["y"])
    assert torch.equal(got[0], x.sum(-1)) and torch.equal(got[1], got[0])


def test_few_steps_are_unrolled(monkeypatch):
    monkeypatch.setattr(Stepwise, "repeat", lambda *a: pytest.fail("driven"))
    zero = {"v": torch.zeros(())}

    def body(t, s):
        return {"v": s["v"] + 1}, {}

    with driven(Stepwise()):
        end, _ = repeat(body, zero, loops.LEAST - 1, X)
        with pytest.raises(pytest.fail.Exception, match="driven"):
            repeat(body, zero, loops.LEAST, X)
    assert end["v"] == loops.LEAST - 1
