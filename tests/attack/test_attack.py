"""A small part of what `make attack` does: malformed messages, and clients that lie."""

import dataclasses
import functools

import bombarded
import bombarded_sums
import malicious
import pytest
import torch
from attacked import Federation, experiment, parcel

from acclimate.core import Filter, tree
from acclimate.filters import CentralDP, Krum, Masked, Median
from acclimate.store import tensors

SMALL = ("model.hidden=8", "data.fraction=0.1")


def trained(attack="", liars=(3,), method=None, rounds=4, filters=(), settings=(), **options):
    tamper = malicious.tamper(attack, liars) if attack else {}
    e = experiment(method or malicious.method_of(attack), *SMALL, *settings, filters=filters)
    f = Federation(e, *([tamper] if tamper else []), **options)
    f.run(rounds)
    return f


@functools.cache
def silenced(method, rounds=4):
    """The same training, in which client 3 sends nothing."""
    f = Federation(
        experiment(method, *SMALL),
        lambda c, request, answer: [] if c == 3 and request.kind == "train" else [answer],
    )
    f.run(rounds)
    return f


def gap(a, b):
    return max(
        float((x.double() - y.double()).abs().max()) for x, y in zip(tree.leaves(a), tree.leaves(b), strict=True)
    )


def test_malformed_messages_neither_end_a_round_nor_move_the_model():
    tally = bombarded.bombard(bombarded.targets(quick=True), 500)
    assert tally.messages >= 500 and tally.first == []
    assert tally.crashes == tally.ends == tally.moves == tally.not_finite == 0
    kinds = {"groups", "shape", "error", "norm", "range", "nonfinite", "stale", "flood"}
    assert kinds <= set(tally.faults), "every check has had its messages"


def test_malformed_answers_in_secure_sums_are_their_senders_fault_alone():
    tally = bombarded.bombard([bombarded_sums.SumTarget()], 60)
    assert (tally.crashes, tally.ends, tally.moves, tally.not_finite) == (0, 0, 0, 0), tally.first
    steps = {word.partition(",")[0] for word in tally.sent}
    assert tally.messages >= 60 and steps == set(bombarded_sums.STEPS) and tally.faults["shape"] > 5


CLAIMS = {
    "weight 2^62": "range",
    "number 10^9": "range",
    "share 1e30": "range",
    "loss 1e38": "range",
    "delta 3e38": "norm",
    "control 1e38": "norm",
}


@pytest.mark.parametrize("attack", CLAIMS)
def test_a_lie_is_a_fault_of_the_liar_and_the_round_goes_on_as_without_it(attack):
    f = trained(attack)
    assert f.state.fault_counts == {"3": {CLAIMS[attack]: 3, "suspended": 1}}
    assert f.engine.suspended().keys() == {3} and f.state.intake["strikes"].tolist() == [0, 0, 0, 3]
    assert f.state.mine["version"].tolist() == [4, 4, 4, 0]
    assert gap(f.state.server, silenced(malicious.method_of(attack)).state.server) == 0


def test_without_the_bounds_the_last_line_finds_who_it_was():
    """No clip: the sum overflows, the server's half fails, and the one without whom it works is left out."""
    f = trained("delta 3e38", clip=0.0)
    assert f.state.fault_counts == {"3": {"error": 3, "suspended": 1}}
    assert "the server: " in f.state.faults[0]["reason"]
    assert gap(f.state.server, silenced("fedavg").state.server) == 0


def test_a_client_that_is_scaled_down_moves_the_model_by_its_bound():
    """Client 3 sends 20 times what it learnt: its share of the mean is that of 5 times the median norm."""
    seen = {}

    def tamper(client, request, answer):
        if request.kind != "train":
            return [answer]
        up = answer.parcels[f"up.{client}"].open()
        up = {**up, "delta": tree.scale(up["delta"], 20.0 if client == 3 else 1.0)}
        seen[client] = up
        return [answer._replace(parcels={f"up.{client}": parcel(up)})]

    f = Federation(experiment("fedavg", *SMALL), tamper)
    before = f.state.server["vars"]
    f.run(1)
    norms = {c: float(tree.norm(tree.map(torch.Tensor.double, up["delta"]))) for c, up in seen.items()}
    bound = 5.0 * sorted(norms.values())[1]
    assert norms[3] > bound
    scaled = {c: tree.scale(up["delta"], bound / norms[c] if c == 3 else 1.0) for c, up in seen.items()}
    n = {c: float(up["n"]) for c, up in seen.items()}
    total = tree.scale(scaled[0], n[0] / sum(n.values()))
    for c in (1, 2, 3):
        total = tree.add(total, scaled[c], n[c] / sum(n.values()))
    assert gap(tree.sub(f.state.server["vars"], before), total) < 1e-6
    kept = f.state.intake["norms"]["delta"]
    assert kept[:4].tolist() == pytest.approx([norms[0], norms[1], norms[2], bound]) and kept[4] == -1


def test_a_large_client_has_no_more_than_its_share():
    """Client 3 has registered most of the examples, and says so: it counts by 3 to the others' 7."""
    f = Federation(experiment("fedavg", *SMALL), max_share=0.3)

    def tamper(client, request, answer):
        if client == 3 and request.kind == "train":
            up = answer.parcels["up.3"].open()
            return [answer._replace(parcels={"up.3": parcel({**up, "n": torch.tensor(10**4)})})]
        return [answer]

    f.engine._intake.examples = torch.tensor([*f.link.train.n[:3].tolist(), 10**4])
    f.link.tamper = tamper
    f.run(1)
    assert f.state.fault_counts == {}
    held = [float(up["n"][0]) for up in f.engine._open.messages.values()]
    rest = sum(held[:3])
    assert held[3] == int(0.3 * rest / 0.7) and held[:3] == f.link.train.n[:3].tolist()


def test_a_flood_is_counted_and_a_checkpoint_does_not_grow():
    calm, flooded = trained(method="fedavg", rounds=8), trained("flood", rounds=8)
    assert flooded.state.fault_counts == {"3": {"error": 9, "flood": 3, "suspended": 5}}
    assert "19,997 more messages" in next(f["reason"] for f in flooded.state.faults if f["kind"] == "flood")
    sizes = [len(tensors.pack(f.state, "t")) for f in (calm, flooded)]
    assert sizes[1] - sizes[0] < 4000


def test_faults_are_kept_up_to_a_number_and_all_are_counted():
    f = trained("weight 2^62", rounds=22, strikes=0)
    assert f.state.fault_counts == {"3": {"range": 22}} and len(f.state.faults) == 20


def test_a_hello_for_the_clients_of_others_is_a_fault_and_honest_nodes_are_used():
    """Node 100 comes first, and says that it hosts everybody."""
    f = trained("hello hijack", liars=(0,))
    assert f.state.fault_counts["0"]["identity"] == 1 and set(f.state.fault_counts) == {"0"}
    assert f.state.mine["version"].tolist() == [0, 4, 4, 4]
    unbound = trained("hello hijack", liars=(0,), bound=False, rounds=1)
    assert unbound.engine.roster.hosts == dict.fromkeys(range(4), 100), "what a fleet without bound keys believes"


def test_a_sum_of_hidden_messages_beyond_its_bound_moves_nothing():
    f = trained("masked + 2^18", method="fedavg", filters=(Masked(),), settings=("method.weights=uniform",))
    start = Federation(experiment("fedavg", "method.weights=uniform", *SMALL)).state.server
    assert f.state.fault_counts == {"-1": {"round": 4}} and gap(f.state.server["vars"], start["vars"]) == 0
    assert f.state.mine["version"].tolist() == [0] * 4
    calm = trained(method="fedavg", filters=(Masked(),), settings=("method.weights=uniform",))
    assert calm.state.fault_counts == {} and calm.state.mine["version"].tolist() == [4] * 4


def test_the_first_bound_of_a_hidden_sum_is_that_of_the_model_and_not_of_the_cohorts_numbers():
    f = Federation(experiment("fedavg", *SMALL, "method.weights=uniform", filters=(Masked(),)))
    down, intake = f.worker.method.download(f.worker.task, f.state.server), f.engine._intake
    model = bombarded.length(down)
    far = {
        "delta": tree.scale(
            tree.map(torch.ones_like, down), 6 * model / bombarded.length(tree.map(torch.ones_like, down))
        )
    }
    with pytest.raises(ArithmeticError, match="of the sum has norm"):
        intake.look_at_sum(far, range(4), {"vars": down, "cohort": torch.arange(10**6)}, 0)


def test_what_others_send_does_not_decide_how_much_of_a_message_counts_under_central_privacy():
    """One client more would move a median, and with it the share of every other message: C would be no sensitivity."""
    f = Federation(experiment("fedavg", "method.weights=uniform", *SMALL, filters=(CentralDP(clip=1.0),)))
    intake, small = f.engine._intake, {"delta": torch.tensor([[0.001]]), "n": torch.zeros(1)}
    ups = {0: small, 1: small, 2: small, 3: {**small, "delta": torch.tensor([[1.0]])}}
    assert intake.far_off(ups) == {} and intake.bounded(ups) == ups
    plain = Federation(experiment("fedavg", *SMALL)).engine._intake
    assert set(plain.far_off(ups)) == {3}, "what the defaults of a network do with it"
    hidden = Federation(experiment("fedavg", "method.weights=uniform", *SMALL, filters=(CentralDP(), Masked())))
    assert hidden.engine._intake.clip == 5.0, "a sum is looked at after its noise was added"


ABSENT = []


@dataclasses.dataclass(frozen=True)
class Told(Filter):
    """Writes down who the server says is absent."""

    def server(self, total, key, arrived):
        ABSENT.append((arrived.answered, arrived.asked, arrived.absent))
        return total


def test_filters_are_told_whose_messages_are_not_in_the_sum():
    ABSENT.clear()
    f = Federation(
        experiment("fedavg", *SMALL, filters=(Told(),)),
        lambda c, request, answer: [] if c in (1, 3) and request.kind == "train" else [answer],
    )
    f.run(1)
    assert ABSENT == [(2, 4, (1, 3))]


def test_a_round_in_which_everybody_lies_changes_nothing_and_the_run_goes_on():
    f = trained("weight 2^62", liars=(0, 1, 2, 3), rounds=5)
    assert f.state.round == 5 and f.state.mine["version"].tolist() == [0] * 4
    assert all(f.state.fault_counts[str(c)] == {"range": 3, "suspended": 2} for c in range(4))


def test_a_method_that_fails_for_another_reason_is_told(monkeypatch):
    f = Federation(experiment("fedavg", *SMALL))

    def broken(*_):
        raise TypeError("a mistake of the author")

    monkeypatch.setattr(type(f.worker.method), "server", broken)
    with pytest.raises(Exception, match="rounds up to 2 had to be left out: a mistake of the author"):
        f.run(5)


def test_a_robust_reducer_bears_flipped_signs():
    more = {"rounds": 3, "settings": ("data.fraction=0.7", "model.hidden=16")}
    flipped = trained("scaled by -4", filters=(Median(),), **more).accuracy()
    ruined = trained("scaled by -4", **more).accuracy()
    assert ruined < 0.3 < flipped - 0.2, (ruined, flipped)


def test_what_the_intake_remembers_goes_on_where_it_stopped():
    """Rounds 0 to 3 at once, and with a checkpoint in between: the same bits."""
    whole = trained("scaled by -4", rounds=4)
    first = trained("scaled by -4", rounds=2)
    second = Federation(experiment("fedavg", *SMALL), malicious.tamper("scaled by -4", (3,)))
    second.state, second.engine.mine, second.engine.intake = first.state, first.state.mine, first.state.intake
    second.link.mine = first.link.mine
    second.run(2)
    assert gap(second.state.intake, whole.state.intake) == 0 and gap(second.state.server, whole.state.server) == 0


def test_krum_goes_on_when_liars_are_suspended():
    """One of five is suspended: four answer, and Krum with one liar needs five."""
    f = trained("weight 2^62", liars=(4,), rounds=5, filters=(Krum(),), settings=("data.clients=5",), strikes=1)
    assert f.state.mine["version"].tolist() == [5, 5, 5, 5, 0]
    assert set(f.state.fault_counts) == {"4"} and f.state.fault_counts["4"]["suspended"] == 4
