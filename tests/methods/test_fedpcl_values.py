"""FedPCL's steps and losses by value: computed here in plain Python, from the paper's equations and the published code.

The paper's losses themselves are in test_fedpcl.py; here are the published code's, and what the method does with both.
"""

import math
from dataclasses import replace

import pytest
import torch

from acclimate.core import SGD, Adam, Out, Task, Work, rng, tree
from acclimate.methods.fedpcl import FedPCL
from acclimate.models.frozen import Projection
from acclimate.ops import prototypes as proto
from support import equal, gap

KEY, TAU = rng.key(5), 0.07
TASK = Task(Projection(width=3), (4,), 3)
PAPER = FedPCL(opt=SGD(lr=0.1), work=Work(epochs=1, batch=4))
RELEASED = replace(PAPER, variant="released")


def drawn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def unit(v):
    return [x / math.sqrt(sum(a * a for a in v)) for x in v]


def dot(a, b):
    return sum(x * y for x, y in zip(a, b, strict=True))


VARS = {"params": {"project.weight": drawn(3, 4).abs(), "head.weight": drawn(3, 3, seed=1)}, "buffers": {}}
X, Y = drawn(6, 4, seed=2).abs(), torch.tensor([0, 2, 0, 1, 2, 2])
RAW = [[max(dot(w, x), 0.0) for w in VARS["params"]["project.weight"].tolist()] for x in X.tolist()]
Z = [unit(v) for v in RAW]
"""The representation of X: positive, so that the ReLU does nothing, and of length one."""
SETS, COUNTS = 0.5 * drawn(3, 3, 3, seed=3), torch.tensor([[4.0, 0.0, 1.0], [2.0, 3.0, 0.0], [0.0, 0.0, 0.0]])
SERVER = {"sets": SETS, "counts": COUNTS}
"""Three clients: two that lack a class each, and one that has not sent anything yet."""


def data(x=X, y=Y):
    known = {"x": x, "y": y, "rows": torch.arange(len(y)), "n": torch.tensor(len(y))}
    return known | {"id": torch.tensor(1), "round": torch.tensor(0)}


def close(a, b):
    torch.testing.assert_close(torch.as_tensor(a), torch.as_tensor(b, dtype=torch.float32), rtol=1e-4, atol=1e-5)


def test_the_test_has_the_features_of_the_model():
    close(TASK.apply(VARS, X).features, RAW)


# --- the server's half --------------------------------------------------------------------------------------------


def test_the_paper_pools_by_class_counts_and_the_published_code_counts_owners():
    first, second = SETS[0].tolist(), SETS[1].tolist()
    paper, published = PAPER.download(TASK, SERVER), RELEASED.download(TASK, SERVER)
    close(paper["global"][0], [(4 * a + 2 * b) / 6 for a, b in zip(first[0], second[0], strict=True)])
    close(published["global"][0], [(a + b) / 2 for a, b in zip(first[0], second[0], strict=True)])
    for down, known in ((paper, [6, 3, 1]), (published, [2, 1, 1])):
        close(down["global"][1:], [second[1], first[2]])
        assert down["known"].tolist() == known and down["seen"].tolist() == [1, 1, 0]
        close(down["sets"][0], [first[0], second[1], first[2]])  # the missing class is the common one (Eq. 7)
        close(down["sets"][1], [second[0], second[1], first[2]])
    single = PAPER.download(TASK, {"sets": SETS[:2], "counts": torch.tensor([[1.0, 0.0, 1.0], [9.0, 3.0, 0.0]])})
    close(single["sets"][0], [first[0], second[1], first[2]])  # one example is enough for a prototype of one's own


def test_the_server_files_what_arrives_under_its_sender():
    total = {"prototypes": drawn(1, 3, 3, seed=9), "counts": torch.tensor([[7, 0, 1]]), "id": torch.tensor([2])}
    after = PAPER.server(TASK, SERVER, total, KEY)
    assert equal(after["sets"], torch.stack([SETS[0], SETS[1], total["prototypes"][0]]))
    assert after["counts"].tolist() == [[4, 0, 1], [2, 3, 0], [7, 0, 1]] and after["counts"].is_floating_point()
    start = PAPER.init_server(TASK, 5, KEY)
    assert start["sets"].shape == (5, 3, 3) and not bool(start["sets"].any()) and not bool(start["counts"].any())


# --- the client's half --------------------------------------------------------------------------------------------


def test_prototypes_are_means_of_unit_vectors_and_not_scaled_again():
    mine = PAPER.finish_personal(TASK, {}, {"vars": VARS}, data(), KEY)
    for c, rows in ((0, (0, 2)), (1, (3,)), (2, (1, 4, 5))):
        close(mine["prototypes"][c], [sum(Z[i][k] for i in rows) / len(rows) for k in range(3)])
    assert mine["counts"].tolist() == [2, 1, 3]
    plain = proto.own_prototypes(TASK, VARS, data())[0]
    close(plain[0], [(a + b) / 2 for a, b in zip(RAW[0], RAW[2], strict=True)])


def test_what_is_sent_are_the_prototypes_of_the_trained_model():
    mine = PAPER.init_mine(TASK, KEY) | {"vars": VARS}
    up, after = PAPER.client(TASK, PAPER.download(TASK, SERVER), mine, data(), KEY)
    assert gap(after["vars"], VARS) > 1e-3
    again = PAPER.finish_personal(TASK, {}, after, data(), KEY)
    assert equal(up["prototypes"], again["prototypes"]) and equal(after["prototypes"], again["prototypes"])
    assert up["counts"].tolist() == after["counts"].tolist() == [2, 1, 3]
    assert up["counts"].dtype == torch.int64 and int(up["id"]) == 1


def test_in_the_first_round_weight_decay_acts_in_the_published_code_alone():
    down = PAPER.download(TASK, PAPER.init_server(TASK, 3, KEY))
    for method, moves in ((PAPER, False), (RELEASED, True), (replace(PAPER, loss="ce"), True)):
        decaying = replace(method, opt=Adam(lr=1e-2, weight_decay=0.1))
        mine = decaying.init_mine(TASK, KEY) | {"vars": VARS}
        after = decaying.client(TASK, down, mine, data(), KEY)[1]["vars"]
        assert (gap(after, VARS) > 0) == moves, method


def test_a_deployed_client_knows_what_it_or_anybody_has_seen_and_the_published_one_its_own_alone():
    mine = PAPER.init_mine(TASK, KEY) | {"vars": VARS, "counts": torch.tensor([3.0, 0.0, 0.0])}
    mine |= {"prototypes": drawn(3, 3, seed=11)}
    down = {"global": drawn(3, 3, seed=12), "known": torch.tensor([0.0, 5.0, 0.0])}
    head = torch.stack([mine["prototypes"][0], down["global"][1], down["global"][2]])
    for method, known in ((PAPER, [1, 1, 0]), (RELEASED, [1, 0, 0])):
        live = method.deploy(TASK, down, mine)
        assert live["known"].tolist() == known and equal(live["vars"]["params"]["head.weight"], head)
        out = method.predict(TASK, live, X)
        close(out.features, Z)
        for z, logits in zip(Z, out.logits.tolist(), strict=True):
            for c, one in enumerate(head.tolist()):
                shift = dot(one, one) / (2 * TAU) if method is RELEASED else 0.0
                wanted = dot(z, one) / TAU if known[c] else -1e4
                assert logits[c] == pytest.approx(wanted - shift, rel=1e-4)


# --- losses -------------------------------------------------------------------------------------------------------


def supcon(anchors, z, y):
    """The published loss: row i of the anchors against all rows of z but its own, in the mean over anchors."""
    terms = []
    for i, anchor in enumerate(anchors):
        others = [j for j in range(len(z)) if j != i]
        below = math.log(sum(math.exp(dot(anchor, z[j]) / TAU) for j in others))
        same = [dot(anchor, z[j]) / TAU - below for j in others if y[j] == y[i]]
        if same:
            terms.append(-sum(same) / len(same))
    return sum(terms) / len(terms)


def entropy(y):
    head = VARS["params"]["head.weight"].tolist()
    logits = [[dot(w, v) for w in head] for v in RAW]
    return sum(math.log(sum(map(math.exp, row))) - row[c] for row, c in zip(logits, y, strict=True)) / len(y)


def value(method, down, y=Y):
    return float(method.objective(TASK, down, VARS, {"x": X, "y": y}, KEY)[0])


def test_the_published_loss_is_summed_over_clients_with_prototypes_as_anchors():
    down, labels = RELEASED.download(TASK, SERVER), Y.tolist() * 2
    per_client = [supcon([down["sets"][p][c].tolist() for c in labels], Z * 2, labels) for p in (0, 1)]
    assert value(RELEASED, down) == pytest.approx(sum(per_client), rel=1e-4)
    nobody = RELEASED.download(TASK, PAPER.init_server(TASK, 3, KEY))
    assert value(RELEASED, nobody) == 0.0


def test_the_published_loss_falls_where_features_come_to_lie_at_their_prototypes():
    at, y = torch.eye(3), torch.tensor([0, 1, 2, 0])
    down = {"sets": at[None], "seen": torch.ones(1)}
    near, far = (float(proto.released_contrast(at[rows], y, down, TAU)) for rows in (y, (y + 1) % 3))
    assert near < 1.5 and far > near + 10


def test_the_other_losses_by_value():
    down, labels = PAPER.download(TASK, SERVER), Y.tolist()
    assert value(replace(PAPER, loss="ce"), down) == pytest.approx(entropy(labels), rel=1e-4)
    assert value(replace(PAPER, loss="supcon"), down) == pytest.approx(supcon(Z, Z, labels), rel=1e-4)
    goal = down["global"].tolist()
    far = [sum((a - b) ** 2 for a, b in zip(z, goal[c], strict=True)) / 3 for z, c in zip(Z, labels, strict=True)]
    wanted = entropy(labels) + 2.5 * sum(far) / len(far)
    assert value(replace(PAPER, loss="ce+distance", distance=2.5), down) == pytest.approx(wanted, rel=1e-4)


def test_the_papers_loss_is_the_methods_own():
    down = PAPER.download(TASK, SERVER)

    def term(z, c, prototypes):
        below = sum(math.exp(dot(z, prototypes[o]) / TAU) for o in range(3) if o != c)
        return math.log(below) - dot(z, prototypes[c]) / TAU

    pairs = list(zip(Z, Y.tolist(), strict=True))
    common = sum(term(z, c, down["global"].tolist()) for z, c in pairs) / 6
    local = sum(term(z, c, down["sets"][p].tolist()) for z, c in pairs for p in (0, 1)) / 2 / 6
    for which, wanted in (("both", common + local), ("global", common), ("local", local)):
        assert value(replace(PAPER, prototypes=which), down) == pytest.approx(wanted, rel=1e-4)


def test_gradients_of_the_published_loss_pull_towards_the_own_prototype():
    down = RELEASED.download(TASK, SERVER)
    after = RELEASED.client(TASK, down, RELEASED.init_mine(TASK, KEY) | {"vars": VARS}, data(), KEY)[1]["vars"]
    losses = [float(RELEASED.objective(TASK, down, v, {"x": X, "y": Y}, KEY)[0]) for v in (VARS, after)]
    assert losses[1] < losses[0] - 0.1


# --- prototypes of other methods ----------------------------------------------------------------------------------


def test_the_nearest_known_prototype_by_hand():
    features, prototypes = torch.tensor([[1.0, 2.0]]), torch.tensor([[0.0, 1.0], [3.0, 2.0], [1.0, 2.0]])
    # 2 f.p - |p|^2: 4 - 1, 14 - 13, and the third is at the spot but nobody knows it
    assert proto.nearest(features, prototypes, torch.tensor([2.0, 1.0, 0.0])).tolist() == [[3.0, 1.0, -1e4]]


def test_classes_that_nobody_knows_pull_nothing():
    out = Out(torch.zeros(2, 3), torch.zeros(2, 2), {})
    features, prototypes = torch.tensor([[1.0, 2.0], [5.0, 5.0]]), torch.tensor([[3.0, 1.0], [0.0, 0.0], [0.0, 0.0]])
    known = torch.tensor([4.0, 0.0, 0.0])
    # (2^2 + 1^2) / 2 for the first, nothing for the second, whose class 1 is not known; half of it is the mean
    found = proto.pulled(out, features, torch.tensor([0, 1]), prototypes, known, 2.0)
    assert float(found) == pytest.approx(math.log(3) + 2.0 * 2.5 / 2)


def test_anchors_without_a_partner_are_not_counted():
    z, y = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]]), torch.tensor([0, 1, 0])
    # both anchors of class 0: log(e^(1/tau) + e^0) - 1/tau
    wanted = math.log(math.exp(1 / TAU) + 1) - 1 / TAU
    assert float(proto.supervised_contrast(z, z, y, TAU)) == pytest.approx(wanted, abs=1e-5)
    alone = proto.supervised_contrast(z[:2], z[:2], y[:2], TAU)
    assert float(alone) == 0.0


def test_several_views_attract_each_other():
    # two views of two examples with marks of their own: each anchor has one positive and two others at right angles
    z = torch.tensor([[[2.0, 0.0], [0.0, 3.0]], [[1.0, 0.0], [0.0, 1.0]]])
    wanted = math.log(math.exp(1 / 0.5) + 2) - 1 / 0.5
    assert float(proto.contrastive(z, torch.tensor([0, 1]), 0.5)) == pytest.approx(wanted, rel=1e-5)
    # with one mark for all, an anchor has three positives: one at 1 / tau and two at 0
    together = math.log(math.exp(1 / 0.5) + 2) - (1 / 0.5) / 3
    assert float(proto.contrastive(z, torch.tensor([7, 7]), 0.5)) == pytest.approx(together, rel=1e-5)


def test_private_state_starts_with_no_class_seen():
    mine = PAPER.init_mine(TASK, KEY)
    assert mine["counts"].tolist() == [0, 0, 0] and mine["prototypes"].shape == (3, 3)
    assert equal(mine["vars"], TASK.init(KEY)) and gap(tree.zeros(mine["vars"]), mine["vars"]) > 0
