"""What servers and clients hold before the first round, and what the first message makes of it, by value."""

import pytest
import torch

from acclimate.core import StepDecay, Task, rng, tree
from acclimate.methods.afl import AFL
from acclimate.methods.am import AM
from acclimate.methods.apfl import APFL
from acclimate.methods.ditto import Ditto
from acclimate.methods.elcfs import ELCFS
from acclimate.methods.fedatp import FedATP
from acclimate.methods.fedcsa import FedCSA
from acclimate.methods.fedpcl import FedPCL
from acclimate.methods.fedproto import FedProto
from acclimate.methods.fedrod import FedRoD
from acclimate.methods.fedsr import FedSR
from acclimate.methods.fedthe import FedTHE
from acclimate.methods.fedtta import FedTTA
from acclimate.methods.ga import GA
from acclimate.methods.harmofl import HarmoFL
from acclimate.methods.heterofedtta import HeteroFedTTA
from acclimate.methods.odpfl import ODPFL
from acclimate.methods.pfl import PFL
from acclimate.methods.scaffold import SCAFFOLD
from acclimate.models import MLP

KEY, CLIENTS = rng.key(5), 5
TASK = Task(MLP(hidden=(3,)), (1, 6, 6), 4, public=torch.zeros(7, 1, 6, 6))
"""Three features, four classes, images of 6 x 6 and seven of them public."""
PARAMS = TASK.init(KEY)["params"]
ZERO, FALLING = torch.zeros(()), StepDecay()


@pytest.mark.parametrize(
    ("method", "wanted"),
    [
        (AFL(), {"mixture": torch.full((5,), 0.2)}),
        (AM(partner="clients"), {"amplitude": torch.zeros(1, 6, 6)}),
        (ELCFS(bank=2, reach=0.34), {"bank": torch.zeros(5, 2, 1, 5, 5), "filled": torch.zeros(5)}),
        (FedATP(), {"rates": {"params": dict.fromkeys(PARAMS, ZERO), "buffers": {}}}),
        (FedCSA(), {"counts": torch.zeros(4)}),
        (FedPCL(), {"sets": torch.zeros(5, 4, 3), "counts": torch.zeros(5, 4)}),
        (FedProto(), {"prototypes": torch.zeros(4, 3), "known": torch.zeros(4)}),
        (FedTHE(), {"descriptor": torch.zeros(3)}),
        (FedTTA(inner_schedule=FALLING), {"rounds": ZERO}),
        (GA(), {"weights": torch.full((5,), 0.2), "round": ZERO}),
        (HarmoFL(), {"amplitude": torch.zeros(1, 6, 6)}),
        (HeteroFedTTA(), {"logits": dict.fromkeys(("personalised", "base"), torch.zeros(7, 4)), "known": ZERO}),
        (HeteroFedTTA(lam=0.0), {"logits": {"personalised": torch.zeros(7, 4)}, "known": ZERO}),
        (ODPFL(), {"description": torch.zeros(32)}),
        (PFL(), {"seen": torch.zeros(5)}),
        (SCAFFOLD(), {"control": tree.zeros(PARAMS), "clients": torch.tensor(5.0)}),
    ],
    ids=lambda v: type(v).__name__ if not isinstance(v, dict) else "",
)
def test_a_server_knows_nothing_but_the_model(method, wanted):
    same(tree.pick(method.init_server(TASK, CLIENTS, KEY), wanted), wanted)


@pytest.mark.parametrize(
    ("method", "wanted"),
    [
        (APFL(alpha=0.3), {"vars": TASK.init(KEY), "alpha": torch.tensor(0.3), "seen": ZERO}),
        (Ditto(), {"vars": TASK.init(KEY), "seen": ZERO}),
        (FedPCL(), {"vars": TASK.init(KEY), "prototypes": torch.zeros(4, 3), "counts": torch.zeros(4)}),
        (FedRoD(), {"head": {"weight": torch.zeros(4, 3), "bias": torch.zeros(4)}}),
        (GA(), {"loss": ZERO, "seen": ZERO}),
        (SCAFFOLD(), {"control": tree.zeros(PARAMS)}),
    ],
    ids=lambda v: type(v).__name__ if not isinstance(v, dict) else "",
)
def test_a_client_has_its_model_and_has_seen_nothing(method, wanted):
    same(method.init_client(TASK, 2, KEY), wanted)


def same(found, wanted):
    """The same names, shapes and numbers."""
    found, wanted = tree.flatten({"t": found}), tree.flatten({"t": wanted})
    assert list(found) == list(wanted)
    for name, value in wanted.items():
        assert found[name].shape == value.shape and torch.equal(found[name], value), name


def test_a_model_with_a_constant_inner_rate_counts_no_rounds():
    assert set(FedTTA().init_server(TASK, CLIENTS, KEY)) == {"vars", "net"}


def test_fedsrs_classes_start_at_zero_with_a_spread_of_one():
    classes = FedSR().init_server(TASK, CLIENTS, KEY)["extra"]["classes"]
    same(classes, {"mean": torch.zeros(4, 3), "spread": torch.ones(4, 3)})


def test_fedthes_personal_head_is_drawn_for_each_client_and_its_descriptor_is_zero():
    first, second = (FedTHE().init_client(TASK, c, KEY) for c in (0, 1))
    assert not torch.equal(first["head"]["weight"], second["head"]["weight"])
    assert torch.equal(first["descriptor"], torch.zeros(3))


def test_pfls_server_holds_a_copy_of_the_first_head_for_every_client():
    server = PFL().init_server(TASK, CLIENTS, KEY)
    assert set(server["vars"]["params"]) == set(TASK.body)
    for name in TASK.head:
        assert torch.equal(server["heads"][name], torch.stack([PARAMS[name]] * CLIENTS))


@pytest.mark.parametrize("hidden", [(1,), ()])
def test_the_smallest_adaptation_nets_are_deployed_with_the_inner_rate(hidden):
    method = FedTTA(inner_lr=0.3, hidden=hidden)
    live = method.deploy(TASK, method.download(TASK, method.init_server(TASK, CLIENTS, KEY)), {})
    assert set(live) == {"vars", "net", "inner"}
    same(live["inner"], {"lr": torch.tensor(0.3), "batch": torch.tensor(64.0)})


@pytest.mark.parametrize(("inner_lr", "names"), [(0.3, {"vars", "net", "inner"}), (0.0, {"vars"})])
def test_hetero_deploys_an_adaptation_net_where_it_has_one(inner_lr, names):
    method = HeteroFedTTA(inner_lr=inner_lr, widths=(9,), depth=2)
    mine = method.init_client(TASK, 2, KEY)
    live = method.deploy(TASK, {"known": torch.tensor(3.0)}, mine)
    assert set(live) == names and set(mine) == names - {"inner"}
    if inner_lr:
        assert [tuple(layer["weight"].shape) for layer in mine["net"].values()] == [(9, 4), (9, 9), (1, 9)]
        same(live["inner"], {"lr": torch.tensor(0.3), "batch": torch.tensor(64.0)})
