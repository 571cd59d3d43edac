"""The training baselines of FedSPL's comparison: each by the equalities of its own paper."""

import math
from dataclasses import replace
from functools import cache

import pytest
import torch
import torch.nn.functional as F
from torch.func import grad

from acclimate.adapters import BNStats
from acclimate.core import SGD, Sender, Shards, StepDecay, Task, Work, rng, tree
from acclimate.core.limits import ExampleCount, Within
from acclimate.filters import FP16, Clip, Int8, Noise, TopK
from acclimate.methods import FedAvg
from acclimate.methods.am import AM
from acclimate.methods.dsbn import DSBN
from acclimate.methods.elcfs import ELCFS, moved
from acclimate.methods.fedcsa import FedCSA, contribution
from acclimate.methods.fednova import FedNova, walked
from acclimate.methods.fedsam import FedSAM
from acclimate.methods.ga import GA, on_simplex
from acclimate.methods.harmofl import HarmoFL
from acclimate.methods.rsc import RSC
from acclimate.models import MLP
from acclimate.ops import fourier
from acclimate.ops.losses import sharp
from support import CLASSES, SMALL, client_data, equal, fitted, gap, images, shards, task

KEY = rng.key(5)
EVEN = (16, 16, 16, 16)


@cache
def served(method, **options):
    """The server's model after training on the small federation."""
    return fitted(method, **{"rounds": 2, **options})[2].server["vars"]


def same_as_fedavg(method, plain=None, within=1e-5, **options):
    """Whether a method trains the very model of FedAvg."""
    plain = plain or FedAvg(work=method.work, opt=method.opt)
    return gap(served(method, **options), served(plain, **options)) < within


# FedNova


@pytest.mark.parametrize("opt", [SGD(lr=0.05), SGD(lr=0.05, momentum=0.9), SGD(lr=0.02, momentum=0.5, nesterov=True)])
def test_fednova_with_equal_steps_is_fedavg(opt):
    assert same_as_fedavg(FedNova(work=SMALL, opt=opt), data=shards(EVEN))
    assert not same_as_fedavg(FedNova(work=SMALL, opt=opt))  # the other federation's clients differ in size
    assert same_as_fedavg(FedNova(work=Work(iterations=3, batch=8), opt=opt))


def test_fednovas_normaliser_is_the_way_along_a_constant_gradient():
    data = client_data(shards(), 0)
    three = Work(iterations=3)
    assert float(walked(SGD(), three, data)) == 3.0
    assert float(walked(SGD(momentum=0.5), three, data)) == pytest.approx(1 + 1.5 + 1.75)
    assert float(walked(SGD(momentum=0.5, nesterov=True), three, data)) == pytest.approx(1.5 + 1.75 + 1.875)
    assert float(walked(SGD(schedule=StepDecay("step", 1, 0.5)), three, data)) == pytest.approx(1 + 0.5 + 0.25)
    assert float(walked(SGD(momentum=1.0), three, data)) == 1 + 2 + 3
    for opt in (SGD(lr=0.1, momentum=0.9), SGD(lr=0.1, momentum=0.9, nesterov=True)):
        params, state = {"w": torch.zeros(())}, opt.init({"w": torch.zeros(())})
        for _ in range(7):
            params, state = opt.update({"w": torch.ones(())}, state, params)
        assert float(walked(opt, Work(iterations=7), data)) == pytest.approx(-float(params["w"]) / 0.1, rel=1e-5)


def test_fednovas_step_by_hand():
    t, data = task("cnn-plain"), shards()
    method, plain = FedNova(work=SMALL), FedAvg(work=SMALL)
    server = method.init_server(t, 2, rng.key(0))
    ups = [method.client(t, server, {}, client_data(data, c), KEY)[0] for c in (0, 5)]  # 40 and 9 examples
    assert [float(u["steps"]) for u in ups] == [10.0, 4.0]
    whole = [plain.client(t, server, {}, client_data(data, c), KEY)[0]["delta"]["params"] for c in (0, 5)]
    effective = (40 * 10 + 9 * 4) / 49
    wanted = tree.map(lambda a, b: effective * (40 / 49 * a / 10 + 9 / 49 * b / 4), *whole)
    mean = tree.map(lambda a, b: (40 * a + 9 * b) / 49, *(tree.pick(u, ("delta", "steps")) for u in ups))
    new = method.server(t, server, mean, KEY)
    assert gap(tree.sub(new["vars"]["params"], server["vars"]["params"]), wanted) < 1e-6


# FedCSA


def test_contributions_by_hand():
    totals = torch.tensor([10.0, 2.0, 0.0])
    assert float(contribution(torch.tensor([5.0, 0.0, 0.0]), totals)) == pytest.approx(0.5)
    assert float(contribution(torch.tensor([5.0, 2.0, 0.0]), totals)) == pytest.approx(1.5)
    assert float(contribution(torch.tensor([0.0, 0.0, 3.0]), totals)) == pytest.approx(3 / 6)  # an average class has 6
    assert float(contribution(torch.tensor([5.0, 2.0, 1.0]), torch.zeros(3))) == 8.0


def test_fedcsa_is_fedavg_in_the_first_round_and_where_all_clients_hold_the_same_mix():
    assert same_as_fedavg(FedCSA(work=SMALL), rounds=1)
    assert not same_as_fedavg(FedCSA(work=SMALL), rounds=3)
    x, _ = images(60)
    y = torch.arange(CLASSES).repeat(12)
    mixed = Shards.of(x, y, [torch.arange(0, 10), torch.arange(10, 40), torch.arange(40, 60)])
    assert same_as_fedavg(FedCSA(work=SMALL), rounds=3, cohort=3, data=mixed)


def test_the_server_learns_totals_of_classes_and_no_clients_own():
    data = shards()
    state = fitted(FedCSA(work=SMALL), rounds=2, cohort=6, data=data)[2]
    rows = torch.cat([data.own(c) for c in range(data.clients)])
    assert torch.equal(state.server["counts"], 2.0 * torch.bincount(data.y[rows], minlength=CLASSES))


def test_fedcsas_class_counts_are_whole_numbers_which_filters_leave_alone():
    data = shards()
    server = FedCSA().init_server(task("cnn-plain"), 6, KEY)
    up, _ = FedCSA(work=SMALL).client(task("cnn-plain"), server, {}, client_data(data, 0), KEY)
    assert up["counts"].dtype == torch.int64 and up["share"].is_floating_point()
    sender = Sender(FedCSA().uplink, torch.tensor(0), torch.tensor(0))
    for f in (Clip(norm=0.1), Noise(p=0.5), Int8(), TopK(share=0.1), FP16()):
        assert equal(f.client(up, KEY, sender)["counts"], torch.bincount(data.y[data.own(0)], minlength=CLASSES))


# Amplitudes


def test_a_repainted_image_has_the_wanted_amplitudes_and_its_own_phases():
    a, b = (torch.rand(3, 10, 12, generator=torch.Generator().manual_seed(s)) for s in (0, 1))
    painted = fourier.repainted(a, fourier.amplitude(b))
    assert gap(fourier.amplitude(painted), fourier.amplitude(b)) < 1e-3
    phases = [torch.fft.fft2(v).angle() for v in (a, painted)]
    assert float(torch.cos(phases[0] - phases[1]).min()) > 0.999
    assert torch.equal(fourier.repainted(a, fourier.amplitude(a)), a)
    blank = torch.zeros(1, 4, 4)
    assert torch.equal(fourier.repainted(blank, torch.ones(1, 4, 4)), blank)  # no phase, nothing to paint


def test_a_clients_mean_amplitude_is_without_padding():
    data = shards()
    own = client_data(data, 2)
    wanted = torch.stack([torch.fft.fft2(x / 255.0, norm="ortho").abs() for x in data.x[data.own(2)]]).mean(0)
    padded = {**own, "rows": torch.cat([own["rows"], own["rows"][:7]])}
    for given in (own, padded):
        assert gap(fourier.mean_amplitude(given, chunk=5), wanted) < 1e-5


def test_low_frequencies_are_taken_and_put_back():
    a, b = (fourier.amplitude(torch.rand(2, 3, 9, 12)) for _ in range(2))
    swapped = fourier.with_low(a, fourier.low(b, 2))
    assert gap(fourier.low(swapped, 2), fourier.low(b, 2)) < 1e-5 and gap(fourier.low(a, 2), fourier.low(b, 2)) > 1e-3
    low = fourier.with_low(torch.zeros(1, 1, 9, 12), torch.ones(1, 1, 5, 5))[0, 0]
    near = [[min(i, 9 - i) <= 2 and min(j, 12 - j) <= 2 for j in range(12)] for i in range(9)]
    assert torch.equal(low > 0, torch.tensor(near))
    assert fourier.reach((3, 10, 10), 0.1) == 1 and fourier.reach((3, 4, 4), 0.5) == 1


def test_inputs_that_are_no_images_are_refused():
    flat = Task(MLP(hidden=(4,)), (6,), 3)
    for method in (AM(), HarmoFL(), ELCFS()):
        with pytest.raises(ValueError, match="needs images"):
            method.init_server(flat, 2, rng.key(0))


# AM


@pytest.mark.parametrize("method", [AM(strength=0.0), AM(chance=0.0), AM(strength=0.0, partner="clients")])
def test_am_that_mixes_nothing_is_fedavg(method):
    assert same_as_fedavg(replace(method, work=SMALL), model="cnn-plain")


def test_am_mixes_by_the_drawn_weights():
    x = images(6)[0]
    key = rng.fold(KEY, "mix")
    partner = rng.permutation(rng.fold(key, "partner"), 6)
    weight = rng.uniform(rng.fold(key, "weight"), 6)
    out = AM(chance=1.0).mixed(x, None, key)
    for i in range(6):
        own, other = (torch.fft.fft2(x[j] / 255.0) for j in (i, int(partner[i])))
        mixed = torch.polar((1 - weight[i]) * own.abs() + weight[i] * other.abs(), own.angle())
        assert gap(out[i], torch.fft.ifft2(mixed).real.clamp(0, 1)) < 1e-3
    assert gap(out, x / 255.0) > 0.05
    assert not same_as_fedavg(AM(work=SMALL), model="cnn-plain")


def test_am_sends_amplitudes_only_where_clients_are_partners_and_the_server_holds_their_mean():
    data = shards()
    quiet = fitted(AM(work=SMALL), rounds=1, data=data)[2]
    assert {p["group"] for p in quiet.cost["message"]} == {"delta", "n"}
    state = fitted(AM(partner="clients", work=SMALL), rounds=1, cohort=6, data=data)[2]
    rows = torch.cat([data.own(c) for c in range(data.clients)])
    assert gap(state.server["amplitude"], fourier.amplitude(data.x[rows]).mean(0)) < 1e-5


# RSC


@pytest.mark.parametrize("method", [RSC(features=0.0), RSC(samples=0.0)])
def test_rsc_with_nothing_muted_is_fedavg(method):
    assert same_as_fedavg(replace(method, work=SMALL))
    assert not same_as_fedavg(RSC(work=SMALL))


def test_the_best_features_of_the_samples_that_lose_most_are_muted():
    head = {"weight": torch.tensor([[3.0, 1.0, 0.0], [0.0, 2.0, 5.0]])}
    features = torch.tensor([[1.0, 1.0, 0.0], [0.0, 1.0, 1.0], [0.0, 1.0, 0.0]])
    y = torch.tensor([0, 1, 0])
    # the first sample leans on feature 0 and the second on feature 2; the third has nothing in feature 0 to lose
    keep = RSC(features=1 / 3, samples=1 / 3).challenge(head, features, y)
    lost = []
    for i, best in enumerate((0, 2, 0)):
        without = features[i].clone()
        without[best] = 0.0
        before, after = ((head["weight"] @ v).softmax(0)[y[i]] for v in (features[i], without))
        lost.append(float(before - after))
    chosen = max(range(3), key=lambda i: lost[i])
    wanted = torch.ones(3, 3)
    wanted[chosen, (0, 2, 0)[chosen]] = 0.0
    assert lost[2] == 0.0 and torch.equal(keep, wanted)
    everyone = RSC(features=2 / 3, samples=1.0).challenge(head, features, y)
    assert everyone.tolist() == [[0, 0, 1], [1, 0, 0], [0, 0, 1]]


# FedSAM


def test_fedsam_without_a_radius_is_fedavg():
    assert same_as_fedavg(FedSAM(rho=0.0, work=SMALL))
    assert not same_as_fedavg(FedSAM(work=SMALL))


def test_the_sharp_gradient_is_the_one_uphill():
    scale = torch.tensor([1.0, 4.0])

    def bowl(vars, batch, key):
        return (scale * vars["params"]["w"] ** 2).sum() / 2, {"passes": vars["params"]["w"] * 1}

    vars = {"params": {"w": torch.tensor([3.0, 1.0])}, "buffers": {}}
    got, buffers = grad(lambda p: sharp(bowl, 0.5)({**vars, "params": p}, {}, KEY), has_aux=True)(vars["params"])
    # the gradient is (3, 4), of length 5, so the point uphill is (3.3, 1.4)
    assert got["w"].tolist() == pytest.approx([3.3, 5.6])
    assert buffers["passes"].tolist() == [3.0, 1.0]
    flat = {"params": {"w": torch.zeros(2)}, "buffers": {}}
    assert equal(
        grad(lambda p: sharp(bowl, 0.5)({**flat, "params": p}, {}, KEY)[0])(flat["params"]), {"w": torch.zeros(2)}
    )


# HarmoFL


def test_harmofl_is_fedavg_where_all_images_have_one_amplitude():
    shape = images(1)[0][0]
    moves = [(i, j) for i in range(10) for j in range(6)]
    x = torch.stack([torch.roll(shape, move, (1, 2)) for move in moves])  # a shift changes phases alone
    data = Shards.of(x, torch.tensor([i // 2 for i, _ in moves]), list(torch.arange(60).split([20, 24, 16])))
    method, plain = HarmoFL(alpha=0.0, work=SMALL), FedAvg(work=SMALL)
    options = {"model": "cnn-plain", "rounds": 2, "cohort": 3}
    assert same_as_fedavg(method, plain, within=1e-3, data=data, **options)
    assert not same_as_fedavg(method, plain, within=1e-3, **options)
    assert not same_as_fedavg(replace(method, alpha=0.5), plain, within=1e-3, data=data, **options)


def test_harmofls_amplitude_follows_the_clients_and_is_part_of_the_model():
    method, t = HarmoFL(momentum=0.25, work=SMALL), task("cnn-plain")
    server = method.init_server(t, 2, rng.key(0))
    x = images(4)[0]
    first = method.deploy(t, server, {})
    assert gap(method.predict(t, first, x).logits, t.apply(server["vars"], x).logits) < 1e-5  # no amplitude yet
    total = {"delta": tree.zeros(server["vars"]), "amplitude": torch.full(t.shape, 2.0), "n": torch.tensor(9)}
    server = method.server(t, server, total, KEY)
    assert float(server["amplitude"].mean()) == 2.0
    server = method.server(t, server, {**total, "amplitude": torch.full(t.shape, 4.0)}, KEY)
    assert float(server["amplitude"].mean()) == 2.5
    common = fourier.amplitude(images(1, seed=3)[0][0])
    seen = method.predict(t, {**method.deploy(t, server, {}), "amplitude": common}, x).logits
    by_hand = torch.fft.ifft2(
        torch.polar(common.expand(4, -1, -1, -1), torch.fft.fft2(x / 255.0).angle()), norm="ortho"
    )
    assert gap(seen, t.apply(server["vars"], by_hand.real).logits) < 1e-3


# ELCFS


def test_elcfs_without_a_step_and_a_bank_is_fedavg_at_twice_the_rate():
    method = ELCFS(inner=0.0, work=SMALL, opt=SGD(lr=0.02))
    assert same_as_fedavg(method, FedAvg(work=SMALL, opt=SGD(lr=0.04)), rounds=1)
    assert not same_as_fedavg(method, FedAvg(work=SMALL, opt=SGD(lr=0.04)), rounds=2)  # the bank is filled
    assert not same_as_fedavg(replace(method, inner=0.5), FedAvg(work=SMALL, opt=SGD(lr=0.04)), rounds=1)


def test_an_episode_is_differentiated_through_its_inner_step():
    t = task("cnn-plain")
    method = ELCFS(inner=0.5)
    down = method.init_server(t, 3, rng.key(0))
    x, y = images(8)
    batch = {"x": x, "y": y}
    episode = method.episode(t, down, torch.tensor(0))
    ours = grad(lambda p: episode({**down["vars"], "params": p}, batch, KEY)[0])(down["vars"]["params"])
    leaves = {k: p.clone().requires_grad_() for k, p in down["vars"]["params"].items()}

    def ce(params):
        return F.cross_entropy(t.apply({"params": params, "buffers": {}}, x, "train", KEY).logits, y)

    before = ce(leaves)
    slopes = torch.autograd.grad(before, list(leaves.values()), create_graph=True)
    after = ce({k: p - 0.5 * g for (k, p), g in zip(leaves.items(), slopes, strict=True)})
    wanted = torch.autograd.grad(before + after, list(leaves.values()))
    assert gap(ours, dict(zip(leaves, wanted, strict=True))) < 1e-5


def test_images_move_to_other_clients_low_frequencies_alone():
    x = (images(40)[0] / 255.0) * 0.2 + 0.4  # far from black and white, so that little is cut
    low = [fourier.low(fourier.amplitude(v * x[:2]), 1) for v in (0.2, 0.5, 0.8)]
    bank = torch.stack(low)
    down = {"bank": bank, "filled": torch.tensor([1.0, 0.0, 1.0])}
    out = moved(x, down, torch.tensor(0), KEY)
    was, now = fourier.amplitude(x), fourier.amplitude(out)
    weight = rng.uniform(rng.fold(KEY, "weight"), 40)
    other = bank[2][rng.randint(rng.fold(KEY, "which"), 0, 2, 40)]  # client 2's alone: 0 is oneself, 1 is unknown
    own = fourier.low(was, 1)
    wanted = fourier.with_low(was, own + weight.view(-1, 1, 1, 1) * (other - own))
    assert float(out.min()) > 0 and float(out.max()) < 1  # nothing was cut
    assert gap(now, wanted) < 1e-2 and gap(now, was) > 0.1  # faint frequencies are not painted in full
    alone = {**down, "filled": torch.tensor([1.0, 0.0, 0.0])}
    assert torch.equal(moved(x, alone, torch.tensor(0), KEY), x)


def test_the_bank_holds_low_frequencies_of_a_clients_own_images():
    data = shards()
    worker, _, state = fitted(ELCFS(work=SMALL, bank=2), rounds=1, cohort=3, data=data)
    bank, filled = state.server["bank"], state.server["filled"]
    assert bank.shape == (6, 2, 3, 3, 3) and int(filled.sum()) == 3
    for c in filled.nonzero()[:, 0].tolist():
        own = fourier.low(fourier.amplitude(data.x[data.own(c)]), 1)
        for block in bank[c]:
            assert float((own - block).abs().amax((1, 2, 3)).min()) < 1e-5
    assert not bank[filled == 0].any()


# GA


def test_ga_starts_as_the_uniform_mean_and_moves_when_gaps_are_known():
    plain = FedAvg(work=SMALL, weights="uniform")
    assert same_as_fedavg(GA(work=SMALL), plain, rounds=2, cohort=6)
    assert not same_as_fedavg(GA(work=SMALL), plain, within=1e-7, rounds=3, cohort=6)
    assert same_as_fedavg(GA(step=0.0, work=SMALL), plain, rounds=3)


def test_gas_weights_by_hand():
    method, t = GA(step=0.3, rounds=10), task("cnn-plain")
    server = {**method.init_server(t, 3, rng.key(0)), "round": torch.tensor(5.0)}
    total = {"delta": tree.zeros(server["vars"]), "gap": torch.tensor([0.1, 0.7, 0.1]), "id": torch.tensor([2, 0, 1])}
    total["seen"] = torch.ones(3)
    new = method.server(t, server, total, KEY)
    # gaps less their mean 0.3 are (-0.2, 0.4, -0.2); half way the step is 0.3 / 3 / 2 = 0.05
    unit = torch.tensor([1 / 3 + 0.05, 1 / 3 - 0.025, 1 / 3 - 0.025])
    assert gap(new["weights"], unit / unit.sum()) < 1e-6 and float(new["round"]) == 6.0
    released = replace(method, variant="released").server(t, server, total, KEY)["weights"]
    unit = torch.tensor([1 / 3 + 0.05, 1 / 3 + 0.05 / 7, 1 / 3 + 0.05 / 7])
    assert gap(released, unit / unit.sum()) < 1e-6
    late = method.server(t, {**server, "round": torch.tensor(12.0)}, total, KEY)["weights"]
    assert gap(late, server["weights"]) < 1e-7
    news = method.server(t, server, {**total, "seen": torch.tensor([1.0, 1.0, 0.0])}, KEY)["weights"]
    assert float(news[1]) == pytest.approx(1 / 3)  # a first-time client has no gap; the others move apart
    assert float(news[0] - 1 / 3) == pytest.approx(float(1 / 3 - news[2]), abs=1e-6) and float(news[0]) > 0.38


@pytest.mark.parametrize("variant", ["paper", "released"])
def test_gas_weights_stay_on_the_simplex(variant):
    method, t = GA(step=1.0, rounds=1000, variant=variant), task("cnn-plain")
    server = method.init_server(t, 5, rng.key(0))
    for r in range(40):
        gaps = rng.normal(rng.key(r), 3) * 10.0 ** (r % 7 - 3) - (r % 2)
        who = rng.permutation(rng.key(r), 5)[:3]
        total = {"delta": tree.zeros(server["vars"]), "gap": gaps, "seen": torch.ones(3), "id": who}
        server = method.server(t, server, total, KEY)
        weights = server["weights"]
        assert bool((weights >= 0).all()) and float(weights.sum()) == pytest.approx(1.0, abs=1e-5)
    assert gap(on_simplex(torch.tensor([-1.0, -2.0])), torch.tensor([0.5, 0.5])) == 0.0


def test_a_clients_gap_is_what_averaging_cost_it():
    method, t, data = GA(work=SMALL), task("cnn-plain"), shards()
    server = method.init_server(t, 6, rng.key(0))
    own = client_data(data, 1)
    first, mine = method.client(t, method.download(t, server), method.init_client(t, 1, rng.key(0)), own, KEY)
    assert float(first["gap"]) == 0.0 and float(first["seen"]) == 0.0

    def risk(vars):
        return float(F.cross_entropy(t.apply(vars, data.x[data.own(1)]).logits, data.y[data.own(1)]))

    trained = tree.add(server["vars"], first["delta"])
    other = tree.map(lambda v: 0.9 * v, server["vars"])
    second, _ = method.client(t, {**method.download(t, server), "vars": other}, mine, own, KEY)
    assert float(second["gap"]) == pytest.approx(risk(other) - risk(trained), abs=1e-5)
    assert float(second["share"]) == pytest.approx(1 / 6)


# DSBN


def test_dsbn_trains_as_fedbn_and_sends_no_normalisation():
    ours, plain = (fitted(m)[2] for m in (DSBN(work=SMALL), FedAvg(work=SMALL, private=("norm",))))
    assert equal(ours.server["vars"], plain.server["vars"]) and equal(ours.mine["vars"], plain.mine["vars"])
    norm = task().norm
    assert norm and not {p["name"].split("/")[-1] for p in ours.cost["message"]} & norm
    with pytest.raises(ValueError, match="norm"):
        DSBN().init_server(task("cnn-plain"), 2, rng.key(0))


def test_a_newcomer_fills_its_branch_from_the_batch_and_a_trained_client_has_its_own():
    worker, _, state = fitted(DSBN(work=SMALL), cohort=6)
    method, t, x = worker.method, worker.task, images(12, seed=4)[0]
    down = method.download(t, state.server)
    fresh = t.init(rng.key(0))
    new = method.deploy(t, down, method.init_client(t, 6, rng.key(0)))
    old = method.deploy(t, down, tree.take(state.mine, 0))
    assert all(torch.equal(new["vars"]["buffers"][n], fresh["buffers"][n]) for n in fresh["buffers"])
    for model in (old, new):  # without an adapter answers do not depend on the batch, so larger ones may stand for it
        assert gap(method.predict(t, model, x[:5]).logits, method.predict(t, model, x).logits[:5]) < 1e-5
    served = BNStats().step(t, worker.predict(), new, BNStats().init(t, new), x, rng.key(1))[0]
    assert gap(served, t.apply(new["vars"], x, "adapt").logits) < 1e-5


def test_settings_that_cannot_be_are_refused():
    for wrong in (
        lambda: AM(strength=2.0),
        lambda: AM(partner="strangers"),
        lambda: RSC(features=1.5),
        lambda: FedSAM(rho=-1.0),
        lambda: HarmoFL(momentum=2.0),
        lambda: ELCFS(bank=0),
        lambda: GA(step=math.inf),
        lambda: GA(variant="other"),
    ):
        with pytest.raises(ValueError, match="must be"):
            wrong()


def test_gas_clients_say_of_themselves_that_they_have_been_seen_or_not():
    assert GA().limits["seen"] == Within(0, 1)


def test_counts_of_classes_do_not_weigh_in_fedcsa_and_shares_do():
    """A cap on a client's share of all counts would cut who holds most of a class; its share of the sum is bounded."""
    limits = FedCSA().limits
    assert limits["counts"] == ExampleCount(weighs=False) and set(limits) == {"counts", "share"}
