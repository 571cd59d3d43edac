"""FedPCL, FedProto and pFedMe against loops and numbers worked out by hand."""

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from acclimate.core import SGD, Task, Work, message, rng, tree
from acclimate.eval.fairness import fairness, parameters_sent, parameters_trained, prototype_similarity
from acclimate.methods import FedAvg, FedRep, Local
from acclimate.methods.fedpcl import FedPCL
from acclimate.methods.fedproto import FedProto
from acclimate.methods.perfedavg import PerFedAvg
from acclimate.methods.pfedme import PFedMe
from acclimate.models.frozen import Projection
from acclimate.ops.prototypes import class_means, contrast, padded, pooled, prototype_loss, supervised_contrast
from support import CLASSES, SMALL, client_data, equal, fitted, gap, shards, small, task

KEY = rng.key(3)
TAU = 0.07


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def by_loop(z, y, prototypes, known) -> list[float]:
    """Eq. 8 for each sample, as printed: the sum in the denominator leaves the own class out."""
    out = []
    for v, label in zip(z, y.tolist(), strict=True):
        others = [c for c in range(len(prototypes)) if c != label and known[c] > 0]
        below = sum(math.exp(float(v @ prototypes[c]) / TAU) for c in others)
        out.append(-math.log(math.exp(float(v @ prototypes[label]) / TAU) / below))
    return out


def test_both_contrastive_losses_equal_a_direct_loop():
    z, y = F.normalize(drawn(7, 6), dim=-1), torch.tensor([0, 1, 2, 3, 1, 0, 3])
    common, sets = 0.3 * drawn(5, 6, seed=1), 0.3 * drawn(3, 5, 6, seed=2)
    known, seen = torch.tensor([4.0, 2.0, 1.0, 9.0, 0.0]), torch.tensor([1.0, 0.0, 1.0])
    assert prototype_loss(z, y, common, known, TAU).tolist() == pytest.approx(by_loop(z, y, common, known))
    each = prototype_loss(z, y, sets, known, TAU)
    for p in range(3):
        assert each[:, p].tolist() == pytest.approx(by_loop(z, y, sets[p], known))
    # Eq. 10, averaged over the batch; client 1 has not sent anything yet, so the mean of Eq. 9 is over two
    down = {"global": common, "known": known, "sets": sets, "seen": seen}
    first = sum(by_loop(z, y, common, known)) / 7
    second = sum(sum(by_loop(z, y, sets[p], known)) for p in (0, 2)) / 2 / 7
    wanted = {"global": first, "local": second, "both": first + second}
    for which, value in wanted.items():
        assert float(contrast(z, y, down, TAU, which)) == pytest.approx(value)


def test_samples_whose_class_has_no_prototype_teach_nothing():
    z, known = F.normalize(drawn(2, 6), dim=-1), torch.tensor([1.0, 0.0, 1.0])
    values = prototype_loss(z, torch.tensor([1, 0]), drawn(3, 6, seed=1), known, TAU)
    assert float(values[0]) == 0.0
    assert float(values[1]) != 0.0
    alone = prototype_loss(z, torch.tensor([0, 0]), drawn(3, 6, seed=1), torch.tensor([1.0, 0.0, 0.0]), TAU)
    assert alone.tolist() == [0.0, 0.0]


def test_supervised_contrast_equals_a_direct_loop():
    z, y = F.normalize(drawn(6, 4), dim=-1), torch.tensor([0, 0, 1, 1, 0, 2])
    terms = []
    for i in range(5):  # the last sample has no partner
        others = [j for j in range(6) if j != i]
        below = sum(math.exp(float(z[i] @ z[j]) / TAU) for j in others)
        same = [j for j in others if y[j] == y[i]]
        terms.append(-sum(math.log(math.exp(float(z[i] @ z[j]) / TAU) / below) for j in same) / len(same))
    assert float(supervised_contrast(z, z, y, TAU)) == pytest.approx(sum(terms) / 5)


def test_prototypes_with_missing_classes_and_padding():
    x, y = drawn(6, 3), torch.tensor([0, 2, 2, 0, 2, 1])
    own, counts = class_means(x, y, torch.tensor(5), 4)  # the last row is padding: class 1 is not there
    assert counts.tolist() == [2, 0, 3, 0]
    assert torch.allclose(own[0], (x[0] + x[3]) / 2)
    assert torch.allclose(own[2], (x[1] + x[2] + x[4]) / 3)
    other, other_counts = drawn(4, 3, seed=4), torch.tensor([6.0, 5.0, 0.0, 0.0], dtype=torch.float64)
    sets, n = torch.stack([own, other]), torch.stack([counts, other_counts])
    common, total = pooled(sets, n)
    assert total.tolist() == [8, 5, 3, 0]
    assert torch.allclose(common[0], (2 * own[0] + 6 * other[0]) / 8)  # weights sum to one
    assert torch.allclose(common[1], other[1])
    full = padded(sets, n, common)
    assert torch.equal(full[0, 1], common[1])
    assert torch.equal(full[1, 2], own[2])
    assert torch.equal(full[1, 0], other[0])


def test_the_first_round_only_makes_prototypes_and_the_server_keeps_absent_clients_sets():
    method = small(FedPCL())
    worker, engine, state = fitted(method, rounds=1, cohort=4)
    start = worker.task.init(worker.key("init"))
    for client in range(6):
        assert gap(tree.take(state.mine, client)["vars"], start) == 0.0
    sent = state.server["counts"].sum(-1) > 0
    assert int(sent.sum()) == 4
    later = fitted(method, rounds=2, cohort=4)[2]
    absent = later.server["sets"].eq(state.server["sets"]).flatten(1).all(1) & sent
    assert bool(((later.server["counts"].sum(-1) > 0) >= sent).all())
    assert int(absent.sum()) <= 3
    down = method.download(worker.task, later.server)
    live = method.deploy(worker.task, down, tree.take(later.mine, 0))
    x = engine.shards.x[:9]
    out = method.predict(worker.task, live, x)
    z = F.normalize(worker.task.apply(live["vars"], x).features, dim=-1)
    heads = live["vars"]["params"][worker.task.head_weight]
    assert torch.equal(out.logits.argmax(-1), (z @ heads.T).argmax(-1))


def test_a_class_nobody_has_is_never_answered_and_a_missing_one_only_by_the_common_prototype():
    method, t, data = FedPCL(work=SMALL), task("mlp-dropout"), shards()
    own = client_data(data, 0)
    own["y"] = own["y"].clamp_max(1)  # classes 0 and 1 alone
    mine = method.finish_personal(t, {}, method.init_client(t, 0, KEY), own, KEY)
    down = {"global": torch.ones(CLASSES, t.dim), "known": torch.tensor([1.0, 1.0, 1.0, 0.0, 0.0])}
    out = method.predict(t, method.deploy(t, down, mine), own["x"][:8])
    assert out.logits[:, 3:].max() == -1e4
    assert out.logits[:, 2].min() > -1e4
    released = replace(method, variant="released")
    out = released.predict(t, released.deploy(t, down, mine), own["x"][:8])
    assert out.logits[:, 2:].max() <= -1e4


def test_the_released_variant_answers_with_the_nearest_prototype():
    method, t, data = FedPCL(variant="released"), task("mlp-dropout"), shards()
    own = client_data(data, 0)
    mine = method.finish_personal(t, {}, method.init_client(t, 0, KEY), own, KEY)
    live = method.deploy(t, {"global": torch.zeros(CLASSES, t.dim), "known": torch.ones(CLASSES)}, mine)
    z = F.normalize(t.apply(live["vars"], own["x"]).features, dim=-1)
    wanted = torch.cdist(z, mine["prototypes"]).argmin(-1)
    assert torch.equal(method.predict(t, live, own["x"]).logits.argmax(-1), wanted)


@pytest.mark.parametrize("loss", ["ce", "ce+distance", "supcon"])
def test_the_other_losses_train(loss):
    _, _, state = fitted(small(FedPCL(loss=loss)), rounds=2)
    start = task().init(rng.key(0))["params"]
    assert gap(tree.take(state.mine, 0)["vars"]["params"], start) > 1e-4


# --- what is sent ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "one", "three"),
    [
        (FedAvg(), 133_632, 395_776),
        (PFedMe(), 133_632, 395_776),
        (PerFedAvg(order="first"), 133_632, 395_776),
        (FedRep(), 131_072, 393_216),
        (FedProto(), 2_560, 2_560),
        (FedPCL(), 2_560, 2_560),
        (Local(), 0, 0),
    ],
)
def test_parameters_per_round_are_those_of_table_2(method, one, three):
    for backbones, wanted in ((1, one), (3, three)):
        t = Task(Projection(), (512 * backbones,), 10)
        x, y = torch.zeros(4, 512 * backbones), torch.tensor([0, 1, 2, 9])
        data = {"x": x, "y": y, "rows": torch.arange(4), "n": torch.tensor(4), "id": torch.tensor(0)}
        data["round"] = torch.tensor(0)
        quick = small(method, Work(epochs=1, batch=2))
        down, mine = quick.download(t, quick.init_server(t, 2, KEY)), quick.init_client(t, 0, KEY)
        up, _ = quick.client(t, down, mine, data, KEY)
        assert parameters_sent(message.describe(up)) == wanted
        assert parameters_trained(t) == 131_072 * backbones + 2_560


# --- FedProto ----------------------------------------------------------------------------------------------------


def test_fedproto_without_weight_is_local_training():
    alone = fitted(Local(work=SMALL), rounds=2)[2]
    apart = fitted(FedProto(work=SMALL, weight=0.0, inference="head"), rounds=2)[2]
    tied = fitted(FedProto(work=SMALL), rounds=2)[2]
    assert gap(alone.mine["vars"], apart.mine["vars"]) < 1e-6
    assert gap(alone.mine["vars"], tied.mine["vars"]) > 1e-4


def test_fedproto_pools_by_class_counts_and_answers_with_the_nearest():
    method = FedProto(work=SMALL)
    worker, engine, state = fitted(method, rounds=1, cohort=6)
    t, total, weight = worker.task, 0.0, 0.0
    for client in range(6):
        own = client_data(engine.shards, client)
        z = t.apply(tree.take(state.mine, client)["vars"], own["x"][own["rows"]]).features
        at = own["y"][own["rows"]] == 2
        total, weight = total + z[at].sum(0), weight + int(at.sum())
    assert torch.allclose(state.server["prototypes"][2], total / weight, atol=1e-5)
    live = method.deploy(t, state.server, tree.take(state.mine, 0))
    x = engine.shards.x[:9]
    wanted = torch.cdist(t.apply(live["vars"], x).features, state.server["prototypes"]).argmin(-1)
    assert torch.equal(method.predict(t, live, x).logits.argmax(-1), wanted)


# --- pFedMe ------------------------------------------------------------------------------------------------------


def test_pfedme_on_a_quadratic_by_hand():
    """f(theta) = (theta - 4)^2 / 2, lam = 2, rate 0.1, two personal steps, eta = 0.25: two local steps on paper."""

    def loss(vars, batch, key):
        return 0.5 * (vars["params"]["w"] - 4.0) ** 2, {}

    method = PFedMe(opt=SGD(lr=0.1), lam=2.0, steps=2, eta=0.25, work=Work(iterations=2, batch=1))
    data = {"x": torch.zeros(1), "y": torch.zeros(1), "rows": torch.arange(1), "n": torch.tensor(1)}
    data["round"] = torch.tensor(0)
    w, theta = method.round(loss, {"params": {"w": torch.tensor(1.0)}, "buffers": {}}, data, KEY)
    # theta: 1 -> 1 - 0.1 (-3 + 0) = 1.3 -> 1.3 - 0.1 (-2.7 + 0.6) = 1.51;  w: 1 - 0.5 (1 - 1.51) = 1.255
    # theta: 1.51 - 0.1 (-2.49 + 0.51) = 1.708 -> 1.708 - 0.1 (-2.292 + 0.906) = 1.8466;  w: 1.255 + 0.5 (0.5916)
    assert float(theta["params"]["w"]) == pytest.approx(1.8466, abs=1e-5)
    assert float(w["params"]["w"]) == pytest.approx(1.5508, abs=1e-5)


def test_pfedme_mixes_by_beta_and_deploys_the_personal_model():
    (worker, _, full), (_, _, half) = (fitted(PFedMe(work=SMALL, beta=b, steps=2), rounds=1) for b in (1.0, 0.5))
    start = worker.task.init(worker.key("init"))
    moved, less = (tree.sub(s.server["vars"], start) for s in (full, half))
    assert gap(tree.scale(moved, 0.5), less) < 1e-6
    mine = tree.take(full.mine, 0)
    assert equal(PFedMe().deploy(worker.task, {"vars": full.server["vars"]}, mine)["vars"], mine["vars"])


# --- measures ----------------------------------------------------------------------------------------------------


def test_fairness_over_ten_clients():
    found = fairness([i / 10 for i in (5, 1, 9, 3, 2, 8, 4, 7, 6, 0)])
    assert found["mean"] == pytest.approx(0.45)
    assert (found["worst10"], found["worst20"], found["worst40"]) == pytest.approx((0.0, 0.05, 0.15))
    assert found["best10"] == pytest.approx(0.9)
    assert found["variance"] == pytest.approx(0.0825)
    assert found["std"] == pytest.approx(0.0825**0.5)
    with pytest.raises(ValueError, match="per_client"):
        fairness([])


def test_prototype_similarity_counts_the_classes_that_a_client_holds():
    one, fused = torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([[1.0, 0.0], [1.0, 0.0]])
    assert prototype_similarity([one], [fused], [torch.tensor([3, 2])]) == pytest.approx([0.5])
    assert prototype_similarity([one], [fused], [torch.tensor([3, 0])]) == pytest.approx([1.0])


@pytest.mark.parametrize(
    "bad", [{"tau": 0.0}, {"distance": -1.0}, {"prototypes": "all"}, {"loss": "mse"}, {"variant": "x"}]
)
def test_fedpcl_refuses_by_name(bad):
    with pytest.raises(ValueError, match=next(iter(bad))):
        FedPCL(**bad)
