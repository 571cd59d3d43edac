"""What servers and single losses compute, on small numbers worked out by hand."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from acclimate.core import SGD, Out, Task, Work, rng, tree
from acclimate.methods import SCAFFOLD
from acclimate.methods.fedproto import FedProto
from acclimate.methods.heterofedtta import HeteroFedTTA
from acclimate.methods.pfl import PFL, _drawn
from acclimate.methods.public import distilled, divergence
from acclimate.ops.prototypes import nearest, pulled
from support import client_data, gap, shards, task

KEY = rng.key(5)


def vector(*values):
    return torch.tensor([float(v) for v in values])


# SCAFFOLD


def test_scaffolds_server_rate_scales_parameters_and_not_statistics_nor_controls():
    server = {
        "vars": {"params": {"w": vector(1, 2)}, "buffers": {"m": vector(5)}},
        "control": {"w": vector(0, 1)},
        "clients": torch.tensor(4.0),
    }
    total = {"delta": {"params": {"w": vector(2, -4)}, "buffers": {"m": vector(3)}}, "control": {"w": vector(8, 2)}}
    new = SCAFFOLD(server_lr=0.5).server(None, server, total, KEY)
    assert new["vars"]["params"]["w"].tolist() == [2.0, 0.0] and new["vars"]["buffers"]["m"].tolist() == [8.0]
    assert new["control"]["w"].tolist() == [2.0, 1.5] and new["clients"] is server["clients"]


def test_scaffolds_client_walks_along_its_corrected_gradient_and_keeps_the_plain_one():
    """Line 10: y <- y - lr (g - c_i + c). Line 12: c_i+ is the mean of the plain gradients along the way."""
    t, own = task("cnn-plain"), client_data(shards(), 0)
    vars = t.init(KEY)
    ones = tree.map(torch.ones_like, vars["params"])
    method = SCAFFOLD(opt=SGD(lr=0.1), work=Work(iterations=1, batch=40))
    plain, kept = method.client(t, {"vars": vars, "control": tree.zeros(ones)}, {"control": tree.zeros(ones)}, own, KEY)
    slope = tree.scale(plain["delta"]["params"], -10.0)
    assert gap(kept["control"], slope) < 1e-5
    down, mine = {"vars": vars, "control": tree.scale(ones, 3.0)}, {"control": ones}
    up, new = method.client(t, down, mine, own, KEY)
    assert gap(up["delta"]["params"], tree.map(lambda g: -0.1 * (g - 1 + 3), slope)) < 1e-5
    assert gap(new["control"], slope) < 1e-4 and gap(up["control"], tree.sub(slope, ones)) < 1e-4


# PFL


def test_pfl_takes_the_mean_over_the_heads_of_those_who_trained():
    server = {
        "vars": {},
        "heads": {"w": torch.tensor([[1.0, 2.0], [100.0, 100.0], [3.0, 6.0]])},
        "seen": vector(1, 0, 1),
    }
    assert PFL("ensemble").download(None, server)["mean"]["w"].tolist() == [2.0, 4.0]
    assert PFL("sampled").download(None, server) is server
    nobody = {**server, "seen": vector(0, 0, 0)}
    assert PFL("ensemble").download(None, nobody)["mean"]["w"].tolist() == [0.0, 0.0]
    one = {**server, "seen": vector(0, 0, 1)}
    assert PFL("ensemble").download(None, one)["mean"]["w"].tolist() == [3.0, 6.0]


def test_pfl_draws_among_those_who_trained_each_as_often():
    seen = vector(0, 1, 1, 0, 0, 1, 0)
    assert [int(_drawn(torch.tensor(d), seen)) for d in range(7)] == [1, 2, 5, 1, 2, 5, 1]
    assert int(_drawn(torch.tensor(4), vector(0, 0))) == 0


def test_pfl_files_heads_by_their_owner_and_marks_who_was_seen():
    server = {
        "vars": {"params": {"b": vector(1)}, "buffers": {}},
        "heads": {"w": torch.zeros(4, 2)},
        "seen": vector(0, 1, 0, 0),
    }
    total = {
        "delta": {"params": {"b": vector(2)}, "buffers": {}},
        "head": {"w": torch.tensor([[5.0, 6.0], [7.0, 8.0]])},
        "id": torch.tensor([3, 0]),
    }
    new = PFL().server(None, server, total, KEY)
    assert new["heads"]["w"].tolist() == [[7, 8], [0, 0], [0, 0], [5, 6]] and new["seen"].tolist() == [1, 1, 0, 1]
    assert new["vars"]["params"]["b"].tolist() == [3.0]


def test_pfl_deploys_ones_own_head_after_training_and_another_before():
    t = task("cnn-plain")
    method = PFL("sampled")
    server = method.init_server(t, 3, KEY)
    heads = tree.map(lambda h: torch.stack([h[0] + i for i in range(3)]), server["heads"])
    down, mine = {**server, "heads": heads, "seen": vector(0, 1, 1)}, method.init_client(t, 0, KEY)
    other = method.deploy(t, down, {**mine, "draw": torch.tensor(9)})["vars"]["params"]
    assert all(torch.equal(other[n], heads[n][2]) for n in t.head)
    own = method.deploy(t, down, {**mine, "own": torch.tensor(1)})["vars"]["params"]
    assert all(torch.equal(own[n], mine["head"][n]) for n in t.head)
    draws = [int(method.init_client(t, c, KEY)["draw"]) for c in range(4)]
    assert len(set(draws)) == 4


# FedProto


def test_a_prototype_pulls_by_the_mean_squared_difference_and_an_unknown_class_not_at_all():
    features, y = torch.tensor([[1.0, 2.0], [0.0, 0.0], [3.0, 1.0]]), torch.tensor([0, 2, 1])
    prototypes, known = torch.tensor([[0.0, 0.0], [1.0, 1.0], [9.0, 9.0]]), vector(1, 1, 0)
    logits = torch.zeros(3, 3)
    got = pulled(Out(logits, features, {}), features, y, prototypes, known, 0.6)
    assert float(got) == pytest.approx(np.log(3) + 0.6 * ((1 + 4) / 2 + 0 + 4 / 2) / 3)


def test_the_nearest_known_prototype_answers():
    prototypes, known = torch.tensor([[0.0, 0.0], [4.0, 0.0], [1.0, 1.0]]), vector(1, 1, 0)
    x = torch.tensor([[1.0, 1.0], [3.0, 1.0], [-50.0, 0.0]])
    logits = nearest(x, prototypes, known)
    assert logits.argmax(-1).tolist() == [0, 1, 0]
    away = ((x[:, None] - prototypes[None]) ** 2).sum(-1)
    np.testing.assert_allclose(logits[:, 0] - logits[:, 1], away[:, 1] - away[:, 0])
    assert (logits[:, 2] == -1e4).all()


def test_fedprotos_server_keeps_a_class_that_nobody_met():
    server = {"prototypes": torch.tensor([[1.0], [2.0], [0.0], [0.0]]), "known": vector(1, 1, 0, 0)}
    total = {"prototypes": torch.tensor([[7.0], [0.0], [8.0], [0.0]]), "counts": torch.tensor([3, 0, 1, 0])}
    new = FedProto().server(None, server, total, KEY)
    assert new["prototypes"].flatten().tolist() == [7, 2, 8, 0] and new["known"].tolist() == [1, 1, 1, 0]


def test_fedproto_sends_counts_of_real_rows_alone():
    t, own = task("cnn-plain"), client_data(shards(), 5)
    wide = {**own, "rows": torch.cat((own["rows"], own["rows"][:1].expand(6))), "ragged": torch.tensor(True)}
    method = FedProto(work=Work(epochs=0))
    mine, down = method.init_mine(t, KEY), method.init_server(t, 1, KEY)
    up, _ = method.client(t, down, mine, wide, KEY)
    y = own["y"][own["rows"]]
    assert up["counts"].tolist() == torch.bincount(y, minlength=5).tolist() and up["counts"].dtype == torch.int64
    z = t.apply(mine["vars"], own["x"][own["rows"]]).features
    for c in y.unique():
        torch.testing.assert_close(up["prototypes"][c], z[y == c].mean(0))


# HeteroFedTTA


@pytest.mark.parametrize(("weigh", "want"), [("teacher", (0.5, 0.5)), ("student", (0.8, 0.2))])
def test_the_divergence_weighs_the_log_ratio_by_one_of_them(weigh, want):
    student, teacher = torch.tensor([[0.8, 0.2]]).log(), torch.tensor([[0.5, 0.5]]).log()
    other = (0.8, 0.2) if weigh == "teacher" else (0.5, 0.5)
    by_hand = sum(p * np.log(p / q) for p, q in zip(want, other, strict=True))
    assert float(divergence(student, teacher, weigh)) == pytest.approx(by_hand, rel=1e-5)
    two = torch.cat([student, teacher]), torch.cat([teacher, teacher])
    assert float(divergence(*two, weigh)) == pytest.approx(by_hand / 2, rel=1e-5)  # a mean over the batch


def test_each_teacher_teaches_its_own_student():
    """The personalised logits come first, whatever the order in which the server holds them."""
    method = HeteroFedTTA(lam=0.7)
    x = torch.arange(6.0)[:, None]
    down = {
        "logits": {"base": torch.full((6, 2), 1.0), "personalised": torch.full((6, 2), 2.0)},
        "known": torch.ones(()),
    }
    mine = {"vars": {"params": {"w": torch.zeros(2)}, "buffers": {}}}
    seen = []

    def loss(both, batch, key):
        seen.append(batch["y"].shape)
        return (both["params"]["base"]["w"] * batch["y"][0, :, 0]).sum(), {}

    args = (x, down, method.uplink, torch.tensor(0), {"base": SGD(lr=1.0)}, Work(epochs=1, batch=100), KEY)
    new = distilled(loss, mine, *args)
    assert new["vars"]["params"]["w"].tolist() == [-2.0, -1.0] and seen == [(6, 2, 2)]
    unknown = distilled(loss, mine, x, {**down, "known": torch.zeros(())}, *args[2:])
    assert unknown["vars"]["params"]["w"].tolist() == [0.0, 0.0]
    assert distilled(loss, mine, x[:0], *args[1:]) is mine
    assert distilled(loss, mine, *args[:5], Work(epochs=0), KEY) is mine


def test_digesting_minds_lambda_and_both_teachers():
    t = Task(task("cnn-plain").model, (3, 10, 10), 5, public=shards().x[:12])
    method = HeteroFedTTA(lam=0.7, inner_lr=0.1, digest_batch=12, work=Work(iterations=1, batch=8))
    mine = method.init_client(t, 0, KEY)
    sharp = {n: 8 * rng.normal(rng.fold(KEY, n), 12, 5) for n in ("personalised", "base")}

    def after(lam, **logits):
        down = {"logits": {**sharp, **logits}, "known": torch.ones(())}
        return replace(method, lam=lam).digest(t, down, mine, torch.tensor(0), 1, KEY)

    flat = torch.zeros(12, 5)
    assert gap(after(0.7), after(0.7, base=flat)) > 1e-4 and gap(after(0.7), after(0.7, personalised=flat)) > 1e-4
    assert gap(after(0.0), after(0.0, base=flat)) == 0 and gap(after(0.7), after(0.2)) > 1e-4
