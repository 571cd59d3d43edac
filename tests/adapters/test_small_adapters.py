"""ATP, ICON, Surgical and TTT by value on linear models, and which adapters' answers do not depend on batches."""

from fnmatch import fnmatch
from types import SimpleNamespace

import pytest
import torch

from acclimate.adapters import (
    ATP,
    BBSE,
    EATA,
    EM,
    ICON,
    MBSL,
    MEMO,
    ODPFL,
    SHOT,
    T3A,
    THE,
    TSA,
    TTT,
    FedTTA,
    KNNPer,
    NoAdapt,
    Surgical,
    Tent,
    THEPlus,
)
from acclimate.core import SGD, Out, Work, rng

FREE = (BBSE(), EM(), ICON(), KNNPer(), MEMO(), NoAdapt(), ODPFL(), SHOT(), T3A(per="sample"), THE(), THEPlus())
"""Either a sample is answered by itself, or by a model that is made of the whole stream before the first answer."""
BOUND = (ATP(), EATA(), FedTTA(), MBSL(), Surgical(), T3A(per="batch"), Tent(), TSA(), TTT())


def drawn(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def predict(model, x, mode="eval", key=None):
    """Features are a linear map of the flat input, and logits one of the features."""
    params = model["vars"]["params"]
    features = x.flatten(1) @ params["body.w"]
    return Out(features @ params["head.w"], features, {})


def deployed(inputs, **more):
    params = {"body.w": drawn(0, inputs, 3), "head.w": drawn(1, 3, 4)}
    return {"vars": {"params": params, "buffers": {}}, **more}


def test_answers_that_do_not_depend_on_batches_and_adapters_that_see_the_whole_stream_first():
    seeing = {type(a).__name__ for a in (*FREE, *BOUND) if a.transductive}
    assert seeing == {"BBSE", "EM", "FedTTA", "ICON", "MBSL", "ODPFL", "SHOT"}
    assert [type(a).__name__ for a in FREE if not a.batch_free] == []
    assert [type(a).__name__ for a in BOUND if a.batch_free] == []
    assert TTT(online=False).batch_free and not TTT(online=True).batch_free


@pytest.mark.parametrize("online", [False, True])
def test_atp_answers_with_the_adapted_model_or_the_mean_of_all_so_far(online):
    rates = {"params": {"body.w": torch.tensor(0.5).double(), "head.w": torch.tensor(-0.2).double()}, "buffers": {}}
    model, task = deployed(5, rates=rates), SimpleNamespace(head_weight="head.w", norm_momentum={})
    adapter = ATP(online=online)
    state, each = adapter.init(task, model), []
    for seed in (2, 3, 4):
        x = drawn(seed, 6, 5)
        got, state = adapter.step(task, predict, model, state, x, rng.key(0))
        own = {n: p.clone().requires_grad_() for n, p in model["vars"]["params"].items()}
        p = predict({"vars": {"params": own}}, x).logits.softmax(-1)
        (-(p * p.log()).sum(-1).mean()).backward()
        each.append({n: (p - float(rates["params"][n]) * p.grad).detach() for n, p in own.items()})
        seen = each if online else each[-1:]
        mean = {n: sum(e[n] for e in seen) / len(seen) for n in own}
        torch.testing.assert_close(got, x @ mean["body.w"] @ mean["head.w"], rtol=1e-9, atol=1e-12)
    assert (float(state["count"]) == 3.0) if online else state == {}


class Doubled:
    """Views that are no drawn ones: the image, and its square."""

    def several(self, x, key):
        return torch.cat((x, x.square()))


def test_icon_tunes_the_encoder_on_the_contrast_of_two_views():
    """Two epochs in batches of the whole set of five images: two steps of plain SGD (Eq. 5, as a loop over anchors)."""
    model, x = deployed(4), drawn(5, 5, 1, 2, 2)
    task = SimpleNamespace(body=frozenset({"body.w"}))
    adapter = ICON(opt=SGD(lr=0.2, weight_decay=0.1), work=Work(epochs=2, batch=5), temperature=0.5, views=Doubled())
    state = adapter.init(task, model)
    tuned = adapter.prepare(task, predict, model, state, x, torch.ones(5, dtype=torch.bool), rng.key(0))
    w = model["vars"]["params"]["body.w"]
    for _ in range(2):
        own = w.clone().requires_grad_()
        z = torch.cat((x, x.square())).flatten(1) @ own
        z = z / z.norm(dim=-1, keepdim=True)
        alike = (z @ z.T / 0.5).exp()
        terms = [-torch.log(alike[i, (i + 5) % 10] / (alike[i].sum() - alike[i, i])) for i in range(10)]
        torch.stack(terms).mean().backward()
        w = w - 0.2 * (own.grad + 0.1 * w)
    torch.testing.assert_close(tuned["vars"]["params"]["body.w"], w, rtol=1e-9, atol=1e-12)
    assert torch.equal(tuned["vars"]["params"]["head.w"], model["vars"]["params"]["head.w"])
    got, _ = adapter.step(task, predict, model, tuned, x, rng.key(1))
    torch.testing.assert_close(got, x.flatten(1) @ w @ model["vars"]["params"]["head.w"], rtol=1e-9, atol=1e-12)


def test_surgical_tunes_the_chosen_layers_alone():
    names = ("body.w", "head.w")
    task = SimpleNamespace(params=names, select=lambda roles: {n for n in names for r in roles if fnmatch(n, r)})
    model, x, adapter = deployed(5), drawn(6, 4, 5), Surgical(layers=("first",), opt=SGD(lr=0.3), steps=2)
    assert adapter.chosen(task) == {"body.w"} and Surgical(layers=("head.*",)).chosen(task) == {"head.w"}
    bare = SimpleNamespace(params=("scale", "head.w"), select=set)  # a parameter of the model itself
    assert adapter.chosen(bare) == {"scale"}
    got, state = adapter.step(task, predict, model, adapter.init(task, model), x, rng.key(0))
    w, head = model["vars"]["params"]["body.w"], model["vars"]["params"]["head.w"]
    for _ in range(2):
        own = w.clone().requires_grad_()
        p = (x @ own @ head).softmax(-1)
        (-(p * p.log()).sum(-1).mean()).backward()
        before, w = w, w - 0.3 * own.grad
    torch.testing.assert_close(state["params"], {"body.w": w}, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(got, x @ before @ head, rtol=1e-9, atol=1e-12)


def test_without_steps_memo_and_ttt_answer_as_the_model_does():
    model, x = deployed(12, rotation={"weight": drawn(7, 4, 3)}), drawn(8, 5, 3, 2, 2)
    task, plain = SimpleNamespace(body=frozenset({"body.w"})), predict(model, x).logits
    for adapter in (MEMO(steps=0, chunk=2), TTT(steps=0, online=False, chunk=2), TTT(steps=0, online=True)):
        start = adapter.init(task, model)
        got, state = adapter.step(task, predict, model, start, x, rng.key(0))
        torch.testing.assert_close(got, plain, rtol=1e-9, atol=1e-12)
        assert set(state) == set(start) == ({"params", "opt"} if adapter == TTT(steps=0) else set())
