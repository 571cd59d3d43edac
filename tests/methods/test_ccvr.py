"""CCVR by value: class moments, the Gaussians that are drawn from, and the head that is trained on them."""

import numpy as np
import pytest
import torch

from acclimate.core import SGD, StepDecay, Work, message, rng, tree
from acclimate.methods import CCVR, FedAvg
from acclimate.methods.ccvr import class_moments, drawn
from linear import DATA, HEAD, KEY, TASK, VARS, F, Y, close, regression, tensor
from support import SMALL, equal, fitted, gap


def moments(features=F, y=Y, classes=3):
    means = np.stack([features[y == c].mean(0) if (y == c).any() else 0 * features[0] for c in range(classes)])
    seconds = [(features[y == c].T @ features[y == c]) / max((y == c).sum(), 1) for c in range(classes)]
    counts = [(y == c).sum() for c in range(classes)]
    return {"means": tensor(means), "seconds": tensor(np.stack(seconds)), "counts": tensor(counts)}


def test_class_moments_by_value():
    padded = {**DATA, "rows": torch.tensor([0, 1, 2, 3, 0, 0])}
    features = tensor(np.concatenate([F, F[:1], F[:1]]))
    found, wanted = class_moments(features, padded, 4), moments(classes=4)
    for name in wanted:
        close(found[name], wanted[name])
    up, _ = CCVR(work=Work(epochs=0)).client(TASK, {"vars": VARS}, {}, DATA, KEY)
    for name, value in moments().items():
        close(up[name], value)


def test_the_federations_moments_are_those_of_all_examples():
    method, parts = CCVR(work=Work(epochs=0)), [torch.tensor([0, 1, 2]), torch.tensor([3, 3, 3])]
    some = [{**DATA, "rows": rows, "n": torch.tensor(n)} for rows, n in zip(parts, (3, 1), strict=True)]
    ups = tree.stack([method.client(TASK, {"vars": VARS}, {}, data, KEY)[0] for data in some])
    both = torch.arange(2)
    total = message.finish(method.uplink, message.partial(method.uplink, both, ups), both)
    for name, value in moments().items():
        close(total[name], value)
    assert total["n"].item() == 4


def test_drawn_features_have_the_classes_mean_and_covariance():
    draw = np.random.default_rng(0)
    y = np.repeat([0, 1], (7, 5))
    f = draw.normal(size=(12, 3)) @ draw.normal(size=(3, 3)) + np.where(y[:, None] == 0, 2.0, -1.0)
    z = drawn(moments(f, y, 2), 20000, KEY).numpy().reshape(2, -1, 3)
    for c in range(2):
        np.testing.assert_allclose(z[c].mean(0), f[y == c].mean(0), atol=0.1)
        np.testing.assert_allclose(np.cov(z[c].T), np.cov(f[y == c].T), rtol=0.1, atol=0.1)
    lone = drawn(moments(f, np.array([0] * 11 + [1]), 2), 6, KEY).reshape(2, 6, 3)[1]
    np.testing.assert_allclose(lone.numpy(), np.tile(f[-1], (6, 1)), atol=2e-2)  # one example has no spread


def test_the_head_is_trained_on_what_is_drawn():
    method = CCVR(virtual=2, head_opt=SGD(lr=0.5), head_work=Work(iterations=1, batch=6))
    held = moments(F[[0, 2, 3]], Y[[0, 2, 3]])  # nobody holds class 2
    live = method.calibrated(TASK, VARS, held, KEY)
    z, y = drawn(held, 2, rng.fold(KEY, "virtual")).numpy()[:4], np.array([0, 0, 1, 1])
    close(live["params"]["head.weight"], HEAD - 0.5 * regression(z @ HEAD.T, y, z))
    assert torch.equal(live["params"]["project.weight"], VARS["params"]["project.weight"])


def test_a_batch_of_one_drawn_feature_takes_its_whole_step():
    method = CCVR(virtual=1, head_opt=SGD(lr=0.5), head_work=Work(iterations=1, batch=1))
    live = method.calibrated(TASK, VARS, moments(), KEY)["params"]["head.weight"].numpy()
    z = drawn(moments(), 1, rng.fold(KEY, "virtual")).numpy()
    steps = [HEAD - 0.5 * regression(z[[c]] @ HEAD.T, np.array([c]), z[[c]]) for c in range(3)]
    assert sum(np.allclose(live, step, atol=1e-5) for step in steps) == 1


def test_without_virtual_features_it_is_the_model_that_fedavg_sent():
    _, _, state = fitted(CCVR(virtual=0, work=SMALL), model="mlp-dropout", rounds=3)
    two, three = (fitted(FedAvg(work=SMALL), model="mlp-dropout", rounds=r)[2].server["vars"] for r in (2, 3))
    assert gap(state.server["vars"], three) < 1e-6 and gap(state.server["live"], two) < 1e-6
    assert equal(CCVR().deploy(TASK, state.server, {})["vars"], state.server["live"])


def test_only_the_head_is_calibrated():
    _, _, state = fitted(CCVR(work=SMALL), model="mlp-dropout", rounds=2)
    one = fitted(FedAvg(work=SMALL), model="mlp-dropout", rounds=1)[2].server["vars"]
    heads = {"head.weight", "head.bias"}
    live = state.server["live"]["params"]
    assert gap(tree.drop(live, heads), tree.drop(one["params"], heads)) < 1e-6
    assert gap(tree.pick(live, heads), tree.pick(one["params"], heads)) > 1e-3


@pytest.mark.parametrize(("settings", "field"), [({"virtual": -1}, "virtual"), ({"weights": "none"}, "weights")])
def test_bad_settings_are_refused_by_name(settings, field):
    with pytest.raises(ValueError, match=f"{field}="):
        CCVR(**settings)
    with pytest.raises(ValueError, match="head_opt.schedule="):  # the server has no clock for it
        CCVR(head_opt=SGD(schedule=StepDecay()))
