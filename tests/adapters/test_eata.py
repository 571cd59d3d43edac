"""EATA: Tent where nothing is filtered or held, and its three parts by hand. Fisher, its personaliser."""

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from acclimate.adapters import Tent
from acclimate.adapters.eata import EATA
from acclimate.core import SGD, Adam, rng, tree
from acclimate.methods import FedAvg
from acclimate.ops.losses import entropy
from acclimate.personal.fisher import Fisher
from support import SMALL, client_data, equal, fitted, gap, shards

ALL = EATA(opt=Adam(lr=1e-2), margin=None, redundancy=None, alpha=0.0)


@pytest.fixture(scope="module")
def live():
    worker, _, state = fitted(FedAvg(work=SMALL), rounds=2)
    return worker, {"vars": state.server["vars"]}


def steps(adapter, worker, model, count=3):
    state, x, out = adapter.init(worker.task, model), shards(seed=4).x, []
    for t in range(count):
        logits, state = adapter.step(worker.task, worker.predict(), model, state, x[8 * t : 8 * t + 8], rng.key(t))
        out.append(logits)
    return torch.cat(out), state


@pytest.mark.parametrize("params", ["norm", "all"])
def test_without_margin_redundancy_and_fisher_this_is_tent(live, params):
    worker, model = live
    ours, state = steps(replace(ALL, params=params), worker, model)
    theirs, tent = steps(Tent(params=params, opt=Adam(lr=1e-2)), worker, model)
    assert gap({"l": ours}, {"l": theirs}) < 1e-6
    assert gap(state["params"], tent["params"]) < 1e-6


def test_weights_by_hand():
    logits = torch.tensor([[4.0, 0.0, 0.0], [0.0, 0.1, 0.0], [0.0, 3.0, 0.0], [0.0, 0.0, 5.0]])
    adapter = EATA(margin=0.6, redundancy=0.5)
    surely = [math.exp(0.6 * math.log(3) - float(entropy(row[None]))) for row in logits]
    assert adapter.weigh(logits, torch.zeros(3)).tolist() == pytest.approx([surely[0], 0.0, surely[2], surely[3]])
    past = torch.tensor([1.0, 0.0, 0.0])  # so the first sample is redundant
    assert adapter.weigh(logits, past).tolist() == pytest.approx([0.0, 0.0, surely[2], surely[3]])
    assert adapter.weigh(logits, past).requires_grad is False


def test_the_average_holds_what_counted_and_decays(live):
    worker, model = live
    adapter = replace(ALL, margin=None, keep=0.9, opt=SGD(lr=1e-9))
    x = shards(seed=4).x
    probabilities = worker.predict()(model, x[:8], "adapt").logits.softmax(-1).mean(0)
    later = worker.predict()(model, x[8:16], "adapt").logits.softmax(-1).mean(0)
    assert gap({"a": steps(adapter, worker, model, 1)[1]["average"]}, {"a": probabilities}) < 1e-5
    assert gap({"a": steps(adapter, worker, model, 2)[1]["average"]}, {"a": 0.9 * probabilities + 0.1 * later}) < 1e-5


def test_no_step_where_no_sample_counts(live):
    worker, model = live
    _, state = steps(replace(ALL, margin=1e-6, opt=SGD(lr=1.0, momentum=0.9)), worker, model)
    assert equal(state["params"], tree.pick(model["vars"]["params"], worker.task.norm))
    assert not state["average"].any()


def test_a_heavy_fisher_holds_the_parameters(live):
    worker, model = live
    ones = tree.map(torch.ones_like, tree.pick(model["vars"]["params"], worker.task.norm))
    start = tree.pick(model["vars"]["params"], worker.task.norm)
    far = [
        gap(steps(replace(ALL, opt=SGD(lr=0.01), alpha=a), worker, {**model, "fisher": ones}, 6)[1]["params"], start)
        for a in (0.0, 40.0)
    ]
    assert far[1] < 0.5 * far[0]


def test_fisher_is_the_mean_squared_gradient_of_the_models_own_answers(live):
    worker, model = live
    own = client_data(shards(), 5)
    noted = Fisher().run(worker.task, worker.predict(), model, own, rng.key(0))["fisher"]
    names = sorted(worker.task.norm & frozenset(worker.task.params))
    assert sorted(noted) == names
    total = dict.fromkeys(names, 0.0)
    for x in own["x"][own["rows"]]:
        leaves = {n: p.clone().requires_grad_() for n, p in model["vars"]["params"].items()}
        logits = worker.task.apply({**model["vars"], "params": leaves}, x[None]).logits
        F.cross_entropy(logits, logits.argmax(-1)).backward()
        total = {n: total[n] + leaves[n].grad ** 2 / int(own["n"]) for n in names}
    assert gap(noted, {n: total[n] for n in noted}) < 1e-6
    wrong = {**own, "y": own["y"] * 0}
    assert equal(Fisher().run(worker.task, worker.predict(), model, wrong, rng.key(0))["fisher"], noted)


@pytest.mark.parametrize(("mode", "statistics"), [("eval", "running"), ("train", "batch")])
def test_fisher_of_batches_squares_their_mean_gradient(live, mode, statistics):
    """A batch counts by its examples; the last one wraps around, and what it repeats does not count."""
    worker, model = live
    own, norm = client_data(shards(), 5), tree.pick(model["vars"]["params"], worker.task.norm)
    noted = Fisher(batch=16, statistics=statistics).run(worker.task, worker.predict(), model, own, rng.key(0))["fisher"]
    n = int(own["n"])
    order = rng.order(rng.fold(rng.key(0), "fisher"), len(own["rows"]), own["n"])[:n].tolist()
    total = dict.fromkeys(noted, 0.0)
    assert n % 16  # so that there is a last batch that is not full
    for start in range(0, n, 16):
        drawn = own["rows"][[order[i % n] for i in range(start, start + 16)]]
        real = min(16, n - start)
        leaves = {name: p.clone().requires_grad_() for name, p in norm.items()}
        vars = {**model["vars"], "params": {**model["vars"]["params"], **leaves}}
        logits = worker.task.apply(vars, own["x"][drawn], mode).logits[:real]
        F.cross_entropy(logits, logits.argmax(-1)).backward()
        total = {name: total[name] + leaves[name].grad ** 2 * real / n for name in noted}
    assert gap(noted, total) < 1e-6


def test_fishers_variants_are_batch_sizes_and_impossible_ones_are_named(live):
    worker, model = live
    own = client_data(shards(), 5)
    for variant, batch in (("paper", 1), ("released", 64)):
        a, b = (
            f.run(worker.task, worker.predict(), model, own, rng.key(0))["fisher"]
            for f in (Fisher(variant=variant), Fisher(batch=batch))
        )
        assert equal(a, b)
    with pytest.raises(ValueError, match="statistics='batch' needs a batch of at least 2"):
        Fisher(statistics="batch")
    with pytest.raises(ValueError, match="batch=0"):
        Fisher(batch=0)


def test_the_default_weight_is_the_published_one_for_squares_of_single_gradients(live):
    """With one example the two Fishers are the same, so the published 2,000 would hold 64 times as hard."""
    worker, model = live
    fisher = tree.map(torch.ones_like, tree.pick(model["vars"]["params"], worker.task.norm))
    start = tree.pick(model["vars"]["params"], worker.task.norm)
    away = tree.map(lambda p: p + 0.5, start)
    count = sum(p.numel() for p in start.values())
    held = EATA()._held({**model, "fisher": fisher}, start, away)
    assert float(held) == pytest.approx(2000 / 64 * 0.25 * count, rel=1e-5)


@pytest.mark.parametrize(("alpha", "stays"), [(EATA().alpha, True), (2000.0, False)])
def test_at_a_rate_of_a_tenth_the_default_weight_stays_and_the_published_one_diverges(live, alpha, stays):
    worker, model = live
    noted = Fisher().run(worker.task, worker.predict(), model, client_data(shards(), 5), rng.key(0))
    moved = replace(ALL, opt=SGD(lr=0.1), alpha=alpha)
    state, x = moved.init(worker.task, noted), shards(seed=4).x[:8]
    for t in range(30):
        _, state = moved.step(worker.task, worker.predict(), noted, state, x, rng.key(t))
    far = gap(state["params"], tree.pick(model["vars"]["params"], worker.task.norm))
    assert (far < 1) is stays


def test_padding_does_not_count_for_fisher(live):
    worker, model = live
    own = client_data(shards(), 5)
    longer = {**own, "rows": torch.cat((own["rows"], own["rows"][:1].expand(7)))}
    for fisher in (Fisher(), Fisher(variant="released"), Fisher(batch=12, statistics="batch")):
        a, b = (fisher.run(worker.task, worker.predict(), model, d, rng.key(0))["fisher"] for d in (own, longer))
        assert gap(a, b) < 1e-6 and max(float(t.max()) for t in tree.leaves(a)) > 0


def test_refusals_name_what_is_missing(live):
    worker, model = live
    assert EATA().refusal(worker.task, model) == (
        "EATA needs fisher in the deployed model, which has only vars; personalise with Fisher (personal=fisher), or "
        "set alpha=0"
    )
    assert EATA(alpha=0.0).refusal(worker.task, model) is None
    noted = Fisher().run(worker.task, worker.predict(), model, client_data(shards(), 5), rng.key(0))
    assert EATA().refusal(worker.task, noted) is None
    assert "set its params='all'" in EATA(params="all").refusal(worker.task, noted)
    with pytest.raises(ValueError, match="redundancy=2"):
        EATA(redundancy=2.0)


def test_the_published_redundancy_leaves_out_all_of_ten_classes_that_come_alike():
    """A sure answer and the even average of C classes have a cosine of 1 / sqrt(C)."""
    for classes, redundancy, count in ((10, 0.05, 0), (10, 0.4, 10), (1000, 0.05, 1000)):
        sure, even = 50.0 * torch.eye(classes), torch.full((classes,), 1 / classes)
        assert int((EATA(redundancy=redundancy).weigh(sure, even) > 0).sum()) == count
