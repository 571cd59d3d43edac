"""The training baselines of the FedTHE paper, and its transformer: their papers' equalities, worked out by hand."""

import pickle
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch.func import grad, vmap

from acclimate.core import SGD, Shards, Task, Work, message, rng, tree
from acclimate.core.local import batch_of
from acclimate.methods.apfl import APFL
from acclimate.methods.ditto import Ditto
from acclimate.methods.fedavg import FedAvg
from acclimate.methods.fedrep import FedRep
from acclimate.methods.fedrod import FedRoD
from acclimate.methods.fedttt import FedTTT
from acclimate.methods.gma import GMA
from acclimate.methods.local import Local
from acclimate.models.cct import CCT
from acclimate.personal import NoPersonal
from support import CLASSES, FEW, SMALL, client_data, equal, fitted, gap, images, quick_or_slow, shards, small, task

NEW = {
    "gma": GMA(),
    "apfl": APFL(),
    "fedrep": FedRep(),
    "ditto": Ditto(),
    "fedrod": FedRoD(),
    "fedrod-released": FedRoD(variant="released"),
    "fedavg-balanced": FedAvg(balanced=True),
    "fedttt": FedTTT(),
}
METHODS = {name: small(m) for name, m in NEW.items()}
every_method = pytest.mark.parametrize("name", METHODS)


def a_client(method, model="cnn-batch", client=0, seed=0):
    """What a client's first round gets: task, download, private state, data, key."""
    t = task(model)
    down = method.download(t, method.init_server(t, 6, rng.key(seed)))
    return t, down, method.init_client(t, client, rng.key(seed)), client_data(shards(), client), rng.key(9)


def deployed(method, t, down, mine, x):
    return method.predict(t, method.deploy(t, down, mine), x)


# --- beyond the contract of every method (tests/test_contract.py) ----------------------------------------------------


@every_method
def test_settled_models_agree_on_serial_and_vmap_and_settling_changes_no_argument(name):
    live = []
    for backend in ("serial", "vmap"):
        worker, engine, state = fitted(small(NEW[name], FEW), backend, rounds=1)
        down = worker.method.download(worker.task, state.server)
        models = engine.deploy(down, state.mine, NoPersonal())
        live.append([engine.model_of(models, c) for c in range(6)])
    assert all(gap(a, b) < 1e-5 for a, b in zip(*live, strict=True))
    t, down, mine, own, key = a_client(METHODS[name])
    before = pickle.loads(pickle.dumps((down, mine, own)))
    METHODS[name].finish_personal(t, down, mine, own, key)
    assert equal(dict(enumerate(before)), dict(enumerate((down, mine, own))))


@pytest.mark.parametrize("name", quick_or_slow(METHODS, quick=("apfl", "fedrep", "fedttt")))
def test_learns_the_small_world(name):
    method = small(NEW[name], Work(epochs=5, batch=8))
    history = fitted(method, model="mlp-dropout", rounds=2, cohort=6)[2].history
    assert history[-1]["val_accuracy"] > 0.8


@pytest.mark.parametrize("name", ["gma", "apfl", "fedrep", "ditto", "fedrod", "fedttt"])
def test_uniform_weights_count_every_client_once(name):
    by_size, uniform = METHODS[name], replace(METHODS[name], weights="uniform")
    who, down = torch.arange(6), None
    ups = []
    for c in range(6):
        t, down, mine, own, key = a_client(by_size, client=c)
        ups.append(by_size.client(t, down, mine, own, key)[0])
    stacked = tree.stack(ups)
    for method, weights in ((by_size, stacked["n"].double()), (uniform, torch.ones(6).double())):
        total = message.finish(method.uplink, message.partial(method.uplink, who, stacked), who)
        share = weights / weights.sum()
        mean = tree.map(lambda d, share=share: torch.tensordot(share, d.double(), 1), stacked["delta"])
        assert gap(total["delta"], mean) < 1e-6
    with pytest.raises(ValueError, match="weights='equal'"):
        replace(METHODS[name], weights="equal")


# --- GMA ------------------------------------------------------------------------------------------------------------


def test_gma_without_a_threshold_is_fedavg():
    a, b = (fitted(m, rounds=2)[2].server["vars"] for m in (GMA(tau=0.0, work=SMALL), FedAvg(work=SMALL)))
    assert gap(a, b) < 1e-6


def test_gma_of_one_client_is_fedavg():
    a, b = (fitted(m, rounds=2, cohort=1)[2].server["vars"] for m in (GMA(tau=1.0, work=SMALL), FedAvg(work=SMALL)))
    assert gap(a, b) < 1e-6


def test_gma_masks_by_hand_where_signs_disagree():
    """Four clients of sizes 1, 1, 1, 5; three coordinates on which 4, 3 and 2 of them agree."""
    method, t = GMA(tau=0.6, server_lr=0.5), task("cnn-plain")
    server = method.init_server(t, 4, rng.key(0))
    rows = torch.tensor([[1.0, 1.0, 1.0], [1.0, 1.0, 1.0], [1.0, 1.0, -1.0], [1.0, -1.0, -1.0]])

    def leaf(p):
        out = torch.zeros(4, p.numel())
        out[:, :3] = rows
        return out.reshape(4, *p.shape)

    deltas = tree.map(leaf, server["vars"]["params"])
    ups = {
        "delta": {"params": deltas, "buffers": {}},
        "sign": tree.map(torch.sign, deltas),
        "n": torch.tensor([1, 1, 1, 5]),
    }
    who = torch.arange(4)
    total = message.finish(method.uplink, message.partial(method.uplink, who, ups), who)
    new = method.server(t, server, total, rng.key(0))["vars"]["params"]
    moved = (new["head.weight"] - server["vars"]["params"]["head.weight"]).flatten()
    # agreements 1, 0.5, 0; weighted means 1, -2/8, -4/8
    torch.testing.assert_close(moved[:3], 0.5 * torch.tensor([1.0, 0.5 * -0.25, 0.0]))
    soft = replace(method, tau=0.5).server(t, server, total, rng.key(0))["vars"]["params"]
    moved = (soft["head.weight"] - server["vars"]["params"]["head.weight"]).flatten()
    torch.testing.assert_close(moved[:3], 0.5 * torch.tensor([1.0, -0.25, 0.0]))


# --- APFL -----------------------------------------------------------------------------------------------------------


def test_apfl_trains_its_shared_model_like_fedavg_whatever_alpha():
    plain = fitted(FedAvg(work=SMALL), rounds=2)[2].server["vars"]
    for method in (APFL(work=SMALL), APFL(alpha=0.2, adapt_alpha=False, work=SMALL)):
        assert gap(fitted(method, rounds=2)[2].server["vars"], plain) < 1e-6


def test_apfl_with_alpha_zero_deploys_the_global_model():
    worker, engine, state = fitted(APFL(alpha=0.0, adapt_alpha=False, work=SMALL), rounds=2, cohort=6)
    down = worker.method.download(worker.task, state.server)
    live = worker.method.deploy(worker.task, down, tree.take(state.mine, 1))
    assert gap(live["vars"], state.server["vars"]) < 1e-7


def test_apfl_with_alpha_one_is_local_training():
    worker, _, state = fitted(APFL(alpha=1.0, adapt_alpha=False, work=SMALL), rounds=2, cohort=6)
    alone = fitted(Local(work=SMALL), rounds=2, cohort=6)[2]
    assert gap(state.mine["vars"], alone.mine["vars"]) < 1e-5
    down = worker.method.download(worker.task, state.server)
    live = worker.method.deploy(worker.task, down, tree.take(state.mine, 3))
    assert gap(live["vars"], tree.take(alone.mine["vars"], 3)) < 1e-5


def test_apfl_one_step_and_alpha_by_hand():
    lr, work = 0.1, Work(iterations=1, batch=8)
    method = APFL(alpha=0.3, opt=SGD(lr=lr), work=work)
    t, down, mine, own, key = a_client(method, "cnn-plain")
    w, v = down["vars"]["params"], t.init(rng.key(1))["params"]
    mine = {**mine, "vars": {"params": v, "buffers": {}}}
    up, new = method.client(t, down, mine, own, key)

    def slope(params, batch):
        return grad(lambda p: F.cross_entropy(t.apply({"params": p, "buffers": {}}, batch["x"]).logits, batch["y"]))(
            params
        )

    def mixed(alpha):
        return tree.map(lambda a, b: alpha * a + (1 - alpha) * b, v, w)

    first = batch_of(own, work.plan(own, rng.fold(key, "alpha", "plan"))[0][0])
    alpha = (0.3 - lr * tree.dot(tree.sub(v, w), slope(mixed(0.3), first))).clamp(0, 1)
    torch.testing.assert_close(new["alpha"], alpha)
    assert abs(float(alpha) - 0.3) > 1e-4
    batch = batch_of(own, work.plan(own, rng.fold(key, "plan"))[0][0])
    assert gap(new["vars"]["params"], tree.add(v, slope(mixed(alpha), batch), -lr * alpha)) < 1e-6
    assert gap(up["delta"]["params"], tree.scale(slope(w, batch), -lr)) < 1e-6


def test_apfl_alpha_stays_between_zero_and_one():
    state = fitted(APFL(opt=SGD(lr=0.5), work=SMALL), rounds=4, cohort=6)[2]
    assert bool(((state.mine["alpha"] >= 0) & (state.mine["alpha"] <= 1)).all())
    assert len(state.mine["alpha"].unique()) > 1


@pytest.mark.parametrize("method", [APFL(work=SMALL), Ditto(work=SMALL, personal_work=SMALL)])
def test_a_client_that_never_trained_deploys_the_federated_model(method):
    worker, _, state = fitted(method, rounds=2)
    live = method.deploy(worker.task, method.download(worker.task, state.server), worker.start(7))
    assert gap(live["vars"], state.server["vars"]) == 0


# --- FedRep ---------------------------------------------------------------------------------------------------------


def test_fedrep_phases_leave_each_other_alone():
    method = FedRep(work=SMALL, head_work=SMALL)
    t, down, mine, own, key = a_client(method)
    _, only_head = replace(method, work=Work(epochs=0)).client(t, down, mine, own, key)
    up, both = method.client(t, down, mine, own, key)
    assert equal(only_head, both)  # the body phase leaves the head as the head phase left it
    assert gap(both["vars"]["params"], mine["vars"]["params"]) > 1e-3
    up_idle, _ = replace(method, work=Work(epochs=0)).client(t, down, mine, own, key)
    assert gap(up_idle["delta"], tree.zeros(up_idle["delta"])) == 0  # nor does the head phase touch the body
    assert gap(up["delta"]["params"], tree.zeros(up["delta"]["params"])) > 1e-4
    settled = method.finish_personal(t, down, mine, own, rng.fold(key, "head"))
    assert equal(settled, only_head)


def test_a_large_head_moves_the_body_no_further_than_the_default_bound():
    """One step of the body: its gradient grows with the head, and its length is the rate times ten."""
    plain = FedRep(head_work=Work(epochs=0))
    t, down, mine, own, key = a_client(plain)
    large = {"vars": {**mine["vars"], "params": tree.scale(mine["vars"]["params"], 1e4)}}
    for clip, length in ((10.0, 0.05 * 10.0), (None, None)):
        assert clip is None or plain.work.clip == clip
        method = replace(plain, work=Work(iterations=1, clip=clip))
        walked = float(tree.norm(method.client(t, down, large, own, key)[0]["delta"]["params"]))
        assert walked == pytest.approx(length, rel=1e-4) if length else walked > 5.0


def test_fedrep_sends_no_head():
    worker, _, state = fitted(METHODS["fedrep"], rounds=1)
    assert not {part["name"].split("/", 1)[-1] for part in state.cost["message"]} & worker.task.head
    assert not set(state.server["vars"]["params"]) & worker.task.head
    assert set(state.mine["vars"]["params"]) == worker.task.head


def test_fedrep_head_phase_is_softmax_regression_on_the_received_body():
    lr, work = 0.1, Work(iterations=2, batch=8)
    method = FedRep(opt=SGD(lr=lr), head_work=work, work=Work(epochs=0))
    t, down, mine, own, key = a_client(method)
    _, new = method.client(t, down, mine, own, key)
    vars = {kind: {**down["vars"][kind], **mine["vars"][kind]} for kind in ("params", "buffers")}
    weight, bias = mine["vars"]["params"]["head.weight"], mine["vars"]["params"]["head.bias"]
    for positions in work.plan(own, rng.fold(key, "head", "plan"))[0]:
        batch = batch_of(own, positions)
        z = t.apply(vars, batch["x"]).features
        error = (z @ weight.T + bias).softmax(-1) - F.one_hot(batch["y"], CLASSES)
        weight, bias = weight - lr * error.T @ z / 8, bias - lr * error.mean(0)
    torch.testing.assert_close(new["vars"]["params"]["head.weight"], weight, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(new["vars"]["params"]["head.bias"], bias, rtol=1e-4, atol=1e-6)


# --- Ditto ----------------------------------------------------------------------------------------------------------


def test_ditto_federates_like_fedavg_bit_for_bit():
    a = fitted(Ditto(work=SMALL, personal_work=SMALL), rounds=2)[2].server["vars"]
    assert equal(a, fitted(FedAvg(work=SMALL), rounds=2)[2].server["vars"])


def test_ditto_without_a_tie_trains_its_own_model_alone():
    method = Ditto(lam=0.0, work=SMALL, personal_work=SMALL)
    t, down, mine, own, key = a_client(method)
    mine = {**mine, "vars": t.init(rng.key(4))}
    _, new = method.client(t, down, mine, own, key)
    _, alone = Local(work=SMALL).client(t, {}, {"vars": mine["vars"]}, own, rng.fold(key, "personal"))
    assert equal(new["vars"], alone["vars"])


def test_ditto_with_a_tight_tie_goes_to_the_received_model():
    method = Ditto(lam=100.0, opt=SGD(lr=0.01), work=SMALL, personal_work=Work(iterations=1, batch=8))
    t, down, mine, own, key = a_client(method, "cnn-plain")
    v = t.init(rng.key(4))
    _, new = method.client(t, down, {**mine, "vars": v}, own, key)
    # lr * lam = 1: one step lands on w but for the step down the loss
    batch = batch_of(own, method.personal_work.plan(own, rng.fold(key, "personal", "plan"))[0][0])
    g = grad(lambda p: F.cross_entropy(t.apply({"params": p, "buffers": {}}, batch["x"]).logits, batch["y"]))(
        v["params"]
    )
    assert gap(new["vars"]["params"], tree.add(down["vars"]["params"], g, -0.01)) < 1e-5
    loose = replace(method, lam=0.1, personal_work=SMALL)
    tight = replace(method, lam=50.0, personal_work=SMALL)
    away = [
        tree.norm(tree.sub(m.client(t, down, mine, own, key)[1]["vars"]["params"], down["vars"]["params"]))
        for m in (loose, tight)
    ]
    assert away[1] < 0.5 * away[0]


# --- FedRoD and balanced FedAvg -------------------------------------------------------------------------------------


@pytest.mark.parametrize("balanced", [True, False])
def test_fedrod_generic_part_is_fedavg_whatever_the_personal_head(balanced):
    method, plain = FedRoD(balanced=balanced, work=SMALL), FedAvg(balanced=balanced, work=SMALL)
    assert gap(fitted(method, rounds=2)[2].server["vars"], fitted(plain, rounds=2)[2].server["vars"]) < 1e-6
    t, down, mine, own, key = a_client(method)
    wild = {"head": tree.map(lambda p: p + 3.0, mine["head"])}
    a, b = (method.client(t, down, m, own, key) for m in (mine, wild))
    assert equal(a[0]["delta"], b[0]["delta"])
    assert gap(a[1], b[1]) > 1e-3


def test_fedrod_without_a_personal_head_predicts_with_the_generic_one():
    method = FedRoD(balanced=False)
    t, down, mine, own, _ = a_client(method)
    x, _ = images(6)
    assert torch.equal(deployed(method, t, down, mine, x).logits, t.apply(down["vars"], x).logits)
    head = tree.map(torch.ones_like, mine["head"])
    out = t.apply(down["vars"], x)
    expected = out.logits + out.features.sum(-1, keepdim=True) + 1.0
    torch.testing.assert_close(deployed(method, t, down, {"head": head}, x).logits, expected)


def test_fedrod_personal_head_by_hand():
    """One step: softmax regression of the summed logits on the body's training-mode features, body held fixed."""
    lr, work = 0.1, Work(iterations=1, batch=8)
    method = FedRoD(opt=SGD(lr=lr), work=work)
    t, down, mine, own, key = a_client(method)
    head = tree.map(lambda p: p + 0.1, mine["head"])
    up, new = method.client(t, down, {"head": head}, own, key)
    batch = batch_of(own, work.plan(own, rng.fold(key, "plan"))[0][0])
    out = t.apply(down["vars"], batch["x"], "train", rng.key(0))
    logits = out.logits + out.features @ head["weight"].T + head["bias"]
    error = logits.softmax(-1) - F.one_hot(batch["y"], CLASSES)
    torch.testing.assert_close(new["head"]["weight"], head["weight"] - lr * error.T @ out.features / 8)
    torch.testing.assert_close(new["head"]["bias"], head["bias"] - lr * error.mean(0))
    assert set(up) == {"delta", "n"}


def test_fedrod_last_phase_by_variant():
    paper = FedRoD(work=SMALL, personal_work=SMALL)
    t, down, mine, own, key = a_client(paper)
    live = paper.deploy(t, down, paper.finish_personal(t, down, mine, own, key))
    assert equal(live["vars"], down["vars"])
    assert gap(live["head"], mine["head"]) > 1e-3
    released = replace(paper, variant="released")
    live = released.deploy(t, down, released.finish_personal(t, down, mine, own, key))
    up, new = released.client(t, down, mine, own, key)  # the same work, as personal_work = work here
    assert gap(live["vars"], tree.add(down["vars"], up["delta"])) < 1e-6
    assert equal(live["head"], new["head"])


def test_balanced_fedavg_is_plain_where_classes_are_equally_many():
    x, y = images(300)
    even = torch.cat([(y == c).nonzero().flatten()[:6] for c in range(CLASSES)])
    skewed = torch.cat([(y == c).nonzero().flatten()[: 3 * c + 1] for c in range(CLASSES)])
    data, t, key = Shards.of(x, y, [even, skewed]), task(), rng.key(2)
    down = {"vars": t.init(rng.key(0))}
    for client, same in ((0, True), (1, False)):
        own = client_data(data, client)
        a, b = (FedAvg(work=SMALL, balanced=f).client(t, down, {}, own, key)[0]["delta"] for f in (True, False))
        assert (gap(a, b) < 1e-5) == same


# --- CCT ------------------------------------------------------------------------------------------------------------

TINY = CCT(layers=2, dim=16, stem=8)


def test_cct_is_cct_4_3x2():
    net = CCT().build((3, 32, 32), 10)
    features, logits = net(torch.zeros(2, 3, 32, 32))
    assert features.shape == (2, 128) and logits.shape == (2, 10)
    assert net.positions.shape == (64, 128)  # 32 pixels halved twice, squared
    # convolutions, positions, layers (two norms, qkv, out, two mlp matrices), last norm, pooling, head
    layer = 4 * 128 + 3 * 128**2 + 3 * (128**2 + 128)
    expected = 9 * (3 * 64 + 64 * 128) + 64 * 128 + 4 * layer + 256 + 129 + 1290
    assert sum(p.numel() for p in net.parameters()) == expected


def test_cct_attention_is_torch_s():
    net = TINY.build((3, 10, 10), 5)
    mine, x = net.layers[0].attention, torch.randn(3, 7, 16)
    theirs = torch.nn.MultiheadAttention(16, 2, batch_first=True)
    with torch.no_grad():
        theirs.in_proj_weight.copy_(mine.qkv.weight)
        theirs.in_proj_bias.zero_()
        theirs.out_proj.load_state_dict(mine.out.state_dict())
        torch.testing.assert_close(mine(x), theirs(x, x, x, need_weights=False)[0])


@pytest.mark.parametrize("spec", [TINY, replace(TINY, dropout=0.2)])
def test_cct_gradients_are_finite_and_equal_under_vmap(spec):
    t = Task(spec, (3, 10, 10), CLASSES, (0.5,) * 3, (0.5,) * 3)
    x, y = images(24)
    models = [t.init(rng.key(s)) for s in range(3)]
    keys = torch.stack([rng.key(s) for s in range(3)])

    def slope(vars, x, y, key):
        return grad(lambda p: t.loss({**vars, "params": p}, {"x": x, "y": y}, key)[0])(vars["params"])

    many = vmap(slope)(tree.stack(models), x.reshape(3, 8, 3, 10, 10), y.reshape(3, 8), keys)
    for i in range(3):
        one = slope(models[i], x[8 * i : 8 * i + 8], y[8 * i : 8 * i + 8], keys[i])
        assert bool(tree.finite(one))
        assert gap(tree.take(many, i), one) < 1e-5
        # a softmax over places does not see a number that all of them share, so the pool's bias has no gradient
        moved = tree.drop(one, ("pool.bias",))
        assert all(float(g.abs().max()) > 0 for g in tree.leaves(moved)) and float(one["pool.bias"].abs().max()) < 1e-8


def test_cct_refuses_what_does_not_fit():
    with pytest.raises(ValueError, match="heads=3"):
        CCT(heads=3)
    with pytest.raises(ValueError, match="needs images"):
        CCT().build((10,), 2)
