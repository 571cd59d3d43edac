"""The guard: which answer goes out, and what becomes of the state, as scripted batches say."""

import math
from dataclasses import dataclass, replace
from types import SimpleNamespace

import pytest
import torch

from acclimate.adapters import Guarded, NoAdapt, Tent
from acclimate.core import Adapter, rng, tree
from acclimate.ops import guarding

C, B = 3, 8
TASK = SimpleNamespace(num_classes=C, head_weight="w")
MODEL = {"vars": {"params": {"w": torch.zeros(())}}}
KEY = rng.key(0)


def predict(model, x, mode="eval", key=None):
    """The un-adapted answers are written into the inputs."""
    return SimpleNamespace(logits=x[:, :C])


@dataclass(frozen=True)
class Scripted(Adapter):
    """Adapted answers are written into the inputs too; the state counts steps from 10."""

    pace: float = 1.0

    def init(self, task, model):
        return {"params": {"w": torch.tensor(10.0)}}

    def step(self, task, predict, model, state, x, key):
        step = torch.where(torch.isnan(x).any(), torch.nan, self.pace)
        return x[:, C : 2 * C], {"params": {"w": state["params"]["w"] + step}}


def answers(classes, sure):
    return torch.nn.functional.one_hot(torch.as_tensor(classes), C) * float(sure)


def batch(plain, adapted, sure=(0.1, 6.0)):
    """Inputs to which both models give these classes, with these logits in favour of them."""
    return torch.cat((answers(plain, sure[0]), answers(adapted, sure[1])), 1)


HOME = [0, 1] * 4
GOOD = batch([2] * 4 + [0, 1] * 2, HOME)
"""Half of the un-adapted answers are wrong, and none of them is sure."""
SAME = batch(HOME, HOME)
BAD = batch(HOME, [1, 0] * 4, sure=(6.0, 0.1))


def held(x=GOOD, y=HOME, n=B):
    return {"x": x, "y": torch.as_tensor(y), "rows": torch.arange(len(x)), "n": torch.tensor(n)}


def live(guard, data=None):
    """The model with its reference, and the first state."""
    model = {**MODEL, "reference": guard.calibrate(TASK, predict, MODEL, data or held())}
    return model, guard.init(TASK, model)


def served(guard, batches, data=None):
    """What `trace` tells of each batch, its logits, and the inner state after it."""
    model, state = live(guard, data)
    out = []
    for x in batches:
        logits, state, seen = guard.trace(TASK, predict, model, state, x, KEY)
        told = {name: float(v[0]) for name, v in seen.items()}
        out.append({**told, "logits": logits, "w": float(state["inner"]["params"]["w"])})
    return out


GUARD = Guarded(Scripted(), validated=0.0, forget=0.0, errors=1.0)
"""Each batch is judged by its own flips."""


def test_adapted_answers_go_out_where_they_are_estimated_to_be_better_and_else_the_others():
    good, same, bad = served(GUARD, [GOOD, SAME, BAD])
    assert good["used"] == 1 and torch.equal(good["logits"], GOOD[:, C:]) and good["flips"] == 0.5
    assert same["used"] == 0 and torch.equal(same["logits"], SAME[:, :C]) and same["harmful"] == 0
    assert bad["used"] == 0 and torch.equal(bad["logits"], BAD[:, :C]) and bad["harmful"] == 1
    assert set(good) - {"logits", "w"} == set(Guarded.traces)
    assert good["estimate"] == pytest.approx(1.0, abs=0.02)  # right on all validation examples
    model, state = live(GUARD)
    logits, after = GUARD.step(TASK, predict, model, state, GOOD, KEY)
    assert torch.equal(logits, GOOD[:, C:]) and float(after["inner"]["params"]["w"]) == 11.0


@pytest.mark.parametrize(
    ("policy", "ends", "then"),
    [
        ("warn", 13.0, 14.0),
        ("skip", 12.0, 13.0),
        ("restore", 11.0, 12.0),
        ("reset", 10.0, 11.0),
        ("freeze", 12.0, 12.0),
    ],
)
def test_policies_say_what_becomes_of_a_harmful_state(policy, ends, then):
    good, same, bad, last = served(replace(GUARD, policy=policy), [GOOD, SAME, BAD, GOOD])
    assert (good["w"], same["w"], bad["w"], last["w"]) == (11.0, 12.0, ends, then)
    assert last["used"] == (policy != "freeze")
    assert torch.equal(last["logits"], GOOD[:, :C] if policy == "freeze" else GOOD[:, C:])


@pytest.mark.parametrize("policy", ["warn", "skip", "restore", "reset", "freeze"])
def test_nan_never_stays_and_the_answer_is_the_un_adapted_one(policy):
    broken = torch.cat((SAME[:, :C], torch.full((B, C), torch.nan)), 1)
    first, bad, last = served(replace(GUARD, policy=policy), [GOOD, broken, GOOD])
    assert first["used"] == 1 and bad["used"] == 0 and bad["harmful"] == 1
    assert torch.equal(bad["logits"], SAME[:, :C]) and bad["w"] == 10.0
    assert last["used"] == (policy != "freeze") and last["w"] == (10.0 if policy == "freeze" else 11.0)


def test_an_input_that_is_not_a_number_leaves_nothing_behind():
    all_nan = torch.full((B, 2 * C), torch.nan)
    model, state = live(GUARD)
    _, state = GUARD.step(TASK, predict, model, state, all_nan, KEY)
    assert all(bool(torch.isfinite(v).all()) for v in tree.leaves({k: v for k, v in state.items() if k != "rule"}))
    assert served(replace(GUARD, forget=0.5), [all_nan, GOOD])[1]["used"] == 1


@dataclass(frozen=True)
class Prepared(Scripted):
    transductive = True

    def prepare(self, task, predict, model, state, x, real, key):
        return {"params": {"w": torch.where(x.mean() < 0, torch.nan, x.mean())}, "seen": real.sum()}


def test_the_adapter_inside_prepares_and_nan_does_not_pass():
    guard = replace(GUARD, adapter=Prepared())
    assert guard.transductive and not GUARD.transductive
    model, state = live(guard)
    real = torch.ones(B, dtype=torch.bool)
    state = guard.prepare(TASK, predict, model, state, torch.full((B, 2), 7.0), real, KEY)
    assert all(float(state[s]["params"]["w"]) == 7.0 and int(state[s]["seen"]) == B for s in ("inner", "fresh", "good"))
    state = guard.prepare(TASK, predict, model, state, torch.full((B, 2), -7.0), real, KEY)
    assert float(state["fresh"]["params"]["w"]) == 0.0


def test_a_state_too_far_from_the_deployed_weights_is_harmful():
    near, far = (served(replace(GUARD, adapter=Scripted(pace=p)), [GOOD])[0] for p in (5.0, 5.5))
    assert near["moved"] == pytest.approx(0.5) and near["used"] == 1 and near["w"] == 15.0
    assert far["moved"] == pytest.approx(0.55) and far["used"] == 0 and far["w"] == 10.0


def test_margin_and_standard_errors_are_the_bar():
    model, state = live(GUARD)
    kept = GUARD.step(TASK, predict, model, state, GOOD, KEY)[1]["sums"]
    (seen,) = served(GUARD, [GOOD])
    noise = float(kept["squares"].sqrt() / kept["samples"])
    over = (seen["gain"] - 0.01) / noise
    assert served(replace(GUARD, margin=0.0, errors=over), [GOOD])[0]["used"] == 1
    assert served(replace(GUARD, margin=0.02, errors=over), [GOOD])[0]["used"] == 0


def test_a_lead_on_validation_examples_counts_and_fades_with_foreign_answers():
    (without,), (lead,) = served(GUARD, [GOOD]), served(replace(GUARD, validated=0.5), [GOOD])
    assert lead["gain"] - without["gain"] == pytest.approx(0.5 * (1.0 - 0.5))  # half of the plain answers are right
    strangers = batch([1] * 5 + [0] * 3, HOME)
    data = held(batch([0] * B, HOME), HOME)  # the un-adapted model never answers 1 at home
    guard = replace(GUARD, foreign=1.0)
    (without,), (lead,) = served(guard, [strangers], data), served(replace(guard, validated=0.5), [strangers], data)
    assert without["foreign"] == 5 / 8
    assert lead["gain"] - without["gain"] == pytest.approx(0.5 * 0.5 * (1 - 5 / 8) / (1 - 0.2))


def test_a_stream_that_is_not_this_clients_is_answered_un_adapted():
    data = held(batch([0] * B, HOME), HOME)
    strangers = batch([1] * 2 + [0] * 6, [0] * 2 + [1] * 6)
    assert served(replace(GUARD, foreign=0.25), [strangers], data)[0]["used"] == 1
    (seen,) = served(replace(GUARD, foreign=0.24), [strangers], data)
    assert seen["used"] == 0 and seen["foreign"] == 0.25 and seen["harmful"] == 0
    fit = (6 * math.log(3 * 9 / 11) + 2 * math.log(3 / 11)) / 8  # eight answers of class 0 at home, one more of each
    level = math.log(3 * 8 / 10)  # each by the seven others
    assert seen["likely"] == pytest.approx(fit, rel=1e-5)
    for share, used in ((fit / level - 0.01, 1), (fit / level + 0.01, 0)):
        assert served(replace(GUARD, likely=share), [strangers], data)[0]["used"] == used


def test_where_all_classes_are_a_clients_own_no_answer_is_foreign():
    logits = torch.eye(4)[torch.arange(64) % 4]
    found = guarding.home(logits, torch.ones(64, dtype=torch.bool))
    assert found["ratio"].tolist() == [0.0] * 4
    assert float(found["level"]) == pytest.approx(math.log(4 * 16 / 67))
    assert float(guarding.least_likely(found["level"], 0.15)) == pytest.approx(math.log(64 / 67) - 0.3)
    none = guarding.home(logits, torch.zeros(64, dtype=torch.bool))
    assert none["ratio"].tolist() == [0.0] * 4 and float(none["level"]) == 0.0


def test_a_model_that_is_surer_than_at_home_has_not_met_this_clients_stream():
    surer = batch([2] * 4 + [0, 1] * 2, HOME, sure=(0.4, 6.0))
    loose, tight = (served(replace(GUARD, surer=s), [surer])[0] for s in (1.0, 0.05))
    assert loose["used"] == 1 and tight["used"] == 0 and tight["surer"] == loose["surer"] > 0.05
    assert served(replace(GUARD, surer=loose["surer"]), [surer])[0]["used"] == 1, "as sure as it may be"


def test_a_client_with_two_classes_does_not_look_collapsed():
    guard = replace(GUARD, bonus=0.01)
    spread = batch([2, 2, 2, 0, 1, 2, 0, 1], HOME)
    (seen,) = served(guard, [spread])
    assert seen["nearer"] > 0 and seen["used"] == 1  # two classes are this client's own
    all_three = held(batch([0, 1, 2, 0, 1, 2, 0, 1], [0, 1, 2, 0, 1, 2, 0, 1]), [0, 1, 2, 0, 1, 2, 0, 1])
    (other,) = served(guard, [spread], all_three)
    assert other["nearer"] < seen["nearer"]


@pytest.mark.parametrize("known", [True, False])
def test_without_validation_examples_the_un_adapted_model_answers(known):
    model, state = live(GUARD, held(n=0))
    model = model if known else MODEL
    for x, w in ((GOOD, 11.0), (BAD, 12.0)):
        logits, state, seen = GUARD.trace(TASK, predict, model, state, x, KEY)
        assert torch.equal(logits, x[:, :C]) and float(state["inner"]["params"]["w"]) == w
        assert not seen["used"].any() and not seen["harmful"].any()
    _, state = GUARD.step(TASK, predict, model, state, torch.full((B, 2 * C), torch.nan), KEY)
    assert float(state["inner"]["params"]["w"]) == 10.0  # the state is judged alone


def test_validation_examples_beyond_a_clients_own_do_not_count():
    some = held(torch.cat((GOOD, BAD)), HOME + [2] * B, n=B)
    few, many = (replace(GUARD, kept=k).calibrate(TASK, predict, MODEL, some) for k in (4, 32))
    assert few["real"].sum() == 4 and many["real"].sum() == B and len(many["x"]) == 32
    assert many["prior"][2] < 0.02
    (alone,), (beyond,) = (served(replace(GUARD, kept=k), [GOOD], some) for k in (B, 32))
    assert beyond["estimate"] == pytest.approx(alone["estimate"]) and beyond["gain"] == pytest.approx(alone["gain"])


def test_periods_and_published_rules_start_the_adapter_afresh():
    assert [s["w"] for s in served(replace(GUARD, every=2), [SAME] * 5)] == [11.0, 10.0, 11.0, 10.0, 11.0]
    one = batch([0] * B, [0] * B)
    assert [s["w"] for s in served(replace(GUARD, rule="asr"), [SAME, one])] == [11.0, 10.0]
    sharp = served(replace(GUARD, rule="sar", distance=100.0), [batch(HOME, HOME, sure=(9.0, 30.0))] * 34)
    assert [s["w"] for s in sharp[-3:]] == [42.0, 43.0, 10.0]
    wrong_at_home = held(batch(HOME, [2] * B), HOME)  # adapted answers are all wrong there: the estimate is low
    assert [s["w"] for s in served(replace(GUARD, rule="aetta", policy="warn"), [SAME], wrong_at_home)] == [10.0]
    assert [s["w"] for s in served(replace(GUARD, policy="warn"), [SAME], wrong_at_home)] == [11.0]


def test_settings_are_checked_and_guards_are_not_nested():
    for change, says in (
        ({"margin": -0.1}, "margin=-0.1"),
        ({"foreign": 0.0}, "foreign=0.0"),
        ({"surer": 2.0}, "surer=2.0"),
        ({"every": 0}, "every=0"),
        ({"kept": 0}, "kept=0"),
        ({"familiar": 0.5, "foreign": 0.4}, "familiar=0.5 must be less than foreign=0.4"),
        ({"familiar": 0.4, "foreign": 0.4}, "familiar=0.4 must be less than foreign=0.4"),
        ({"policy": "pray"}, "policy='pray'"),
        ({"rule": "cotta"}, "rule='cotta'"),
        ({"adapter": Guarded(NoAdapt())}, "must be an adapter without a guard"),
    ):
        with pytest.raises(ValueError, match=says):
            Guarded(**{"adapter": Tent(), **change})


def test_what_the_adapter_inside_needs_the_guard_needs():
    @dataclass(frozen=True)
    class Picky(Adapter):
        requires = ("memory",)

    assert Guarded(Picky()).requires == ("memory",)
    assert Guarded(Picky()).refusal(TASK, MODEL) == "Picky needs memory in the deployed model, which has only vars"
    assert Guarded(Picky()).refusal(TASK, {**MODEL, "memory": {}}) is None


def test_answers_that_are_infinite_do_not_go_out_and_their_state_does_not_stay():
    infinite = torch.cat((SAME[:, :C], answers(HOME, 1.0) / 0.0), 1).nan_to_num(0.0, posinf=torch.inf)
    _, bad = served(replace(GUARD, policy="warn"), [GOOD, infinite])
    assert bad["used"] == 0 and bad["harmful"] == 1 and bad["w"] == 10.0 and torch.equal(bad["logits"], SAME[:, :C])


def test_nearness_to_the_clients_own_classes_is_a_bonus():
    (without,), (bonus,) = (served(replace(GUARD, bonus=b), [GOOD]) for b in (0.0, 0.5))
    assert bonus["gain"] - without["gain"] == pytest.approx(0.5 * min(without["nearer"], 1.0))
    assert without["nearer"] > 0.1


@dataclass(frozen=True)
class Collapsing(Scripted):
    """Answers 2 whatever comes, once its state has moved."""

    def step(self, task, predict, model, state, x, key):
        logits, new = super().step(task, predict, model, state, x, key)
        return torch.where(state["params"]["w"] > 10.5, answers([2] * len(x), 6.0), logits), new


def test_validation_examples_are_answered_by_the_state_that_gave_the_answer():
    guard = replace(GUARD, adapter=Collapsing(), policy="warn")
    without, lead = (served(replace(guard, validated=v), [GOOD, GOOD]) for v in (0.0, 1.0))
    assert [b["gain"] - a["gain"] for a, b in zip(without, lead, strict=True)] == pytest.approx([0.5, -0.5])
    assert [s["used"] for s in lead] == [1, 0]


def test_temperatures_are_bounded_on_the_safe_side():
    wrong = batch([2] * B, HOME, sure=(6.0, 1.0))  # surely wrong, and always right
    (seen,) = served(replace(GUARD, bonus=0.0), [wrong], held(wrong))
    p, q = math.exp(6.0), math.exp(1.0 / 0.7)
    assert seen["gain"] == pytest.approx(((1 - p) / (p + 2) + (q - 1) / (q + 2)) / 2, abs=1e-5)
