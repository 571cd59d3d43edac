"""MBSL's losses, labels and thresholds as numbers: computed with plain numpy from the paper's equations."""

import numpy as np
import pytest
import torch
from torch.func import grad

from acclimate.adapters.mbsl import MBSL
from acclimate.core import SGD, Out, rng
from by_hand import softmax

LOGITS = np.array([[2.0, 0.5, -1.0], [0.1, 0.2, 0.3], [-1.0, 3.0, 0.0], [0.4, -0.2, 0.1]])
TAUGHT = np.array([[0.7, 0.2, 0.1], [0.4, 0.35, 0.25], [0.1, 0.85, 0.05], [0.3, 0.25, 0.45]])
MARGIN = np.array([0.5, 0.05, 0.75, 0.15])
DELTA = 0.15
"""The last sample's margin is exactly the threshold: strong in the paper (Eq. 8)."""
WEIGHTS = {"strong": 0.6, "weak": 0.3, "contrast": 0.1}


def surprise(logits, labels):
    """Cross-entropy of each row."""
    return -np.log(softmax(logits)[np.arange(len(labels)), labels])


def loss(variant, *losses, weights=WEIGHTS, margin=MARGIN, views=None, delta=DELTA):
    equations = MBSL(variant=variant, temperature=0.5).equations
    batch = {"taught": TAUGHT, "margin": margin, "delta": np.array(delta), "who": np.arange(len(margin))}
    batch = {name: torch.from_numpy(value) for name, value in batch.items()}
    scaled = {name: torch.tensor(value, dtype=torch.float64) for name, value in weights.items()}
    return float(equations.loss(torch.from_numpy(LOGITS), lambda: (None, views), batch, scaled, losses))


def test_strong_samples_have_cross_entropy_and_weak_ones_squared_distance():
    """Eq. 8 to 10: samples 0, 2 and 3 reach the threshold, sample 1 does not."""
    strong, weak = [0, 2, 3], [1]
    ce = surprise(LOGITS, TAUGHT.argmax(-1))[strong].mean()
    far = np.square(TAUGHT - softmax(LOGITS)).sum(-1)[weak].mean()
    assert loss("paper", "strong") == pytest.approx(0.6 * ce, rel=1e-9) and ce > 0
    assert loss("paper", "weak") == pytest.approx(0.3 * far, rel=1e-9)
    assert loss("paper", "strong", "weak") == pytest.approx(0.6 * ce + 0.3 * far, rel=1e-9)
    all_strong, all_weak = (loss("paper", "strong", "weak", delta=d) for d in (-1.0, 2.0))
    assert all_strong == pytest.approx(0.6 * surprise(LOGITS, TAUGHT.argmax(-1)).mean(), rel=1e-9)
    assert all_weak == pytest.approx(0.3 * np.square(TAUGHT - softmax(LOGITS)).sum(-1).mean(), rel=1e-9)


def test_as_released_the_threshold_is_the_batch_s_and_distances_are_between_logits():
    """The batch's mean margin is 0.3625, and strong is above it: samples 0 and 2, whatever the client's threshold."""
    ce = surprise(LOGITS, TAUGHT.argmax(-1))[[0, 2]].mean()
    far = np.square(TAUGHT - LOGITS).sum(-1)[[1, 3]].mean()
    for delta in (DELTA, 0.9):
        assert loss("released", "strong", delta=delta) == pytest.approx(0.6 * ce, rel=1e-9)
        assert loss("released", "weak", delta=delta) == pytest.approx(0.3 * far, rel=1e-9)
    assert loss("released", "strong", margin=np.full(4, 0.2)) == 0  # exactly at the mean is not strong there
    equal = 0.3 * np.square(TAUGHT - LOGITS).sum(-1).mean()
    assert loss("released", "weak", margin=np.full(4, 0.2)) == pytest.approx(equal, rel=1e-9)


def test_the_released_contrast_is_of_weak_samples_and_positive():
    """SimCLR among both views of samples 1 and 3, by a loop; unit vectors less the mean of all their entries."""
    views = np.random.default_rng(0).normal(size=(2, 4, 5))
    z = views[:, [1, 3]].reshape(4, 5)
    z = z / np.linalg.norm(z, axis=-1, keepdims=True)
    z = z - z.mean()
    terms = []
    for i in range(4):
        scores = z @ z[i] / 0.5
        partner = scores[(i + 2) % 4]
        terms.append(np.log(np.exp(np.delete(scores, i)).sum()) - partner)
    ours = loss("released", "contrast", views=torch.from_numpy(views))
    assert ours == pytest.approx(0.1 * np.mean(terms), rel=1e-9) and ours > 0


def test_weights_of_the_losses_are_the_papers_and_the_released_codes():
    """Eq. 12 to 14 as read, and the released schedule, three steps by hand."""
    margin, delta = torch.tensor([0.2, 0.6]), torch.tensor(0.25)
    paper, released = (MBSL(variant=v).equations for v in ("paper", "released"))
    grown, left, kept = torch.ones(()), 1.0, 1.0
    own = torch.ones(())
    for j in range(3):
        left *= 1 - 0.25
        weights, grown = paper.weights(grown, delta, margin, torch.tensor(float(j)))
        weak, contrast = 0.001 * (1 - left), 0.4 * np.exp(-1e-3 * j)
        assert [float(weights[n]) for n in WEIGHTS] == pytest.approx([1 - weak - contrast, weak, contrast], rel=1e-5)
        weights, own = released.weights(own, delta, margin, torch.tensor(float(j)))
        assert [float(weights[n]) for n in WEIGHTS] == pytest.approx(
            [kept, 1 - kept, 0.5 * np.exp(-1e-4 * j)], rel=1e-4, abs=1e-7
        )
        kept *= 1 - 0.001 * np.exp(-0.4)


class Same:
    def views(self, x, key):
        return x


class Spied(MBSL):
    """Keeps what the student is given in every step, and learns nothing."""

    def _learn(self, predict, model, now, batch, key):
        SEEN.append({name: value.clone() for name, value in batch.items()})
        return {**now, "j": now["j"] + 1}


SEEN = []


def test_the_threshold_is_the_mean_margin_over_all_of_the_client_s_samples():
    """Eq. 6 to 8 with a model whose logits are its input: seven real samples of nine, two steps of four."""
    logits = np.random.default_rng(1).normal(size=(9, 3)) * np.arange(1, 10)[:, None]
    x, real = torch.from_numpy(logits).float()[:, None, None], torch.arange(9) < 7

    def predict(model, x, mode="eval", key=None):
        return Out(x[:, 0, 0], x[:, 0, 0], {})

    SEEN.clear()
    adapter = Spied(epochs=1, batch=4, views=2, augment=Same(), opt=SGD(lr=0.1))
    w = torch.zeros(())
    model = {"vars": {"params": {"w": w}, "buffers": {}}}
    adapter.prepare(None, predict, model, {"teacher": {"w": w}}, x, real, rng.key(0))
    top = np.sort(softmax(logits.astype(np.float32)), -1)
    margin = top[:, -1] - top[:, -2]
    assert len(SEEN) == 3 and {len(s["who"]) for s in SEEN} == {4}  # the seven, once around, and padding's third step
    for seen in SEEN:
        who = seen["who"].numpy()
        assert float(seen["delta"]) == pytest.approx(margin[:7].mean(), rel=1e-5)
        assert seen["margin"].numpy() == pytest.approx(margin[who], rel=1e-4)
        assert seen["taught"].numpy() == pytest.approx(softmax(logits)[who], rel=1e-4)
    assert abs(margin[:7].mean() - margin[:4].mean()) > 0.01 and abs(margin[:7].mean() - margin.mean()) > 0.01


@pytest.mark.parametrize("variant", ["paper", "released"])
def test_a_step_of_the_student_goes_down_the_loss(variant):
    """One step of plain SGD on a linear student: parameters less rate times gradient of the loss, which falls."""
    adapter = MBSL(variant=variant, losses=("strong", "weak"), opt=SGD(lr=0.01), augment=Same(), rho=0.9)
    x = torch.from_numpy(np.random.default_rng(2).normal(size=(4, 1, 1, 5))).float()
    start = {"w": torch.from_numpy(np.random.default_rng(3).normal(size=(5, 3))).float()}

    def predict(model, x, mode="eval", key=None):
        features = x[:, 0, 0]
        return Out(features @ model["vars"]["params"]["w"], features, {})

    zero = torch.zeros(())
    now = {"teacher": start, "student": start, "opt": {}, "grown": zero + 0.7, "j": zero}
    batch = {"x": x, "taught": torch.from_numpy(TAUGHT).float(), "margin": torch.from_numpy(MARGIN).float()}
    batch |= {"delta": zero + DELTA, "who": torch.arange(4)}
    new = adapter._learn(predict, {"vars": {"params": start, "buffers": {}}}, now, batch, rng.key(0))
    left = 0.7 * (1 - DELTA)
    share = {"paper": (1 - 0.001 * (1 - left) - 0.4, 0.001 * (1 - left)), "released": (0.7, 0.3)}[variant]
    strong = torch.tensor([1.0, 0, 1, 1] if variant == "paper" else [1.0, 0, 1, 0])

    def by_hand(w):
        logits, taught = x[:, 0, 0] @ w, batch["taught"]
        said = logits.softmax(-1)
        ce = -(said[torch.arange(4), taught.argmax(-1)].log() * strong).sum() / strong.sum()
        far = (taught - (said if variant == "paper" else logits)).square().sum(-1)
        return share[0] * ce + share[1] * (far * (1 - strong)).sum() / (1 - strong).sum()

    torch.testing.assert_close(new["student"]["w"], start["w"] - 0.01 * grad(by_hand)(start["w"]))
    assert by_hand(new["student"]["w"]) < by_hand(start["w"])
    moved = 0.9 * start["w"] + 0.1 * new["student"]["w"] if variant == "paper" else start["w"]
    torch.testing.assert_close(new["teacher"]["w"], moved)
    assert float(new["j"]) == 1.0


def test_the_students_contrast_is_between_two_views():
    """Views that are the images themselves: the loss of the contrast alone is that of a pair of equal features."""
    adapter = MBSL(losses=("contrast",), augment=Same())
    x = torch.from_numpy(np.random.default_rng(4).normal(size=(4, 1, 1, 5))).float()

    def predict(model, x, mode="eval", key=None):
        return Out(x[:, 0, 0, :3], x[:, 0, 0], {})

    batch = {"x": x, "taught": torch.from_numpy(TAUGHT), "margin": torch.from_numpy(MARGIN)}
    batch |= {"delta": torch.tensor(DELTA), "who": torch.arange(4)}
    model = {"vars": {"params": {}, "buffers": {}}}
    ours = adapter._loss({}, predict, model, batch, {"contrast": torch.tensor(0.3)}, rng.key(0))
    pair = adapter.equations.contrastive(x[:, 0, 0].expand(2, 4, 5), torch.arange(4), torch.zeros(4))
    assert float(ours) == pytest.approx(0.3 * float(pair), rel=1e-5) and float(pair) > 0
