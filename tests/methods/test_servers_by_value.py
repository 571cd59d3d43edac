"""What servers make of a round's messages, with numbers small enough for a sheet of paper."""

import pytest
import torch

from acclimate.core import SGD, Gather, Mean, StepDecay, Sum, Task, Work, rng, tree
from acclimate.methods.afl import AFL, project
from acclimate.methods.am import AM
from acclimate.methods.elcfs import ELCFS
from acclimate.methods.fedatp import FedATP
from acclimate.methods.fedavg import FedAvg
from acclimate.methods.fedcsa import FedCSA, contribution
from acclimate.methods.fednova import FedNova, walked
from acclimate.methods.fedproto import FedProto
from acclimate.methods.fedsr import FedSR
from acclimate.methods.fedtta import FedTTA
from acclimate.methods.ga import GA, centred, on_simplex
from acclimate.methods.harmofl import HarmoFL
from acclimate.methods.heterofedtta import HeteroFedTTA
from acclimate.methods.pfedme import PFedMe
from acclimate.methods.pfl import PFL
from acclimate.methods.scaffold import SCAFFOLD
from acclimate.models import MLP
from acclimate.models.frozen import Projection

KEY = rng.key(5)
TASK = Task(Projection(width=2), (3,), 3)
IMAGES = Task(MLP(hidden=(3,)), (1, 6, 6), 4)
VARS = {"params": {"w": torch.tensor([1.0, -2.0])}, "buffers": {"m": torch.tensor([0.5])}}
DELTA = {"params": {"w": torch.tensor([0.2, 0.4])}, "buffers": {"m": torch.tensor([0.1])}}


def vector(*values):
    return torch.tensor(values)


def close(a, b):
    found, wanted = torch.as_tensor(a), torch.as_tensor(b, dtype=torch.float32)
    assert found.shape == wanted.shape and torch.allclose(found, wanted, rtol=1e-5, atol=1e-6), (found, wanted)


# Weights of clients


def test_the_projection_takes_the_same_from_all_that_stay():
    close(project(vector(0.9, 0.5, -0.2)), [0.7, 0.3, 0.0])
    close(project(vector(0.1, 2.5, 0.3)), [0.0, 1.0, 0.0])
    close(project(vector(0.4, 0.1, 0.2, 0.1)), [0.45, 0.15, 0.25, 0.15])
    close(project(vector(0.25, 0.75)), [0.25, 0.75])


def test_afl_moves_its_mixture_up_the_losses_of_those_who_came():
    server = {"vars": VARS, "mixture": torch.full((4,), 0.25)}
    total = {"delta": DELTA, "id": torch.tensor([3, 1]), "loss": vector(2.0, 0.4)}
    new = AFL(lambda_lr=0.1).server(TASK, server, total, KEY)
    # two of four came, so that losses count twice: 0.25 + 0.1 * (0, 0.8, 0, 4), less 0.12 for each
    close(new["mixture"], [0.13, 0.21, 0.13, 0.53])
    close(new["vars"]["params"]["w"], [1.2, -1.6])


def test_gas_weights_move_by_the_largest_gap_of_either_sign():
    server = {"vars": VARS, "weights": torch.full((4,), 0.25), "round": torch.tensor(4.0)}
    total = {"delta": DELTA, "gap": vector(0.1, -0.6, 0.2), "seen": torch.ones(3), "id": torch.tensor([2, 0, 1])}
    new = GA(step=0.8, rounds=8).server(TASK, server, total, KEY)
    # 0.8 / 4 halved after half of the rounds: 0.1; gaps less their mean are 0.2, -0.5 and 0.3, the largest 0.5
    moved = vector(0.15, 0.31, 0.29, 0.25)
    close(new["weights"], moved / 1.0)
    close(new["round"], 5.0)
    released = GA(step=0.8, rounds=8, variant="released").server(TASK, server, total, KEY)["weights"]
    moved = vector(0.25 - 0.1, 0.25 + 0.1 / 3, 0.25 + 0.1 / 6, 0.25)
    close(released, moved / moved.sum())
    close(new["vars"]["params"]["w"], [1.2, -1.6])


def test_a_lone_gap_is_its_own_mean_and_weights_are_cut_to_one():
    close(centred(vector(0.4, 0.9), vector(1.0, 0.0)), [0.0, 0.0])
    close(centred(vector(0.4, 0.9, 0.2), vector(1.0, 0.0, 1.0)), [0.1, 0.0, -0.1])
    close(on_simplex(vector(1.5, 0.5)), [2 / 3, 1 / 3])
    close(on_simplex(vector(-0.5, 0.5, 0.25)), [0.0, 2 / 3, 1 / 3])
    close(on_simplex(vector(-1.0, 0.0, 0.0, -1.0)), [0.25] * 4)


def test_fedcsas_average_class_is_over_the_classes_that_were_shown():
    close(contribution(vector(2.0, 3.0), vector(4.0, 0.0)), 2 / 4 + 3 / 4)
    close(contribution(vector(2.0, 3.0, 1.0), vector(4.0, 0.0, 2.0)), 2 / 4 + 3 / 3 + 1 / 2)
    close(contribution(vector(1.0, 3.0), vector(1.0, 6.0)), 1 / 1 + 3 / 6)
    close(contribution(vector(1.0, 3.0), vector(0.0, 0.0)), 4.0)
    new = FedCSA().server(
        TASK, {"vars": VARS, "counts": vector(4.0, 0.0)}, {"delta": DELTA, "counts": vector(1, 2)}, KEY
    )
    close(new["counts"], [5.0, 2.0])
    close(new["vars"]["buffers"]["m"], [0.6])


def test_fednovas_steps_and_the_way_of_its_server():
    data = {"n": torch.tensor(6), "rows": torch.arange(8), "round": torch.tensor(0)}
    two, decay = Work(epochs=1, batch=3), StepDecay("step", 1, 0.5)  # a table of 8 has room for three batches
    close(walked(SGD(), two, data), 2.0)
    close(walked(SGD(momentum=1.0), two, data), 1.0 + 2.0)
    close(walked(SGD(momentum=0.5, schedule=decay), two, data), 1.0 + 1.5 * 0.5)
    close(walked(SGD(momentum=0.5, nesterov=True), two, data), 1.5 + 1.75)
    new = FedNova().server(TASK, {"vars": VARS}, {"delta": DELTA, "steps": torch.tensor(3.0)}, KEY)
    close(new["vars"]["params"]["w"], [1.6, -0.8])
    close(new["vars"]["buffers"]["m"], [0.6])


# Tables that servers keep


def test_fedproto_keeps_the_prototypes_of_classes_that_nobody_showed():
    server = {"prototypes": torch.tensor([[1.0, 2.0], [3.0, 4.0], [0.0, 0.0]]), "known": vector(1.0, 1.0, 0.0)}
    total = {"prototypes": torch.tensor([[5.0, 6.0], [7.0, 8.0], [9.0, 10.0]]), "counts": torch.tensor([1, 0, 2])}
    new = FedProto().server(TASK, server, total, KEY)
    close(new["prototypes"], [[5.0, 6.0], [3.0, 4.0], [9.0, 10.0]])
    close(new["known"], [1.0, 1.0, 1.0])


def test_fedproto_answers_with_the_nearest_known_prototype_or_with_the_head():
    vars = {"params": {"project.weight": torch.eye(3)[:2], "head.weight": torch.ones(3, 2)}, "buffers": {}}
    table = torch.tensor([[0.0, 0.0], [1.0, 1.0], [0.9, 0.1]])
    model = {"vars": vars, "prototypes": table, "known": vector(1.0, 1.0, 0.0)}
    x = torch.tensor([[1.0, 0.5, 7.0], [0.2, 0.1, 7.0]])
    logits = FedProto().predict(TASK, model, x).logits
    assert logits.argmax(-1).tolist() == [1, 0] and float(logits[:, 2].max()) < -1e3
    close(logits[0, 1] - logits[0, 0], (1.0 + 0.25) - 0.25)  # of the squared distances
    close(FedProto(inference="head").predict(TASK, model, x).logits, [[1.5] * 3, [0.3] * 3])


def pfl_server():
    heads = {"head.weight": torch.arange(12.0).view(3, 2, 2)}
    return {"vars": {"params": {"w": vector(1.0, -2.0)}, "buffers": {}}, "heads": heads, "seen": vector(1.0, 0.0, 0.0)}


def test_pfls_server_notes_whose_heads_it_holds():
    total = {"delta": {"params": {"w": vector(0.2, 0.4)}, "buffers": {}}, "id": torch.tensor([2])}
    total["head"] = {"head.weight": torch.full((1, 2, 2), 20.0)}
    new = PFL().server(TASK, pfl_server(), total, KEY)
    close(new["seen"], [1.0, 0.0, 1.0])
    close(new["heads"]["head.weight"][2], [[20.0, 20.0], [20.0, 20.0]])
    close(new["vars"]["params"]["w"], [1.2, -1.6])
    mean = PFL(joins="ensemble").download(TASK, new)
    assert set(mean) == {"vars", "mean"}
    close(mean["mean"]["head.weight"], [[10.0, 10.5], [11.0, 11.5]])  # of the clients 0 and 2
    assert PFL(joins="sampled").download(TASK, new) is new
    alone = PFL().download(TASK, pfl_server())["mean"]["head.weight"]
    close(alone, [[0.0, 1.0], [2.0, 3.0]])  # of client 0


def test_a_newcomer_of_pfl_draws_among_those_who_trained_and_others_keep_their_own():
    down, method = pfl_server(), PFL(joins="sampled")
    for draw, who, seen in ((4, 0, (1.0, 0.0, 1.0)), (7, 2, (1.0, 0.0, 1.0)), (7, 2, (0.0, 0.0, 1.0))):
        live = method.deploy(TASK, {**down, "seen": vector(*seen)}, {"head": {}, "draw": torch.tensor(draw)})
        close(live["vars"]["params"]["head.weight"], down["heads"]["head.weight"][who])
    mine = {"head": {"head.weight": torch.ones(2, 2)}, "draw": torch.tensor(0)}
    mine = method.finish_personal(TASK, down, mine, {"n": torch.tensor(4)}, KEY)
    assert int(mine["own"]) == 1
    close(method.deploy(TASK, down, mine)["vars"]["params"]["head.weight"], torch.ones(2, 2))


# Steps of the server's model


def test_steps_of_servers_have_the_rates_of_their_settings():
    start = {"vars": VARS}
    close(PFedMe(beta=0.5).server(TASK, start, {"delta": DELTA}, KEY)["vars"]["params"]["w"], [1.1, -1.8])
    server = {**start, "control": {"w": vector(1.0, 1.0)}, "clients": torch.tensor(4.0)}
    new = SCAFFOLD(server_lr=2.0).server(TASK, server, {"delta": DELTA, "control": {"w": vector(2.0, -2.0)}}, KEY)
    close(new["vars"]["params"]["w"], [1.4, -1.2])
    close(new["vars"]["buffers"]["m"], [0.6])
    close(new["control"]["w"], [1.5, 0.5])
    opt = SGD(lr=0.5, momentum=0.5)
    server = {**start, "opt": {"velocity": {"w": vector(-0.2, 0.0)}}}
    new = FedAvg(server_opt=opt).server(TASK, server, {"delta": DELTA}, KEY)
    close(new["vars"]["params"]["w"], [1.0 + 0.5 * 0.3, -2.0 + 0.5 * 0.4])
    close(new["vars"]["buffers"]["m"], [0.6])
    new = FedATP().server(TASK, {**start, "rates": VARS}, {"delta": DELTA, "rates": DELTA}, KEY)
    close(new["rates"]["params"]["w"], [1.2, -1.6])
    new = FedTTA().server(
        TASK, {**start, "net": VARS, "rounds": torch.tensor(2.0)}, {"delta": DELTA, "net": DELTA}, KEY
    )
    close(new["net"]["params"]["w"], [1.2, -1.6])
    close(new["rounds"], 3.0)
    new = FedSR().server(TASK, {**start, "extra": VARS}, {"delta": DELTA, "extra": DELTA}, KEY)
    close(new["extra"]["params"]["w"], [1.2, -1.6])


def test_harmofls_amplitude_is_the_first_rounds_and_then_follows():
    total, method = {"delta": DELTA, "amplitude": vector(4.0, 8.0)}, HarmoFL(momentum=0.25)
    cases = (([0.0, 0.0], [4.0, 8.0]), ([2.0, 4.0], [2.5, 5.0]), ([0.0, 0.4], [1.0, 2.3]))
    for old, wanted in ((vector(*old), wanted) for old, wanted in cases):
        close(method.server(TASK, {"vars": VARS, "amplitude": old}, total, KEY)["amplitude"], wanted)


def test_elcfs_files_what_arrives_under_its_sender():
    server = {"vars": VARS, "bank": torch.zeros(3, 1, 1, 1, 1), "filled": vector(1.0, 0.0, 0.0)}
    total = {"delta": DELTA, "bank": torch.full((1, 1, 1, 1, 1), 7.0), "id": torch.tensor([2])}
    new = ELCFS().server(IMAGES, server, total, KEY)
    close(new["bank"].flatten(), [0.0, 0.0, 7.0])
    close(new["filled"], [1.0, 0.0, 1.0])


@pytest.mark.parametrize(
    ("method", "wanted"),
    [
        (AM(), {"delta": Mean("n"), "n": Sum()}),
        (AM(partner="clients"), {"delta": Mean("n"), "n": Sum(), "amplitude": Mean("n")}),
        (HeteroFedTTA(), {"personalised": Mean(), "base": Mean()}),
        (HeteroFedTTA(lam=0.0), {"personalised": Mean()}),
        (FedTTA(), {"delta": Mean(), "net": Mean()}),
        (FedTTA(weights="samples"), {"delta": Mean("n"), "net": Mean("n"), "n": Sum()}),
        (PFL(), {"delta": Mean("n"), "n": Sum(), "head": Gather(), "id": Gather()}),
        (FedSR(weights="uniform"), {"delta": Mean(), "extra": Mean(), "n": Sum()}),
    ],
)
def test_messages_have_the_groups_that_the_settings_ask_for(method, wanted):
    assert dict(method.uplink) == wanted


def test_am_takes_the_clients_amplitudes_over():
    new = AM(partner="clients").server(IMAGES, {"vars": VARS}, {"delta": DELTA, "amplitude": vector(3.0)}, KEY)
    close(new["amplitude"], [3.0])
    assert set(AM().init_server(IMAGES, 2, KEY)) == {"vars"}
    assert tree.leaves(AM(partner="clients").init_server(IMAGES, 2, KEY)["amplitude"])[0].shape == (1, 6, 6)
