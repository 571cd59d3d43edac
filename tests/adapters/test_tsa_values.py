"""TSA by value: its learned weights and its views, on logits and images that are drawn here."""

from types import SimpleNamespace

import pytest
import torch

from acclimate.adapters.tsa import TSA
from acclimate.core import SGD, Out, rng
from acclimate.ops.augment import FlipCrop

TASK = SimpleNamespace(head_weight="w", head_bias="b", num_classes=3)
KEY = rng.key(5)


def drawn(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def learned(first, second, per, lr, steps, floor):
    """Sec. 4.2 with plain SGD: one pair of weights for all samples, or one pair for each."""
    groups = [[n] for n in range(first.shape[1])] if per == "sample" else [list(range(first.shape[1]))]
    out = []
    for own in groups:
        w = torch.zeros(2, dtype=torch.float64)
        for _ in range(steps):
            leaf = w.clone().requires_grad_()
            e = leaf.softmax(0)
            a, b = ((e[0] * view[0, own] + e[1] * view[1, own]).softmax(-1) for view in (first, second))
            alike = (a * b).sum(-1) / a.norm(dim=-1) / b.norm(dim=-1)
            (-alike.mean()).backward()
            if min(e.tolist()) >= floor:
                w = w - lr * leaf.grad
        out.append(w)
    return torch.stack(out)


@pytest.mark.parametrize("per", ["batch", "sample"])
def test_weights_go_up_the_similarity_of_two_views(per):
    first, second = 2 * drawn(0, 2, 5, 3), 2 * drawn(1, 2, 5, 3)
    adapter = TSA(per=per, steps=4, opt=SGD(lr=3.0), floor=0.3)
    expected = learned(first, second, per, 3.0, 4, 0.3)
    torch.testing.assert_close(adapter._learn(first, second), expected, rtol=1e-9, atol=1e-12)
    share = expected.softmax(-1).amin(-1)
    assert float(share.min()) < 0.3 if per == "sample" else float(share.min()) < 0.45  # they moved, and some stopped


def view_by_hand(x, key, jitter):
    """Crop and flip, then light and contrast of every image by a factor of its own."""
    x = FlipCrop().views(x, rng.fold(key, "crop"))
    light, contrast = (1 - jitter + 2 * jitter * rng.uniform(rng.fold(key, "light"), 2, len(x), 1, 1, 1)).unbind(0)
    lit = [(image * float(by)).clip(0, 1) for image, by in zip(x.numpy(), light, strict=True)]
    seen = [(i.mean() + (i - i.mean()) * float(by)).clip(0, 1) for i, by in zip(lit, contrast, strict=True)]
    return torch.stack([torch.from_numpy(s) for s in seen])


def test_views_are_crops_of_other_light_and_contrast():
    x = 0.2 + 0.6 * torch.rand(3, 3, 12, 12, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(TSA(jitter=0.3)._view(x, KEY), view_by_hand(x, KEY, 0.3), rtol=1e-5, atol=1e-6)
    whole = (255 * x).to(torch.uint8)
    ours, by_hand = TSA(jitter=0.3)._view(whole, KEY), view_by_hand(whole.float() / 255, KEY, 0.3)
    torch.testing.assert_close(ours, by_hand, rtol=1e-5, atol=1e-6)
    assert 0.1 < float(ours.mean()) < 0.6 and float(ours.std()) > 0.1


@pytest.mark.parametrize("per", ["batch", "sample"])
def test_answers_mix_both_heads_by_what_the_two_views_taught(per):
    x = torch.rand(4, 3, 8, 8, generator=torch.Generator().manual_seed(2))
    w, b = drawn(3, 3, 6).float(), drawn(4, 3).float()
    own = {"weight": 2 * drawn(5, 3, 6).float(), "bias": drawn(6, 3).float()}

    def features(x):
        return 5 * torch.cat((x.mean((2, 3)), x[:, :, 0].mean(-1)), -1)

    def predict(model, x, mode="eval", key=None):
        return Out(features(x) @ w.T + b, features(x), {})

    def heads(x):
        z = features(x)
        return torch.stack((z @ w.T + b, z @ own["weight"].T + own["bias"])).double()

    model = {"vars": {"params": {"w": w, "b": b}, "buffers": {}}, "head": own}
    adapter = TSA(per=per, steps=3, opt=SGD(lr=20.0))
    logits, state, told = adapter.trace(TASK, predict, model, {}, x, KEY)
    views = [heads(view_by_hand(x, rng.fold(KEY, i), 0.4)) for i in range(2)]
    share = learned(*views, per, 20.0, 3, 0.05).softmax(-1).expand(4, 2)
    both = heads(x)
    expected = share[:, :1] * both[0] + share[:, 1:] * both[1]
    torch.testing.assert_close(logits.double(), expected, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(told["personal_weight"].double(), share[:, 1], rtol=1e-3, atol=1e-4)
    assert (share - 0.5).abs().max() > 0.01 and state == {}
    assert torch.equal(adapter.step(TASK, predict, model, {}, x, KEY)[0], logits)


@pytest.mark.parametrize("summed", [False, True])
def test_a_head_that_adds_to_the_models_own_answers_in_sum_with_it(summed):
    """FedRoD's personal head is nothing by itself: its client answers with the sum of both."""
    own, other = drawn(7, 3, 4), drawn(8, 3, 4)
    model = {"vars": {"params": {"w": own, "b": drawn(9, 3)}}, "head": {"weight": other, "bias": drawn(10, 3)}}
    model |= {"summed": torch.ones(())} if summed else {}
    x = torch.rand(5, 3, 6, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)

    def predict(model, x, mode="eval", key=None):
        return Out(None, x.to(torch.float64).flatten(1)[:, :4], {})

    adapter = TSA(steps=0)  # both count one half
    logits, _ = adapter.step(TASK, predict, model, {}, x, KEY)
    f, b = x.flatten(1)[:, :4], model["vars"]["params"]["b"]
    generic, personal = f @ own.T + b, f @ other.T + model["head"]["bias"]
    torch.testing.assert_close(logits, (generic + personal + (generic if summed else 0.0)) / 2)
