"""Methods whose server gathers every client's model: FedFomo and CFL, by value."""

import numpy as np
import pytest
import torch
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.spatial.distance import squareform

from acclimate.core import SGD, Gather, Work, rng, tree
from acclimate.methods import CFL, FedAvg, FedFomo
from acclimate.methods.cfl import halves
from acclimate.methods.fedfomo import better
from acclimate.ops.masks import held_out
from linear import BODY, DATA, HEAD, KEY, ONCE, TASK, VARS, F, both_layers, ce, close, tensor, variables
from support import SMALL, equal, fitted, gap

GOOD, BAD = HEAD + 0.5 * np.array([[1.0, 0.2], [0.1, -0.4], [0.3, 0.9]]), -HEAD
TABLE = tree.stack([variables(GOOD), VARS, variables(BAD), variables(HEAD + 0.1 * (GOOD - HEAD))])


# FedFomo


def test_fedfomos_weights_are_loss_drops_over_distances():
    mixed, weights = better(TASK, TABLE, VARS, torch.tensor([2, 0, 3]), DATA)
    heads = [BAD, GOOD, HEAD + 0.1 * (GOOD - HEAD)]
    drops = [max(0.0, (ce(F @ HEAD.T) - ce(F @ h.T)) / np.linalg.norm(h - HEAD)) for h in heads]
    assert drops[0] == 0.0 and min(drops[1:]) > 0.0
    wanted = np.array(drops) / sum(drops)
    close(weights, wanted)
    close(mixed["params"]["head.weight"], HEAD + sum(w * (h - HEAD) for w, h in zip(wanted, heads, strict=True)))
    close(mixed["params"]["project.weight"], BODY)


def test_fedfomo_keeps_its_model_where_nobody_has_a_better_one():
    mixed, weights = better(TASK, TABLE, VARS, torch.tensor([2, 1]), DATA)
    assert equal(mixed, VARS) and weights.tolist() == [0.0, 0.0]
    assert better(TASK, TABLE, VARS, torch.zeros(0, dtype=torch.int64), DATA)[1].shape == (0,)


def test_fedfomo_judges_on_what_it_does_not_train_on():
    method, down = FedFomo(parts=4, models=3, opt=SGD(lr=0.5), work=Work(iterations=1, batch=3)), {"models": TABLE}
    down["affinity"] = torch.eye(4)
    up, mine = method.client(TASK, down, {"vars": VARS, "seen": torch.zeros(())}, DATA, KEY)
    fitted_, judged = held_out(DATA, 4)
    assert int(fitted_["n"]) == 3 and judged["rows"].tolist() == [3]
    chosen = method.looked_at(down["affinity"], DATA["id"], rng.fold(KEY, "choose"))
    start, weights = better(TASK, TABLE, VARS, chosen, judged)
    head = start["params"]["head.weight"].numpy()
    x, y = DATA["x"].numpy()[:3], DATA["y"].numpy()[:3]
    close(up["model"]["params"]["head.weight"], head - 0.5 * both_layers(BODY, head, x, y)[1])
    assert sorted(chosen.tolist()) == [0, 2, 3] and equal(up["model"], mine["vars"]) and float(mine["seen"]) == 1.0
    close(up["gain"], np.bincount(chosen.numpy(), weights.numpy(), 4))


def test_fedfomo_looks_at_those_of_largest_affinity_and_sometimes_at_any():
    affinity = torch.tensor([[1.0, 0.0, 0.3, 0.0, 0.2]] * 5)
    first = torch.tensor(0)
    sure = [FedFomo(models=2, explore=0.0).looked_at(affinity, first, rng.key(k)).tolist() for k in range(20)]
    assert sure == [[2, 4]] * 20
    third = {tuple(FedFomo(models=3, explore=0.0).looked_at(affinity, first, rng.key(k)).tolist()) for k in range(20)}
    assert third == {(2, 4, 1), (2, 4, 3)}  # equals at random
    free = [FedFomo(models=1, explore=0.5).looked_at(affinity, first, rng.key(k)).item() for k in range(400)]
    assert 0 not in free and abs(free.count(2) / 400 - (0.5 + 0.5 / 4)) < 0.08
    assert FedFomo(models=9).looked_at(affinity, first, KEY).shape == (4,)
    for k in range(200):  # who explores follows its draws, near ones too
        draw = rng.uniform(rng.fold(rng.key(k), "draw"), 5)[1:]
        assert FedFomo(models=1, explore=1.0).looked_at(affinity, first, rng.key(k)).item() == 1 + int(draw.argmax())


def test_fedfomos_server_keeps_models_and_adds_weights():
    method = FedFomo()
    server = method.init_server(TASK, 4, KEY)
    close(server["affinity"], np.eye(4))
    gain = torch.tensor([[0.0, 0.5, 0.5, 0.0]])
    total = {"model": tree.stack([VARS]), "gain": gain, "id": torch.tensor([3])}
    new = method.server(TASK, server, total, KEY)
    assert equal(tree.take(new["models"], 3), VARS) and equal(tree.take(new["models"], 0), TASK.init(KEY))
    close(new["affinity"], np.eye(4) + np.outer([0, 0, 0, 1], [0.0, 0.5, 0.5, 0.0]))
    close(new["seen"], [0.0, 0.0, 0.0, 1.0])
    down = {"models": TABLE, "affinity": torch.eye(4), "seen": torch.tensor([1.0, 0.0, 1.0, 0.0])}
    newcomer = method.deploy(TASK, down, method.init_mine(TASK, KEY))["vars"]
    heads = TABLE["params"]["head.weight"].numpy()
    close(newcomer["params"]["head.weight"], (heads[0] + heads[2]) / 2)  # of those who have trained
    for seen in (torch.zeros(4), torch.ones(4)):
        newcomer = method.deploy(TASK, {**down, "seen": seen}, method.init_mine(TASK, KEY))["vars"]
        assert torch.equal(newcomer["params"]["head.weight"], TABLE["params"]["head.weight"].mean(0))
    assert equal(method.deploy(TASK, down, {"vars": VARS, "seen": torch.ones(())})["vars"], VARS)


# CFL


def test_cfl_before_its_start_is_fedavg():
    for weights in ("samples", "uniform"):
        state = fitted(CFL(work=SMALL, weights=weights), model="mlp-dropout", rounds=2, cohort=4)[2]
        plain = fitted(FedAvg(work=SMALL, weights=weights), model="mlp-dropout", rounds=2, cohort=4)[2]
        for row in range(6):
            assert gap(tree.take(state.server["models"], row), plain.server["vars"]) < 1e-5


@pytest.mark.parametrize("seed", range(8))
def test_halves_are_those_of_complete_linkage(seed):
    updates = np.random.default_rng(seed).normal(size=(7, 3))
    unit = updates / np.linalg.norm(updates, axis=1, keepdims=True)
    apart = 1 - unit @ unit.T
    np.fill_diagonal(apart, 0.0)
    wanted = fcluster(linkage(squareform(apart, checks=False), "complete"), 2, "maxclust")
    assert (halves(torch.tensor(updates)).numpy() == (wanted != wanted[0])).all()


WAYS = {"project.weight": torch.zeros(4, 2, 3), "head.weight": torch.zeros(4, 3, 2)}
WAYS["head.weight"][:, 0, 0] = tensor([3.0, -3.2, 3.1, -2.9])


def total(ways=WAYS, ids=(0, 1, 2, 4)):
    return {"delta": {"params": ways, "buffers": {}}, "n": torch.tensor([1, 1, 1, 1]), "id": torch.tensor(ids)}


def test_cfl_splits_clients_that_point_apart_and_each_half_goes_on_alone():
    method = CFL(start=0)
    server = method.init_server(TASK, 6, KEY)
    start = server["models"]["params"]["head.weight"].numpy()
    new = method.server(TASK, server, total(), KEY)
    assert new["cluster"].tolist() == [0, 1, 0, 0, 1, 0]  # those who were absent stay with the first half
    moved = np.zeros((6, 3, 2))
    moved[:, 0, 0] = [3.05, -3.05, 3.05, 3.05, -3.05, 3.05]
    close(new["models"]["params"]["head.weight"], start + moved)
    again = method.server(TASK, new, total(), KEY)  # halves of two are not split further
    assert again["cluster"].tolist() == new["cluster"].tolist() and float(again["round"]) == 2.0
    assert equal(server["cluster"], torch.zeros(6, dtype=torch.int64))


def test_two_of_cfls_clusters_that_split_at_once_get_two_new_names():
    cluster, there = torch.tensor([0, 1, 0, 1, 0, 1, 2]), torch.arange(6)
    ways = {"w": torch.tensor([[3.0], [-2.0], [-3.0], [2.0], [3.1], [-2.1]])}
    found = CFL(still=0.9).split(cluster, there, ways, torch.ones(6))
    assert found.tolist() == [0, 1, 3, 4, 0, 1]


def test_cfl_splits_no_cluster_of_two():
    ways = {"w": torch.tensor([[3.0], [-3.0], [0.1]])}
    for count, found in ((2, [0, 0]), (3, [0, 1, 0])):
        few = tree.map(lambda w, n=count: w[:n], ways)
        assert CFL().split(torch.zeros(3).long(), torch.arange(count), few, torch.ones(count)).tolist() == found


@pytest.mark.parametrize("settings", [{"still": 0.0}, {"start": 1}])
def test_cfl_splits_only_where_updates_cancel_and_late_enough(settings):
    method = CFL(**{"start": 0, **settings})
    assert not method.server(TASK, method.init_server(TASK, 6, KEY), total(), KEY)["cluster"].any()
    assert dict(method.uplink) == dict.fromkeys(("delta", "n", "id"), Gather())


def test_cfl_splits_below_a_share_of_the_largest_update():
    heavy = {**total(), "n": torch.tensor([5, 2, 4, 3])}  # the mean is (15 - 6.4 + 12.4 - 8.7) / 14, the largest 3.2
    for still, split in ((0.28, True), (0.26, False)):
        method = CFL(start=0, still=still)
        found = method.server(TASK, method.init_server(TASK, 6, KEY), heavy, KEY)["cluster"]
        assert bool(found.any()) is split


def test_cfls_clusters_count_by_examples():
    method = CFL(start=9)
    server = method.init_server(TASK, 4, KEY)
    server["cluster"] = torch.tensor([0, 1, 0, 1])
    told = {**total(ids=(0, 1, 2, 3)), "n": torch.tensor([1, 2, 3, 6])}
    way = {w: (CFL(start=9, weights=w).server(TASK, server, told, KEY), w) for w in ("samples", "uniform")}
    start = server["models"]["params"]["head.weight"][:, 0, 0].numpy()
    found = {w: s["models"]["params"]["head.weight"][:, 0, 0].numpy() - start for w, (s, _) in way.items()}
    np.testing.assert_allclose(found["uniform"], [3.05, -3.05, 3.05, -3.05], atol=1e-5)
    np.testing.assert_allclose(found["samples"], [3.075, -2.975, 3.075, -2.975], atol=1e-5)


def test_cfls_clients_read_their_own_row_and_newcomers_that_of_the_largest_cluster():
    method = CFL(opt=SGD(lr=0.5), work=ONCE)
    down = {"models": TABLE, "cluster": torch.tensor([3, 1, 2, 2])}
    up, mine = method.client(TASK, down, method.init_mine(TASK, KEY), DATA, KEY)
    close(up["delta"]["params"]["head.weight"], -0.5 * both_layers(BODY, HEAD)[1])
    assert int(mine["row"]) == 1 and equal(method.deploy(TASK, down, mine)["vars"], VARS)
    assert equal(method.finish_personal(TASK, down, method.init_mine(TASK, KEY), DATA, KEY), mine)
    assert equal(method.deploy(TASK, down, method.init_mine(TASK, KEY))["vars"], variables(BAD))


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: FedFomo(models=0), "models"),
        (lambda: FedFomo(parts=1), "parts"),
        (lambda: FedFomo(explore=1.5), "explore"),
        (lambda: CFL(still=-1.0), "still"),
        (lambda: CFL(start=-1), "start"),
        (lambda: CFL(weights="none"), "weights"),
    ],
)
def test_bad_settings_are_refused_by_name(make, field):
    with pytest.raises(ValueError, match=f"{field}="):
        make()
