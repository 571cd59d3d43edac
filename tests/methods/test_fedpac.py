"""FedPAC by value: the quadratic programme against every face of the simplex, and clients on the linear model."""

from itertools import combinations

import numpy as np
import pytest
import torch

from acclimate.core import SGD, Gather, Mean, Sum, Work, tree
from acclimate.methods import FedPAC
from acclimate.methods.fedpac import described
from acclimate.ops.simplex import best_mixtures
from linear import BODY, DATA, HEAD, KEY, ONCE, TASK, F, X, Y, both_layers, close, regression, tensor

FIRST = np.array([[0.1, 0.3], [0.2, -0.4], [-0.3, 0.5]])
HEADS = np.stack([FIRST, HEAD, -HEAD])
"""The client of DATA is number 1."""
PROTOTYPES = np.array([[0.3, 0.1], [9.0, 9.0], [0.2, 0.9]])


def sent(known=(1.0, 0.0, 1.0), seen=(1.0, 1.0, 1.0)):
    body = {"params": {"project.weight": tensor(BODY)}, "buffers": {}}
    tables = {"heads": {"weight": tensor(HEADS)}, "prototypes": tensor(PROTOTYPES)}
    return {"vars": body, **tables, "known": tensor(known), "seen": tensor(seen)}


def fresh():
    return {"head": {"weight": tensor(FIRST)}, "seen": torch.zeros(())}


def best_by_faces(points, variance, i):
    """The least value over all faces of the simplex, each solved as a linear system."""
    m, best = len(points), (np.inf, None)
    apart = points[i] - points
    matrix = np.diag(variance) + apart @ apart.T  # the paper's diag(V) + D_i
    for size in range(1, m + 1):
        for face in map(list, combinations(range(m), size)):
            a = np.zeros(m)
            a[face] = np.linalg.solve(matrix[np.ix_(face, face)], np.ones(size))
            a /= a.sum()
            if (a >= -1e-12).all() and a @ matrix @ a < best[0]:
                best = (a @ matrix @ a, a)
    return best[1]


@pytest.mark.parametrize("noise", [0.01, 0.3, 5.0])
def test_mixtures_solve_the_papers_programme(noise):
    draw = np.random.default_rng(0)
    points, variance = draw.normal(size=(5, 3, 2)), noise * (0.5 + draw.random(5))
    points[3] = points[1] + 0.05 * draw.normal(size=(3, 2))  # two clients that are alike
    found = best_mixtures(torch.tensor(points), torch.tensor(variance)).numpy()
    wanted = np.stack([best_by_faces(points.reshape(5, -1), variance, i) for i in range(5)])
    np.testing.assert_allclose(found, wanted, atol=1e-4)
    assert found.min() >= 0.0 and np.allclose(found.sum(1), 1.0)


def test_a_client_that_is_sure_of_itself_keeps_its_own_head():
    close(best_mixtures(torch.eye(3), torch.zeros(3)), np.eye(3))


def test_fedpacs_head_then_body_by_value():
    method = FedPAC(lam=0.7, opt=SGD(lr=0.5), work=Work(iterations=2, batch=4), head_opt=SGD(lr=0.3), head_work=ONCE)
    up, mine = method.client(TASK, sent(), fresh(), DATA, KEY)
    head = HEAD - 0.3 * regression(F @ HEAD.T)
    close(mine["head"]["weight"], head)
    close(up["head"]["weight"], head)
    body, known = BODY, np.array([1.0, 0.0, 1.0])[Y][:, None]
    for _ in range(2):
        pull = 2 * (X @ body.T - PROTOTYPES[Y]) / 2 / 4 * known  # mean over two features and four rows
        body = body - 0.5 * (both_layers(body, head)[0] + 0.7 * pull.T @ X)
    close(up["delta"]["params"]["project.weight"], body - BODY)
    assert set(up["delta"]["params"]) == {"project.weight"}
    close(up["prototypes"], np.stack([(X @ body.T)[c == Y].mean(0) for c in range(3)]))
    close(up["counts"], [2.0, 1.0, 1.0])
    h = np.stack([F[c == Y].sum(0) / 4 for c in range(3)])  # under the received body
    close(up["h"], h)
    close(up["variance"], ((F * F).sum(1).mean() - (h * h).sum()) / 4)
    last = method.finish_personal(TASK, sent(), fresh(), DATA, KEY)
    close(method.deploy(TASK, sent(), last)["vars"]["params"]["head.weight"], head)


def test_the_variance_is_that_of_the_sum_over_classes():
    """Of n examples drawn at random, the mean of e_y f has this variance over n."""
    draw = np.random.default_rng(1)
    f, y = draw.normal(size=(50, 2)), draw.integers(0, 3, 50)
    joint = np.einsum("nc,nd->ncd", np.eye(3)[y], f).reshape(50, -1)
    data = {"y": torch.tensor(y), "rows": torch.arange(50), "n": torch.tensor(50)}
    close(described(tensor(f), data, 3)[1], joint.var(0).sum() / 50)
    h, lone = described(tensor(f), {**data, "n": torch.tensor(1)}, 3)
    close(h.sum(0), f[0])
    close(lone, 0.0)


def test_fedpacs_server_mixes_the_cohorts_heads_and_leaves_the_others():
    draw, method = np.random.default_rng(2), FedPAC()
    h, variance, heads = draw.normal(size=(2, 3, 2)), np.array([0.8, 0.5]), draw.normal(size=(2, 3, 2))
    zero = {"params": {"project.weight": torch.ones(2, 3)}, "buffers": {}}
    total = {"delta": zero, "n": torch.tensor(8), "id": torch.tensor([0, 2]), "head": {"weight": tensor(heads)}}
    total |= {"h": tensor(h), "variance": tensor(variance), "counts": tensor([2.0, 0.0, 1.0])}
    total |= {"prototypes": tensor(np.full((3, 2), 4.0))}
    new = method.server(TASK, sent((0.0, 1.0, 0.0), (1.0, 0.0, 0.0)), total, KEY)
    flat = h.reshape(2, -1)
    mix = np.stack([best_by_faces(flat, variance, i) for i in range(2)])
    close(new["heads"]["weight"][[0, 2]], np.einsum("ij,jcd->icd", mix, heads))
    close(new["heads"]["weight"][1], HEAD)
    close(new["prototypes"], [[4.0, 4.0], [9.0, 9.0], [4.0, 4.0]])
    close(new["known"], [1.0, 1.0, 1.0])
    close(new["seen"], [1.0, 0.0, 1.0])
    close(new["vars"]["params"]["project.weight"], BODY + 1)


def test_fedpacs_server_starts_with_one_head_for_all_and_newcomers_take_the_mean_of_the_trained():
    server = FedPAC().init_server(TASK, 4, KEY)
    head = TASK.init(KEY)["params"]["head.weight"]
    assert all(torch.equal(row, head) for row in server["heads"]["weight"]) and len(server["heads"]["weight"]) == 4
    assert not server["prototypes"].any() and server["known"].tolist() == [0.0] * 3
    assert server["seen"].tolist() == [0.0] * 4
    for seen, mean in (((1.0, 1.0, 1.0), HEADS.mean(0)), ((0.0, 1.0, 0.0), HEADS[1]), ((0.0,) * 3, HEADS.mean(0))):
        live = FedPAC().deploy(TASK, sent(seen=seen), FedPAC().init_mine(TASK, KEY))["vars"]["params"]
        close(live["head.weight"], mean)
    each = dict.fromkeys(("id", "head", "h", "variance"), Gather())
    both = {"prototypes": Mean("counts"), "counts": Sum()}
    assert dict(FedPAC().uplink) == {"delta": Mean("n"), "n": Sum(), **both, **each}


def test_fedpac_refuses_a_negative_weight():
    with pytest.raises(ValueError, match="lam="):
        FedPAC(lam=-1.0)
    with pytest.raises(ValueError, match="weights="):
        FedPAC(weights="none")


def test_a_round_of_fedpac_leaves_heads_as_trees_of_their_clients():
    from support import SMALL, fitted

    _, _, state = fitted(FedPAC(work=SMALL, head_work=SMALL), "vmap", "mlp-dropout", rounds=2, cohort=6)
    rows = state.server["heads"]["weight"]
    assert float((rows[0] - rows[1]).abs().max()) > 1e-4 and state.mine["seen"].tolist() == [1.0] * 6
    assert tree.finite(state.server) and Work() == FedPAC().work
