"""Clipping, noise, and differential privacy: exact where it can be, and in its moments where it is random."""

from fractions import Fraction

import pytest
import torch
from filtered import trained
from torch.func import vmap

from acclimate.core import Arrived, Gather, Mean, Sender, Sum, Task, Worker, message, rng, tree
from acclimate.filters import CentralDP, Clip, LocalDP, Median, Noise, accounting, gaussian
from acclimate.methods import PFL, SCAFFOLD, FedAvg, FedPCL, FedTHE
from acclimate.ops.noise import draw
from support import equal, gap

RULES = {"delta": Mean(), "control": Sum(), "n": Sum()}
SENDER = Sender(RULES, torch.tensor(0), torch.tensor(0))
UP = {"delta": {"w": torch.tensor([3.0, 0.0])}, "control": torch.tensor([4.0]), "n": torch.tensor(12)}


def test_clip_bounds_all_groups_together_or_each_for_itself():
    both = Clip(1.0).client(UP, rng.key(0), SENDER)
    assert both["delta"]["w"].tolist() == pytest.approx([0.6, 0.0]) and both["control"].tolist() == pytest.approx([0.8])
    assert both["n"] is UP["n"]
    each = Clip(2.0, each=True).client(UP, rng.key(0), SENDER)
    assert each["delta"]["w"].tolist() == pytest.approx([2.0, 0.0]) and each["control"].tolist() == pytest.approx([2.0])
    chosen = Clip(1.0, groups=("delta",)).client(UP, rng.key(0), SENDER)
    assert chosen["delta"]["w"].tolist() == [1.0, 0.0] and chosen["control"] is UP["control"]
    assert equal(Clip(5.0).client(UP, rng.key(0), SENDER), UP)


def test_noise_is_added_at_its_own_scale_to_what_p_leaves():
    """FedPCL, below Figure 6: (1 - p) x + e. That e has scale s, and not p s, is what revision 1 had otherwise."""
    up = {"proto": torch.randn(10, 40), "n": torch.tensor(3)}
    nothing = Noise(s=0.0, p=0.0)
    assert equal(nothing.client(up, rng.key(0), SENDER), up)
    assert equal(trained(SCAFFOLD(), (nothing,)).server, trained(SCAFFOLD(), ()).server)
    expected = draw("gaussian", rng.fold(rng.key(0), "proto", 0), up["proto"])
    noisy = Noise("gaussian", s=0.5, p=0.2).client(up, rng.key(0), SENDER)
    torch.testing.assert_close(noisy["proto"], 0.8 * up["proto"] + 0.5 * expected)
    before = Noise("gaussian", s=0.5, p=0.2, revision=1).client(up, rng.key(0), SENDER)
    torch.testing.assert_close(before["proto"], 0.8 * up["proto"] + 0.1 * expected)
    other = Noise(groups=("n",)).client(up, rng.key(0), SENDER)
    assert other["proto"] is up["proto"]


@pytest.mark.parametrize(("kind", "absolute", "std"), [("gaussian", 0.7979, 1.0), ("laplace", 1.0, 2**0.5)])
def test_noise_of_a_message_has_the_scale_that_table_15_names(kind, absolute, std):
    """E|e| is s sqrt(2 / pi) for a Gaussian of deviation s, and s for a Laplace distribution of scale s."""
    sent = Noise(kind, s=0.05, p=0.1).client({"proto": torch.full((500, 400), 2.0)}, rng.key(1), SENDER)["proto"]
    off = sent.double() - 0.9 * 2.0
    assert float(off.abs().mean()) == pytest.approx(0.05 * absolute, rel=0.01)
    assert float(off.std()) == pytest.approx(0.05 * std, rel=0.01)


@pytest.mark.parametrize(("kind", "std", "kurtosis"), [("gaussian", 1.0, 3.0), ("laplace", 2**0.5, 6.0)])
def test_noise_has_the_moments_of_its_distribution(kind, std, kurtosis):
    x = draw(kind, rng.key(5), torch.empty(400_000)).double()
    assert torch.isfinite(x).all() and abs(float(x.mean())) < 0.01
    assert float(x.std()) == pytest.approx(std, rel=0.01)
    assert float((x**4).mean() / x.var() ** 2) == pytest.approx(kurtosis, rel=0.05)


def test_central_dp_clips_withholds_and_adds_noise_to_the_sum():
    dp = CentralDP(clip=1.0, noise=0.5)
    sent = dp.client(UP, rng.key(0), SENDER)
    assert sent["n"].item() == 0 and sent["delta"]["w"].tolist() == pytest.approx([0.6, 0.0])
    assert sent["control"].dtype == sent["delta"]["w"].dtype == torch.float32 and sent["n"].dtype == UP["n"].dtype
    evil = tree.scale(UP, 1e6)
    arrived = dp.arrive({**evil, "n": UP["n"]})
    norm = sum(t.square().sum() for t in tree.leaves(tree.drop(arrived, ("n",)))) ** 0.5
    assert 1 - 1e-5 < norm <= 1.0 and arrived["control"].dtype == torch.float64
    whole = arrived["delta"]["w"] / gaussian.step_of(0.5)
    assert torch.equal(whole, whole.round())  # a multiple of the noise's step
    total = {"delta": torch.zeros(100_000), "control": torch.zeros(100_000), "n": torch.tensor(0)}
    noisy = dp.server(total, rng.key(1), Arrived(RULES, 8, 8))
    assert float(noisy["control"].std()) == pytest.approx(0.5, rel=0.02)
    assert float(noisy["delta"].std()) == pytest.approx(0.5 / 8, rel=0.02)
    assert noisy["n"].item() == 0 and not torch.equal(noisy["delta"] * 8, noisy["control"])


@pytest.mark.parametrize("size", [1, 3, 700])
def test_no_message_is_longer_than_the_clip_to_the_last_bit(size):
    """Of a fine grid, where rounding towards zero takes next to nothing away; squares are added up without an error."""
    for dp in (CentralDP(clip=1.0, noise=1e-3), LocalDP(clip=1.0, noise=1e-3)):
        sent = dp.bounded({"delta": torch.linspace(3.0, 10.0, size)})["delta"]
        assert Fraction(99, 100) < sum(Fraction(x) ** 2 for x in sent.tolist()) <= 1


def test_local_noise_under_a_secret_runs_side_by_side():
    """So it is not looked at number by number, which `vmap` could not do."""
    dp, sender = LocalDP(clip=1.0, noise=0.5), SENDER._replace(secret=bytes(32))
    keys = rng.bits(rng.key(0), 3)
    together = vmap(lambda k: dp.client({"delta": torch.zeros(5)}, k, sender)["delta"])(keys)
    alone = [dp.client({"delta": torch.zeros(5)}, k, sender)["delta"] for k in keys]
    assert torch.equal(together, torch.stack(alone)) and not torch.equal(together[0], together[1])


def test_a_message_that_is_not_finite_counts_as_zeros():
    for odd in (torch.nan, torch.inf):
        sent = CentralDP().bounded({"delta": torch.tensor([1.0, odd]), "other": torch.ones(2)})
        assert sent["delta"].tolist() == sent["other"].tolist() == [0.0, 0.0]


def test_local_dp_adds_noise_at_the_client_and_integers_are_not_spared():
    dp = LocalDP(clip=2.0, noise=0.5, withhold=())
    up = {"delta": torch.zeros(100_000), "n": torch.tensor(0)}
    sent = vmap(lambda k: dp.client({"n": up["n"]}, k, SENDER)["n"])(rng.bits(rng.key(0), 2000))
    assert float(sent.std()) == pytest.approx(1.0, rel=0.06)
    assert float(dp.client(up, rng.key(0), SENDER)["delta"].std()) == pytest.approx(1.0, rel=0.02)


def test_local_dp_sends_the_clients_number_as_it_is_and_nothing_else_under_that_name():
    dp, three = LocalDP(clip=1.0, noise=1e-9), SENDER._replace(client=torch.tensor(3))
    up = {"head": torch.tensor([0.6, 0.0]), "counts": torch.tensor([0, 8]), "id": torch.tensor(3)}
    sent = dp.client(up, rng.key(0), three)
    assert list(sent) == list(up) and sent["id"].dtype == torch.int64 and sent["id"].item() == 3
    rest = torch.cat([sent["head"], sent["counts"]])
    assert float(rest.norm()) == pytest.approx(1.0) and float(sent["counts"][1]) == pytest.approx(8 / 64.36**0.5)
    secret = dp.client({**up, "id": torch.tensor(1234)}, rng.key(0), three)
    assert secret["id"].item() == 3
    for odd in (torch.tensor([5, 6]), torch.tensor(5.0), {"of": torch.tensor(5)}):
        noisy = dp.client({"id": odd}, rng.key(0), three)["id"]
        assert all(t.is_floating_point() and float(t.norm()) == pytest.approx(1.0) for t in tree.leaves(noisy))
    assert LocalDP(withhold=("id",)).client(up, rng.key(0), three)["id"].item() == 0


@pytest.mark.parametrize("backend", ["serial", "vmap"])
@pytest.mark.parametrize(("method", "kept"), [(PFL(weights="uniform"), "heads"), (FedPCL(), "sets")])
def test_methods_that_file_messages_by_their_sender_train_under_local_dp(method, kept, backend):
    plain, private = (
        trained(method, filters, backend, rounds=1, cohort=4).server for filters in ((), (LocalDP(noise=0.5),))
    )
    assert bool(tree.finite(private))
    noisy = [(a != b).flatten(1).any(1) for a, b in zip(*(tree.leaves(s[kept]) for s in (plain, private)), strict=True)]
    assert int(torch.stack(noisy).any(0).sum()) == 4  # the rows of those who took part, and no others


@pytest.mark.parametrize("record", [CentralDP, LocalDP])
def test_noise_under_a_secret_does_not_follow_from_the_seed(record, monkeypatch):
    dp, up = record(secret="NOISE_SECRET_OF_THIS_TEST"), {"delta": torch.zeros(50_000)}

    def noise():
        if record is LocalDP:
            return dp.client(up, rng.key(0), SENDER)["delta"]
        return dp.server(up, rng.key(0), Arrived({"delta": Sum()}, 1, 1))["delta"]

    with pytest.raises(ValueError, match="'NOISE_SECRET_OF_THIS_TEST' must hold the secret of noise"):
        noise()
    monkeypatch.setenv("NOISE_SECRET_OF_THIS_TEST", "one")
    first = noise()
    assert torch.equal(first, noise()) and float(first.std()) == pytest.approx(1.0, rel=0.02)
    monkeypatch.setenv("NOISE_SECRET_OF_THIS_TEST", "two")
    assert abs(float(torch.corrcoef(torch.stack([first, noise()]))[0, 1])) < 0.02
    cards = [record(secret=s).card(RULES, 1, 2, 2) for s in ("seed", "", "X")]
    assert ["simulation" in c["assumes"] for c in cards] == [True, False, False]
    assert ["epsilon" in c for c in cards] == [False, True, True] and cards[0]["protects"].startswith("nothing")


def test_noise_far_below_the_clip_leaves_training_as_it_was():
    plain, private = trained(SCAFFOLD(), ()), trained(SCAFFOLD(), (CentralDP(clip=1e4, noise=1e-9),))
    pairs = zip(tree.leaves(plain.server), tree.leaves(private.server), strict=True)
    assert max(float((a - b).abs().max()) for a, b in pairs) < 1e-4


@pytest.mark.parametrize("method", [FedAvg(weights="uniform"), FedTHE(weights="uniform")])
def test_a_median_of_clients_that_count_alike_trains_under_local_dp_too(method):
    far_below = LocalDP(clip=1e4, noise=1e-9)
    plain = trained(method, (Median(),)).server["vars"]
    for stack in ((Median(), far_below), (far_below, Median())):
        assert gap(trained(method, stack).server["vars"], plain) < 1e-3
    assert gap(trained(method, (), rounds=1).server["vars"], plain) > 1e-2


def test_unbounded_sensitivity_is_refused_with_what_to_change():
    reason = CentralDP().refusal(FedAvg().uplink)
    assert "unbounded" in reason and "'delta' is a mean weighted by 'n'" in reason and "weights=uniform" in reason
    reason = LocalDP().refusal(FedAvg().uplink)
    assert "'delta' is a mean weighted by 'n'" in reason and "zeros or under noise" in reason
    assert "weights=uniform" in reason
    assert CentralDP().refusal(FedAvg(weights="uniform").uplink) is None
    assert "['each'] are gathered" in CentralDP().refusal({"each": Gather()})
    assert LocalDP().refusal({"each": Gather()}) is None


def test_without_the_package_the_promise_is_refused_before_training(monkeypatch):
    pytest.importorskip("dp_accounting")  # otherwise conftest.py has taken the check away
    monkeypatch.setattr(accounting.importlib.util, "find_spec", lambda name: None)
    assert "acclimate[privacy]" in CentralDP(accountant="pld").refusal({"delta": Mean()})
    assert CentralDP().refusal({"delta": Mean()}) is None
    with pytest.raises(ModuleNotFoundError, match="privacy"):
        accounting.epsilon(1.0, 1.0, 1, 1e-5, "pld")


def test_epsilon_is_that_of_dp_accounting_for_the_same_events():
    pytest.importorskip("dp_accounting")
    from dp_accounting import pld, rdp

    event = accounting.event(1.1, 0.2, 10)
    card = CentralDP(noise=1.1, delta=1e-6).card(RULES, rounds=10, cohort=4, clients=20)
    same = rdp.RdpAccountant(orders=list(accounting.ORDERS)).compose(event).get_epsilon(1e-6)
    assert card["epsilon"] == pytest.approx(same, rel=1e-12) and card["sampling_rate"] == 0.2
    tight = CentralDP(noise=1.1, delta=1e-6, accountant="pld").card(RULES, rounds=10, cohort=4, clients=20)
    assert tight["epsilon"] == pld.PLDAccountant().compose(event).get_epsilon(1e-6) < card["epsilon"]


class Tabled(torch.nn.Module):
    """A table that no client changes."""

    def __init__(self):
        super().__init__()
        self.register_buffer("table", torch.linspace(0.0, 1.0, 6))
        self.body, self.head = torch.nn.Linear(6, 4), torch.nn.Linear(4, 3)

    def forward(self, x):
        return self.head(torch.relu(self.body(x + self.table)))


def test_noise_moves_a_table_that_no_client_changes_unless_it_is_named_private():
    task = Task(Tabled(), (6,), 3)
    table, data = torch.linspace(0.0, 1.0, 6), {"x": torch.randn(8, 6), "y": torch.arange(8) % 3}
    data |= {"rows": torch.arange(8), "n": torch.tensor(8), "id": torch.tensor(0), "round": torch.tensor(0)}
    for private, stays in (((), False), (("table",), True)):
        worker = Worker(task, FedAvg(weights="uniform", private=private), (CentralDP(secret="seed"),))
        server, mine = worker.method.init_server(task, 1, rng.key(0)), worker.start(0)
        down = worker.method.download(task, server)
        up, mine, _ = worker.train(down, mine, data)
        part = message.partial(worker.uplink, torch.tensor([0]), worker.read(tree.map(lambda x: x[None], up)))
        total = worker.receive(message.finish(worker.uplink, part, torch.tensor([0])), 0, 1, 1, table, None, ())
        server = worker.method.server(task, server, total, rng.key(1))
        model = worker.method.deploy(task, worker.method.download(task, server), mine)
        assert torch.equal(model["vars"]["buffers"]["table"], table) == stays
    with pytest.raises(ValueError, match="no parameter matches 'tables'"):
        task.select(("tables",))
