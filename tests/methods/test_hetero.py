"""HeteroFedTTA and FedMD: the losses by hand, federations of several architectures, and newcomers of any of them."""

from dataclasses import replace
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch.func import grad, vmap

import acclimate as ac
from acclimate.adapters.fedtta import FedTTA as Adapt
from acclimate.backends.mixed import MixedEngine
from acclimate.core import SGD, NonFinite, Protocol, StepDecay, Task, rng, tree
from acclimate.core import fit as loop
from acclimate.live import load_joined
from acclimate.methods.fedtta import FedTTA
from acclimate.methods.heterofedtta import HeteroFedTTA
from acclimate.methods.public import answers, whole_step
from acclimate.models import CNN, MLP, Mixed
from acclimate.ops.learned import learned_loss
from acclimate.running import run as api
from acclimate.running.check import check_all
from acclimate.running.join import join
from support import CLASSES, MODELS, client_data, equal, gap, images, shards, task

KEY = rng.key(5)
WORK = ac.Work(iterations=2, batch=8)
HETERO = HeteroFedTTA(lam=0.7, inner_lr=0.3, work=WORK, digest_batch=12, join_epochs=1)
FEDMD = replace(HETERO, lam=0.0, inner_lr=0.0)
SHAPES = Mixed((MLP(hidden=(6,)), CNN(widths=(3,), hidden=5, kernel=3), MLP(hidden=(9,), norm="batch")), assign="turns")
DATA = ac.data.Public(share=0.02, clients=5, new_clients=4, partition=ac.data.Dirichlet(alpha=1.0), fraction=0.25)


def public_task(model="cnn-plain", count=20):
    about = ((3, 10, 10), CLASSES, (0.5,) * 3, (0.5,) * 3)
    return Task(MODELS[model], *about, public=images(count, seed=4)[0])


def teacher(method, count=20):
    logits = {name: rng.normal(rng.fold(KEY, name), count, CLASSES) for name in method.uplink}
    return {"logits": logits, "known": torch.ones(())}


def experiment(method=HETERO, **changes):
    e = ac.Experiment(DATA, SHAPES, method, adapters=(ac.adapters.NoAdapt(), Adapt()), rounds=2)
    # Newcomers have 50 examples: a stream serves them as one batch, as a joined client does.
    return replace(
        e, backend=changes.pop("backend", ac.backends.Serial()), streams=(ac.shifts.NewClients(batch=50),), **changes
    )


@pytest.fixture(scope="module")
def fit():
    return ac.train(experiment())


# --- the losses, by hand --------------------------------------------------------------------------------------------


def test_it_trains_for_the_adapter_only_where_it_has_an_adaptation_net():
    assert HETERO.trains_for == ("fedtta",) and FEDMD.trains_for == ()


def by_autograd(t, start, x, base_teacher, per_teacher, lam, lr):
    """Eq. 14's gradient with torch's own KL, norm and double backward."""
    leaves = tree.map(lambda p: p.clone().requires_grad_(), start["params"])
    names, net = list(leaves["base"]), leaves["net"]

    def g(z):
        for i in range(len(net)):
            z = F.linear(torch.relu(z) if i else z, net[str(i)]["weight"], net[str(i)]["bias"])
        return z

    def forward(params):
        return t.apply({"params": params, "buffers": start["buffers"]}, x, "train").logits

    def kl(student, target):
        return F.kl_div(student.log_softmax(-1), target.softmax(-1), reduction="batchmean")

    base = forward(leaves["base"])
    scaled = torch.norm(g(base)) * (WORK.batch / len(x)) ** 0.5
    inner = torch.autograd.grad(scaled, list(leaves["base"].values()), create_graph=True)
    adapted = forward({n: leaves["base"][n] - lr * d for n, d in zip(names, inner, strict=True)})
    (kl(adapted, per_teacher) + lam * kl(base, base_teacher)).backward()
    return tree.map(lambda p: p.grad, leaves)


@pytest.mark.parametrize("lam", [0.0, 0.7])
def test_the_distillation_gradient_is_that_of_a_double_backward(lam):
    method, t, down = replace(HETERO, lam=lam), public_task(), teacher(HETERO)
    mine = tree.map(lambda v: v.double(), method.init_client(t, 0, KEY))
    start = {"params": {"base": mine["vars"]["params"], "net": mine["net"]}, "buffers": mine["vars"]["buffers"]}
    x, both = t.public.double() / 255.0, [down["logits"][n].double() for n in ("personalised", "base")]
    loss = partial(method.distillation, t, method.inner_lr)
    batch = {"x": x, "y": torch.stack(both, 1)}
    ours = grad(lambda p: loss({**start, "params": p}, batch, KEY)[0])(start["params"])
    theirs = by_autograd(t, start, x, both[1], both[0], lam, method.inner_lr)
    assert gap(ours, theirs) < 1e-8
    assert gap(theirs["net"], tree.zeros(theirs["net"])) > 1e-6


def test_all_rates_fall_by_rounds_and_a_newcomer_has_those_of_the_last():
    """After 21 rounds of 0.99 every ten: the rates of round 20 (from 0) are those of a method with 0.9801 of each."""
    decay, then = StepDecay(every=10, gamma=0.99), 0.9801
    opts = {"opt": SGD(lr=0.1, schedule=decay), "net_opt": SGD(lr=0.005, schedule=decay)}
    falling = replace(HETERO, inner_schedule=decay, **opts)
    constant = replace(HETERO, inner_lr=0.3 * then, opt=SGD(lr=0.1 * then), net_opt=SGD(lr=0.005 * then))
    t, data = public_task(), client_data(shards(), 0)
    mine, down = HETERO.init_client(t, 0, KEY), {**teacher(HETERO), "known": torch.tensor(21.0)}
    late = {**data, "round": torch.tensor(20)}
    for ours, theirs in zip(
        falling.client(t, down, mine, late, KEY), constant.client(t, down, mine, data, KEY), strict=True
    ):
        assert gap(ours, theirs) < 1e-5
    assert gap(falling.welcome(t, down, mine, KEY), constant.welcome(t, down, mine, KEY)) < 1e-5
    assert float(falling.deploy(t, down, mine)["inner"]["lr"]) == pytest.approx(0.3 * then, rel=1e-6)
    server = falling.init_server(t, 1, KEY)
    for _ in range(3):
        server = falling.server(t, server, server["logits"], KEY)
    assert float(server["known"]) == 3


def test_without_lambda_and_inner_step_it_is_plain_distillation():
    method, t = replace(FEDMD, digest_batch=20), public_task()
    down, mine = teacher(method), method.init_client(t, 3, KEY)
    assert set(mine) == {"vars"}
    new = method.welcome(t, down, mine, KEY)["vars"]["params"]
    hand = {n: p.clone().requires_grad_() for n, p in mine["vars"]["params"].items()}
    out = t.apply({"params": hand, "buffers": {}}, t.public, "train").logits
    target = down["logits"]["personalised"].softmax(-1)
    F.kl_div(out.log_softmax(-1), target, reduction="batchmean").backward()
    assert gap(new, {n: (p - method.opt.lr * p.grad).detach() for n, p in hand.items()}) < 1e-6


def test_what_weighs_nothing_is_not_sent_and_nothing_is_digested_before_anything_is_known():
    assert set(HETERO.uplink) == {"personalised", "base"} and set(FEDMD.uplink) == {"personalised"}
    t = public_task()
    mine, server = HETERO.init_client(t, 0, KEY), HETERO.init_server(t, 2, KEY)
    assert equal(HETERO.welcome(t, server, mine, KEY), mine)
    down = {**server, "known": torch.ones(())}
    assert gap(HETERO.welcome(t, down, mine, KEY), mine) > 1e-3


def test_the_order_of_the_divergence_is_a_setting_and_first_order_another_gradient():
    t = public_task()
    mine, down = HETERO.init_client(t, 0, KEY), teacher(HETERO)
    ways = [HETERO, replace(HETERO, kl="student"), replace(HETERO, order="first")]
    a, b, c = (m.welcome(t, down, mine, KEY) for m in ways)
    assert gap(a, b) > 1e-5 and gap(a, c) > 1e-5


@pytest.mark.parametrize("order", ["first", "second"])
def test_with_one_architecture_and_no_public_set_it_is_fedttas_local_step(order):
    t, data = task("cnn-plain"), client_data(shards(), 1)
    method = replace(HETERO, order=order, widths=(32,), depth=3)
    mine = method.init_client(t, 1, KEY)
    up, new = method.client(t, method.init_server(t, 1, KEY), mine, data, KEY)
    assert {k: v.numel() for k, v in up.items()} == {"personalised": 0, "base": 0}
    plain = FedTTA(method.inner_lr, method.opt, method.net_opt, order=order, work=WORK)
    delta, _ = plain.client(t, mine, {}, data, rng.fold(KEY, "revisit"))
    assert gap(new["vars"], tree.add(mine["vars"], delta["delta"])) < 1e-6
    assert gap(new["net"], tree.add(mine["net"], delta["net"])) < 1e-6


def test_a_step_on_the_whole_set_is_that_of_the_learned_loss_however_it_is_cut():
    t, mine = task("cnn-plain"), HETERO.init_client(task("cnn-plain"), 0, KEY)
    x, params = images(19)[0], mine["vars"]["params"]

    def logits(p, some):
        return t.apply({"params": p, "buffers": {}}, some, "adapt").logits

    at_once = grad(lambda p: learned_loss(mine["net"], logits(p, x), batch=torch.tensor(8.0)))(params)
    for batch in (19, 7):
        stepped = whole_step(logits, mine["net"], params, x, batch, lr=0.3, length=8)
        assert gap(stepped, tree.add(params, at_once, -0.3)) < 1e-6
        assert gap(answers(logits, params, x, batch), logits(params, x)) < 1e-5
    short = tree.sub(whole_step(logits, mine["net"], params, x, 7, lr=1.0, length=8, clip=1e-3), params)
    assert float(tree.norm(short)) == pytest.approx(1e-3, rel=0.01)


# --- federations of several architectures ---------------------------------------------------------------------------


def test_the_ensemble_is_the_mean_over_the_clients_of_all_architectures():
    world, worker, engine = api.build(experiment())
    state = loop.start(worker, engine, world.clients)
    mine, train = engine.mine, world.shards(world.train)
    server, reply, _ = loop.one_round(worker, engine, state.server, torch.tensor([0, 1, 2, 4]), 0)
    assert sorted(reply.part.clients.tolist()) == [0, 1, 2, 4]
    sent = []
    for c in (0, 1, 2, 4):
        half, own = engine.worker_of(c), mine.take(c)
        assert half.task.model == SHAPES.models[c % 3]
        sent.append(half.train(state.server, own, client_data(train, c))[0])
    for name in HETERO.uplink:
        assert gap(server["logits"][name], torch.stack([up[name] for up in sent]).mean(0)) < 1e-6
    changed = [gap(engine.mine.take(c), mine.take(c)) > 0 for c in range(5)]
    assert changed == [True, True, True, False, True]


@pytest.mark.parametrize("method", [HETERO, FEDMD], ids=["heterofedtta", "fedmd"])
def test_serial_and_vmap_agree(method):
    kept = []
    for backend in (ac.backends.Serial(), ac.backends.Vmap(chunk=2)):
        fit = ac.train(experiment(method, backend=backend, cohort=4))
        kept.append((fit.state.server, fit.state.mine, ac.evaluate(fit).rows))
    assert gap(kept[0][0], kept[1][0]) < 1e-5 and gap(kept[0][1], kept[1][1]) < 1e-5
    assert [r["per_client"] for r in kept[0][2]] == [r["per_client"] for r in kept[1][2]]


@pytest.mark.slow
def test_worker_processes_give_serials_bits(fit):
    spread = ac.train(experiment(backend=ac.backends.Processes(workers=2)))
    assert equal(spread.state.server, fit.state.server) and equal(spread.state.mine, fit.state.mine)
    assert [r["per_client"] for r in ac.evaluate(spread).rows] == [r["per_client"] for r in ac.evaluate(fit).rows]
    spread.engine.close()


def test_every_client_has_its_own_architecture_and_adaptation_net(fit):
    for c in range(5):
        model = fit.model(c)
        assert model["net"]["0"]["weight"].shape == ((32, 64, 128)[c % 3], 10)
        half = fit.engine.worker_of(c)
        assert half.predict()(model, fit.world.examples.x[:3]).logits.shape == (3, 10)
    message = {part["group"]: part["shape"] for part in fit.state.cost["message"]}
    assert message == {"personalised": [len(fit.world.public), 10], "base": [len(fit.world.public), 10]}


def test_clients_of_several_architectures_have_no_server_to_exchange_by(fit):
    table = ac.evaluate(fit, adapters=[ac.adapters.Latte(), ac.adapters.NoAdapt()])
    assert {r["adapter"] for r in table.rows} == {"none"} and [r["reason"] for r in table.refused] == [
        "Latte exchanges at test time, and clients of several architectures have no common server for that; train one "
        "model"
    ]
    with pytest.raises(ValueError, match="no adapter can be tested.*have no common server for that; train one model"):
        check_all([replace(fit.experiment, adapters=(ac.adapters.Latte(),))])
    check_all([replace(fit.experiment, adapters=(ac.adapters.Latte(), ac.adapters.NoAdapt()))])


def test_architectures_are_dealt_by_turns_or_by_the_seed():
    drawn = [Mixed(SHAPES.models).deal(n, rng.key(1)) for n in (40, 60)]
    assert drawn[1][:40] == drawn[0] and set(drawn[0]) == {0, 1, 2}
    assert Mixed(SHAPES.models).deal(40, rng.key(2)) != drawn[0]
    assert SHAPES.deal(5, KEY) == [0, 1, 2, 0, 1]
    one = ac.train(experiment(model=MLP(hidden=(6,)), rounds=1))
    assert isinstance(one.engine, MixedEngine) and len(one.engine.parts) == 1


def test_a_client_that_is_not_finite_is_named_and_nobody_has_changed():
    world, worker, engine = api.build(experiment(replace(HETERO, opt=SGD(lr=1e30))))
    state = loop.start(worker, engine, world.clients)
    before = engine.mine
    with pytest.raises(NonFinite, match="1, 4"):  # these two have the convolution
        loop.one_round(worker, engine, state.server, torch.tensor([1, 4]), 0)
    assert equal(engine.mine, before)


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_a_round_that_fails_midway_changes_nobody(error, monkeypatch):
    world, worker, engine = api.build(experiment())
    state, before = loop.start(worker, engine, world.clients), engine.mine

    def stop(*args):
        raise error("stopped")

    monkeypatch.setattr(engine.parts[-1].engine, "train", stop)
    with pytest.raises(error, match="stopped"):
        loop.one_round(worker, engine, state.server, torch.arange(world.clients), 0)
    assert equal(engine.mine, before)


def test_runs_are_checkpointed_loaded_and_resumed(tmp_path, fit):
    table = ac.run(experiment(), tmp_path / "run")
    assert table.rows == ac.evaluate(fit).rows
    back = ac.load(tmp_path / "run")
    assert equal(back.state.mine, fit.state.mine) and equal(back.state.server, fit.state.server)
    assert back.world.card()["public"]["size"] == len(fit.world.public)


# --- newcomers ------------------------------------------------------------------------------------------------------


def newcomer(fit, c):
    return fit.world.examples.x[fit.world.new[c]]


def test_newcomers_of_every_architecture_digest_and_adapt(fit):
    served = next(r for r in ac.evaluate(fit).rows if r["adapter"] == "fedtta")["per_client"]
    down = fit.worker.method.download(fit.worker.task, fit.state.server)
    models = fit.engine.join(down, 4)
    for c in range(4):  # numbers go on after the five that trained
        kind = (5 + c) % 3
        joined = join(fit, newcomer(fit, c), Adapt(), client=c)
        assert joined.worker.task.model == SHAPES.models[kind]
        assert gap(joined.model, fit.engine.model_of(models, c)) < 1e-6
        hits = joined.predict(newcomer(fit, c)).argmax(-1) == fit.world.examples.y[fit.world.new[c]]
        assert float(hits.float().mean()) == pytest.approx(served[c], abs=1e-6)
        half = fit.engine.architectures[kind]
        fresh = half.start(5 + c)
        assert gap(joined.model["vars"], fresh["vars"]) > 1e-3  # it has digested


def test_a_newcomer_may_bring_any_architecture_and_keep_it(fit, tmp_path):
    x = newcomer(fit, 0)
    for model in (*SHAPES.models, MLP(hidden=(11, 7))):
        joined = join(fit, x, model=model)
        assert joined.worker.task.model == model and joined.adapter == Adapt()
        back = load_joined(joined.save(tmp_path / repr(model)))
        assert equal(back.predict(x), joined.predict(x))


def test_a_newcomer_may_name_an_architecture_of_the_federation_by_number(fit):
    x = newcomer(fit, 0)
    for number, model in enumerate(SHAPES.models):
        joined = join(fit, x, model=number)
        assert joined.worker.task.model == model and equal(joined.predict(x), join(fit, x, model=model).predict(x))
    for wrong in (3, -1):
        with pytest.raises(ValueError, match=rf"model={wrong} must be one of the federation's, 0 \(MLP.*, 2 \(MLP"):
            join(fit, x, model=wrong)
    with pytest.raises(ValueError, match=r"Mixed\(...\) has 2 architectures, and a newcomer has one: 0 \(MLP"):
        join(fit, x, model=Mixed((MLP(), CNN())))


def test_hetero_tent_serves_newcomers_and_fedtta_is_refused_without_its_net():
    fit = ac.train(experiment(FEDMD, adapters=(ac.adapters.Tent(params="all"), Adapt())))
    table = ac.evaluate(fit)
    assert {r["adapter"] for r in table.rows} == {"tent-all"}
    assert "FedTTA needs net, inner" in table.refused[0]["reason"]
    assert join(fit, newcomer(fit, 0)).adapter == ac.adapters.Tent(params="all")


# --- the public set, and what is refused ----------------------------------------------------------------------------


def test_the_public_set_is_nobodys_own_and_the_same_every_time():
    world, again = DATA.world(3), DATA.world(3)
    assert torch.equal(world.public, again.public) and len(world.public) > 0
    used = torch.cat([*world.train, *world.val, *world.test, *world.new])
    assert not set(used.tolist()) & set(world.public.tolist())
    assert not torch.equal(world.public, DATA.world(4).public)
    with pytest.raises(ValueError, match="some public ones are also a client's"):
        replace(world, public=world.train[0][:2])


def test_a_public_task_pickles_and_keeps_its_set_in_other_precisions_and_models():
    import pickle

    t = public_task()
    for other in (pickle.loads(pickle.dumps(t)), t.computing(torch.bfloat16), t.having(MLP())):
        assert torch.equal(other.public, t.public)
    mine = tree.stack([HETERO.init_client(t, c, KEY) for c in range(2)])
    keys = torch.stack([rng.key(c) for c in range(2)])
    both = vmap(lambda m, k: HETERO.welcome(t, teacher(HETERO), m, k))(mine, keys)
    alone = HETERO.welcome(t, teacher(HETERO), tree.take(mine, 1), keys[1])
    assert gap(tree.take(both, 1), alone) < 1e-5


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: HeteroFedTTA(lam=-1.0), "lam=-1.0 must be a finite number of at least 0"),
        (lambda: HeteroFedTTA(widths=()), r"widths=\(\) must name at least one width"),
        (lambda: HeteroFedTTA(kl="both"), "kl='both' must be one of 'student', 'teacher'"),
        (lambda: Mixed(()), r"models=\(\) must name at least one model"),
        (lambda: Mixed(assign="size"), "assign='size' must be one of 'random', 'turns'"),
        (lambda: ac.data.Public(share=0.0), "share=0.0 must be a finite number above 0"),
        (lambda: ac.data.Public(share=1.0), "share=1.0 must be between 0.0 and 0.9"),
        (lambda: ac.train(experiment(ac.methods.FedAvg(work=WORK))), "3 architectures, but method=FedAvg shares"),
        (lambda: ac.train(experiment(data=ac.data.Digits(clients=5))), "data=Digits has no public set, which"),
        (lambda: ac.train(experiment(backend=ac.backends.Flower())), "backend=flower cannot run method=HeteroFedTTA"),
        (lambda: ac.train(experiment(backend=ac.backends.Vmap(private="mapped"))), "private='mapped' must be"),
    ],
)
def test_refusals_name_the_field_the_value_and_what_is_allowed(make, says):
    with pytest.raises(ValueError, match=says):
        make()


def test_an_adapter_must_be_able_to_serve_every_architecture(fit):
    models = fit.engine.deploy(fit.state.server, fit.state.mine, ac.personal.NoPersonal())
    with pytest.raises(ValueError, match="architecture 0 of the federation .*Tent needs normalisation layers"):
        fit.engine.serve(models, fit.world.shards(fit.world.val), ac.adapters.Tent(), Protocol())


def test_only_newcomers_of_such_a_federation_choose_their_model():
    plain = ac.train(experiment(ac.methods.FedAvg(work=WORK), data=ac.data.Digits(clients=5), model=MLP(hidden=(6,))))
    with pytest.raises(ValueError, match=r"model=MLP\(.*can be chosen only where clients share no weights"):
        join(plain, plain.world.examples.x[:4], model=MLP())
