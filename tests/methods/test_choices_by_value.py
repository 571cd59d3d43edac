"""Which cluster answers in IFCA, and where FedSPL exchanges features: by value."""

import torch

from acclimate.core import Task, Work, rng, tree
from acclimate.methods import IFCA, FedSPL
from support import shards, task


def test_a_client_answers_with_its_own_cluster_and_a_newcomer_with_the_largest():
    models = {"params": {"w": torch.tensor([[1.0], [2.0], [3.0]])}, "buffers": {}}
    down = {"models": models, "votes": torch.tensor([2.0, 5.0, 1.0])}
    for choice, wanted in ((0, 1.0), (2, 3.0), (-1, 2.0)):
        found = IFCA(clusters=3).deploy(task(), down, {"choice": torch.tensor(choice)})
        assert found["vars"]["params"]["w"].tolist() == [wanted]


def test_a_client_that_never_chose_has_no_cluster():
    assert int(IFCA(clusters=3).init_mine(task(), rng.key(0))["choice"]) == -1


def test_features_are_exchanged_after_the_first_two_stages_or_where_it_is_said():
    asked = []

    class Told(Task):
        def apply(self, vars, x, mode="eval", key=None, change=None):
            asked.append(tuple(change or ()))
            return super().apply(vars, x, mode, key, change)

    plain = task("cnn-batch")
    t = Told(plain.model, plain.shape, plain.num_classes)
    own = shards()
    data = own.tree(own.own(0), own.n[0], torch.tensor(0), torch.tensor(0), ragged=False)
    for after, wanted in (((), tuple(t.stages[:2])), ((t.stages[0],), (t.stages[0],))):
        asked.clear()
        method = FedSPL(work=Work(iterations=1, batch=4), after=after)
        down = method.download(t, method.init_server(t, 2, rng.key(0)))
        up, _ = method.client(t, down, {}, data, rng.key(1))
        assert {a for a in asked if a} == {wanted} and bool(tree.norm(up["delta"]) > 0)
