"""What holds for every filter: both backends agree, order is checked, nothing is written in place, records pickle."""

import copy
import pickle
from types import SimpleNamespace

import pytest
import torch
from filtered import trained

from acclimate import filters as f
from acclimate.core import Filter, Gather, Mean, Sender, Sum, Worker, check, rng, tree
from acclimate.core.filter import refusal
from acclimate.core.limits import ExampleCount, Limit, Whole
from acclimate.core.worker import COHORT
from acclimate.methods import SCAFFOLD, FedAvg, FedProto, FedTHE, Local
from support import equal, gap, shards, small, task

STACKS: dict[str, tuple[Filter, ...]] = {
    "median": (f.Median(),),
    "trimmed": (f.TrimmedMean(),),
    "krum": (f.Krum(),),
    "multi-krum": (f.Krum(select=2),),
    "fp16": (f.FP16(),),
    "int8": (f.Int8(),),
    "top-k": (f.TopK(),),
    "clip": (f.Clip(0.5),),
    "noise": (f.Noise(),),
    "central-dp": (f.CentralDP(noise=0.1),),
    "local-dp": (f.LocalDP(noise=0.1),),
    "masked": (f.Masked(),),
    "clip, median, top-k, int8": (f.Clip(), f.Median(), f.TopK(), f.Int8()),
    "central-dp, masked": (f.CentralDP(noise=0.1), f.Masked()),
    "median, local-dp": (f.Median(), f.LocalDP(noise=0.1)),
}
METHODS = (FedAvg(), FedTHE(weights="uniform"), SCAFFOLD())  # DP takes the last two: clients count the same in them
DP = {name for name, stack in STACKS.items() if any(isinstance(x, f.CentralDP | f.LocalDP) for x in stack)}
RULES = {"delta": Mean("n"), "n": Sum()}


@pytest.mark.parametrize("name", STACKS)
def test_both_backends_agree(name):
    method = METHODS[list(STACKS).index(name) % 2 + (name in DP)]
    serial, many = trained(method, STACKS[name]), trained(method, STACKS[name], "vmap")
    assert serial.cost == many.cost
    if "int8" not in name:
        assert gap(serial.server, many.server) < 1e-5 and gap(serial.mine, many.mine) < 1e-5
        return
    # rounding may take a number to the next level; then it is a level off, and seldom
    a, b = (torch.cat([x.flatten() for x in tree.leaves(state.server)]) for state in (serial, many))
    off = (a - b).abs() > 1e-5
    assert off.double().mean() < 0.005 and gap(serial.server, many.server) < 1e-4


def test_no_filter_and_the_base_record_change_nothing():
    assert equal(trained(FedAvg(), ()).server, trained(FedAvg(), (Filter(),)).server)


@pytest.mark.parametrize("name", STACKS)
def test_records_pickle_and_leave_their_arguments_alone(name):
    for one in STACKS[name]:
        assert pickle.loads(pickle.dumps(one)) == one
        up = {"delta": {"w": torch.randn(6, 4), "b": torch.randn(3)}, "n": torch.tensor(12)}
        before = copy.deepcopy(up)
        sender = Sender(RULES, torch.tensor(1), torch.tensor(0), torch.arange(3))
        sent = one.client(up, rng.key(0), sender)
        assert equal(up, before)
        again = one.client(up, rng.key(0), sender)
        assert equal(sent, again)


def test_orders_that_cannot_be_are_refused_by_name():
    uniform, ok = {"delta": Mean()}, {"delta": Mean("n"), "n": Sum()}
    assert refusal((f.Clip(), f.Median(), f.Int8()), ok) is None
    assert refusal((f.CentralDP(), f.FP16()), uniform) is None
    assert "Int8: it changes the form of messages, so Clip must come before it" in refusal((f.Int8(), f.Clip()), ok)
    assert "Masked: it must be the last filter" in refusal((f.Masked(), f.FP16()), ok)
    assert "FP16: it changes the form of messages, so Masked must come" in refusal((f.FP16(), f.Masked()), ok)
    assert "Masked: ['delta', 'n'] are gathered" in refusal((f.Median(), f.Masked()), ok)
    assert "CentralDP: it relies on sums, but a later filter gathers" in refusal((f.CentralDP(), f.Median()), uniform)
    assert "Clip: groups=['delat'] are not in the message" in refusal((f.Clip(groups=("delat",)),), ok)
    assert "Median: the message has no Sum or Mean" in refusal((f.Median(),), {"each": Gather()})
    assert "Masked: the method sends nothing" in refusal((f.Masked(),), Local().uplink)


def test_a_robust_reducer_does_not_hide_weights_from_local_dp():
    weighted = FedAvg().uplink
    for robust in (f.Median(), f.TrimmedMean(), f.Krum()):
        reason = refusal((robust, f.LocalDP()), weighted)
        assert reason.startswith("LocalDP: 'delta' is a mean weighted by 'n'") and "weights=uniform" in reason
        assert refusal((f.LocalDP(), robust), weighted) == reason
        assert refusal((robust, f.LocalDP()), FedAvg(weights="uniform").uplink) is None
    assert "'prototypes' is a mean weighted by 'counts'" in refusal((f.Median(), f.LocalDP()), FedProto().uplink)
    assert "CentralDP: ['delta', 'n'] are gathered" in refusal((f.Median(), f.CentralDP()), weighted)


def test_only_a_filter_that_hides_makes_the_server_send_the_cohort():
    down, cohort = {"vars": {"w": torch.ones(2)}}, torch.tensor([1, 4])
    assert Worker(task(), FedAvg(), (f.Median(),)).outgoing(down, cohort) is down
    assert torch.equal(Worker(task(), FedAvg(), (f.Masked(),)).outgoing(down, cohort)[COHORT], cohort)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: f.TrimmedMean(0.5), "share=0.5 must be below 0.5"),
        (lambda: f.TopK(share=0.0), "share=0.0 must be above 0"),
        (lambda: f.Int8(rounding="up"), "rounding='up' must be one of"),
        (lambda: f.Clip(0.0), "norm=0.0 must be a finite number above 0"),
        (lambda: f.Noise(p=1.5), "p=1.5 must be between 0.0 and 1.0"),
        (lambda: f.Noise(kind="pink"), "kind='pink' must be one of"),
        (lambda: f.CentralDP(delta=0.0), "CentralDP: delta=0.0 must be above 0"),
        (lambda: f.LocalDP(noise=1e-310), "LocalDP: noise=1e-310 times clip=1.0, .* between 1e-30 and 1e\\+30"),
        (lambda: f.CentralDP(clip=1e39), r"noise=1.0 times clip=1e\+39, .* between 1e-30 and 1e\+30"),
        (lambda: f.Krum(select=0), "select=0 must be"),
        (lambda: f.Masked(bits=31), "bits=31 must be between 0 and 30"),
    ],
)
def test_bad_settings_are_named(make, words):
    with pytest.raises(ValueError, match=words):
        make()


@pytest.mark.parametrize(
    ("value", "bounds", "words"),
    [
        (2.0, (), "a whole number$"),
        ("2", (), "a whole number$"),
        (None, (), "a whole number$"),
        (True, (0, 3), "a whole number between 0 and 3$"),
        (-1, (0,), "a whole number of at least 0$"),
        (float("nan"), (0,), "a whole number of at least 0$"),
        (4, (None, 3), "a whole number of at most 3$"),
        (4, (0, 3), "a whole number between 0 and 3$"),
    ],
)
def test_what_is_no_whole_number_in_range_is_named(value, bounds, words):
    with pytest.raises(ValueError, match=f"^SimpleNamespace: seed={value!r} must be {words}"):
        check.whole(SimpleNamespace(seed=value), "seed", *bounds)


@pytest.mark.parametrize("value", [0, 3, torch.arange(4).numpy()[3]])
def test_whole_numbers_in_range_pass_both_ends_included(value):
    record = SimpleNamespace(seed=value)
    for bounds in ((), (0,), (None, 3), (0, 3), (value, value)):
        check.whole(record, "seed", *bounds)
    for bounds in ((value + 1,), (None, value - 1)):  # the next ones on either side do not pass
        with pytest.raises(ValueError, match="seed=.* must be a whole number of at (least|most)"):
            check.whole(record, "seed", *bounds)


@pytest.mark.parametrize("name", ["median", "int8", "top-k", "fp16"])
def test_bytes_are_those_of_what_is_sent(name):
    worker = Worker(task("mlp-dropout"), small(FedAvg()), STACKS[name])
    data, down = shards(), worker.method.download(worker.task, worker.method.init_server(worker.task, 6, rng.key(0)))
    own = data.tree(data.own(0), data.n[0], torch.tensor(0), torch.tensor(0), ragged=False)
    up, _, _ = worker.train(down, {}, own)
    assert trained(FedAvg(), STACKS[name], rounds=1).cost["up"] == 5 * tree.nbytes(up)


def test_limits_of_groups_with_noise_hold_for_whole_numbers_alone():
    known = {"delta": Limit(), "n": ExampleCount()}
    whole = {g: Whole(limit) for g, limit in known.items()}
    assert f.Noise().limits(known) == whole
    assert f.Noise(groups=("n",)).limits(known) == {"delta": known["delta"], "n": whole["n"]}
