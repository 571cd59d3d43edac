"""The guard's arithmetic and the published restart rules, by values that plain Python computes."""

import math
from types import SimpleNamespace

import pytest
import torch

from acclimate.ops import estimates, guarding
from acclimate.ops.restarts import restart, started


def softmax(row, t=1.0):
    e = [math.exp(v / t) for v in row]
    return [v / sum(e) for v in e]


def near(value, expected, by=1e-5):
    return torch.allclose(torch.as_tensor(value, dtype=torch.float64), torch.as_tensor(expected).double(), atol=by)


LOGITS = [[2.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 3.0, 0.0], [9.0, 0.0, 0.0]]
Y, REAL = torch.tensor([0, 1, 0, 2]), torch.tensor([True, True, True, False])


def test_temperatures_have_no_bounds_unless_they_are_given():
    sure = torch.tensor([[9.0, 0.0, 0.0], [0.0, 9.0, 0.0]])
    of = [float(guarding.known(x, torch.tensor([0, 1]), torch.ones(2) > 0)["temperature"]) for x in (sure, -sure)]
    assert of == pytest.approx([0.25, 4.0]), "the least and the largest of the grid"


@pytest.mark.parametrize(("least", "most"), [(0.0, math.inf), (0.0, 1.0), (5.0, math.inf)])
def test_what_is_known_of_a_model_counts_real_examples_alone(least, most):
    def loss(t):
        return -sum(math.log(softmax(row, t)[y]) for row, y in zip(LOGITS[:3], [0, 1, 0], strict=True))

    best = min((0.25 * 2 ** (i / 4) for i in range(17)), key=loss)
    assert best > 1  # a model that is wrong where it is surest is over-confident
    t = min(max(best, least), most)
    found = guarding.known(torch.tensor(LOGITS), Y, REAL, most=most, least=least)
    assert near(found["temperature"], t) and near(found["accuracy"], 2 / 3)
    assert near(found["confidence"], sum(max(softmax(row, t)) for row in LOGITS[:3]) / 3)


def test_without_examples_nothing_is_known_and_the_temperature_is_one():
    found = guarding.known(torch.tensor(LOGITS), Y, torch.zeros(4, dtype=torch.bool))
    assert float(found["temperature"]) == 1.0
    assert math.isnan(found["accuracy"]) and math.isnan(found["confidence"])
    data = guarding.nothing(torch.ones(3, 2))
    assert int(data["n"]) == 0 and data["rows"].tolist() == [0, 1, 2] and data["x"].shape == (3, 2)


def test_probabilities_and_the_difference_of_confidences():
    ref = {"temperature": torch.tensor(2.0), "accuracy": torch.tensor(0.7), "confidence": torch.tensor(0.9)}
    probs = guarding.probabilities(torch.tensor(LOGITS), ref)
    assert near(probs, [softmax(row, 2.0) for row in LOGITS])
    assert near(guarding.accuracy(probs, ref), 0.7 - 0.9 + sum(max(softmax(row, 2.0)) for row in LOGITS) / 4)
    assert float(guarding.accuracy(torch.ones(1, 1), {**ref, "confidence": torch.tensor(0.1)})) == 1.0
    assert float(guarding.accuracy(torch.zeros(1, 1), ref)) == 0.0


def test_class_frequencies_and_rare_answers_count_real_examples_alone():
    counts = [2 + 0.03, 1 + 0.03, 0.03]
    assert near(guarding.prior(Y, REAL, 3), [c / sum(counts) for c in counts])
    logits = torch.eye(3)[torch.tensor([0] * 47 + [1] * 3 + [2])]  # the last does not count
    real = torch.tensor([True] * 50 + [False])
    assert guarding.rare(logits, real).tolist() == [0.0, 0.0, 1.0]
    assert guarding.rare(logits[1:], torch.tensor([True] * 46 + [False] * 4)).tolist() == [0.0, 1.0, 1.0]


def test_kept_examples_are_answered_in_batches_as_large_as_the_streams():
    sizes = []

    def answer(x):
        sizes.append(x.tolist())
        return torch.where(x == 3, torch.nan, 10.0 * x)

    x = torch.arange(1.0, 6.0)
    assert guarding.in_batches(answer, x, 2).tolist() == [10.0, 20.0, 0.0, 40.0, 50.0]
    assert sizes == [[1.0, 2.0], [3.0, 4.0], [5.0, 1.0]]
    sizes.clear()
    assert guarding.in_batches(answer, x, 7).tolist() == [10.0, 20.0, 0.0, 40.0, 50.0]
    assert sizes == [[1.0, 2.0, 3.0, 4.0, 5.0, 1.0, 2.0]]


PLAIN = [[0.6, 0.3, 0.1], [0.2, 0.7, 0.1], [0.5, 0.1, 0.4]]
ADAPTED = [[0.1, 0.8, 0.1], [0.1, 0.8, 0.1], [0.2, 0.3, 0.5]]
GAINS = [(0.3 + 0.8) / 2 - (0.6 + 0.1) / 2, (0.4 + 0.5) / 2 - (0.5 + 0.2) / 2]
"""Rows 0 and 2 flip: from class 0 to 1, and from class 0 to 2."""


FAMILIAR, MANY = {"rare": torch.zeros(3), "confidence": torch.tensor(0.8)}, torch.tensor(0.5)


def test_only_flips_are_evidence():
    gain, squares = guarding.evidence(torch.tensor(PLAIN), torch.tensor(ADAPTED), FAMILIAR, MANY)
    assert near(gain, sum(GAINS)) and near(squares, sum(g * g for g in GAINS))
    same = guarding.evidence(torch.tensor(PLAIN), torch.tensor(PLAIN), FAMILIAR, MANY)
    assert [float(v) for v in same] == [0.0, 0.0]


def test_of_what_seems_a_strangers_sample_the_un_adapted_model_alone_tells():
    def told(weight, plain, adapted, old, new):
        mean = [(1 - weight) * (p + q) / 2 + weight * p for p, q in zip(plain, adapted, strict=True)]
        return mean[new] - mean[old]

    sure = {"rare": torch.tensor([1.0, 0.0, 0.0]), "confidence": torch.tensor(0.8)}
    gains = [told(0.6 / 0.8, PLAIN[0], ADAPTED[0], 0, 1), told(0.5 / 0.8, PLAIN[2], ADAPTED[2], 0, 2)]
    gain, squares = guarding.evidence(torch.tensor(PLAIN), torch.tensor(ADAPTED), sure, MANY)
    assert near(gain, sum(gains)) and near(squares, sum(g * g for g in gains))
    for foreign, much in ((0.05, 0.0), (0.1, 0.0), (0.15, 0.25), (0.3, 1.0)):  # none, a quarter, or all presumed so
        some = [told(much * 0.6 / 0.8, PLAIN[0], ADAPTED[0], 0, 1), told(much * 0.5 / 0.8, PLAIN[2], ADAPTED[2], 0, 2)]
        gain, _ = guarding.evidence(torch.tensor(PLAIN), torch.tensor(ADAPTED), sure, torch.tensor(foreign))
        assert near(gain, sum(some)), foreign
    unsure = {**sure, "confidence": torch.tensor(0.3)}  # both are surer than on kept examples
    gain, _ = guarding.evidence(torch.tensor(PLAIN), torch.tensor(ADAPTED), unsure, MANY)
    assert near(gain, (0.3 - 0.6) + (0.4 - 0.5))
    others = {**sure, "rare": torch.tensor([0.0, 1.0, 1.0])}  # what the adapted model names does not matter
    assert near(guarding.evidence(torch.tensor(PLAIN), torch.tensor(ADAPTED), others, MANY)[0], sum(GAINS))
    unknown = {**sure, "confidence": torch.tensor(math.nan)}
    assert near(guarding.evidence(torch.tensor(PLAIN), torch.tensor(ADAPTED), unknown, MANY)[0], sum(GAINS))


def test_how_many_seem_strangers_is_counted_over_earlier_batches_too():
    home = {"ratio": torch.zeros(3), "level": torch.tensor(0.0)}
    ref = {
        "rare": torch.tensor([1.0, 0.0, 0.0]),
        "confidence": torch.tensor(0.8),
        "prior": torch.ones(3) / 3,
        "home": home,
    }
    before = {
        **dict.fromkeys(guarding.SUMS, torch.tensor(0.0)),
        "foreign": torch.tensor(1.0),
        "samples": torch.tensor(14.0),
    }
    batch = torch.tensor(PLAIN), torch.tensor(ADAPTED)
    sums, seen = guarding.weighed(before, *batch, ref, 0.5)
    share = (2 + 0.5 * 1) / (3 + 0.5 * 14)  # two answers of this batch name class 0
    assert near(seen["foreign"], share) and near(sums["gain"], guarding.evidence(*batch, ref, torch.tensor(share))[0])


def test_the_lead_is_the_difference_of_accuracies_on_examples_that_count():
    plain, adapted = torch.eye(3)[torch.tensor([0, 2, 0, 1])], torch.eye(3)[torch.tensor([0, 1, 1, 2])]
    assert near(guarding.lead(plain, adapted, Y, REAL), (2 - 2) / 3)  # rows 0 and 2 against rows 0 and 1
    assert near(guarding.lead(plain, adapted, torch.tensor([0, 1, 1, 2]), REAL), (3 - 1) / 3)
    assert float(guarding.lead(plain, adapted, Y, torch.zeros(4, dtype=torch.bool))) == 0.0


def test_evidence_adds_up_and_older_batches_count_less():
    prior = [0.5, 0.4, 0.1]
    ref = {"rare": torch.tensor([0.0, 1.0, 1.0]), "prior": torch.tensor(prior), "confidence": torch.tensor(0.5)}
    ref["home"] = {"ratio": torch.tensor([1.0, -2.0, -4.0]), "level": torch.tensor(0.7)}
    before = dict(zip(guarding.SUMS, range(1, 8), strict=True))
    sums = {k: torch.tensor(float(v)) for k, v in before.items()}
    sums, seen = guarding.weighed(sums, torch.tensor(PLAIN), torch.tensor(ADAPTED), ref, 0.5)
    now = {"gain": sum(GAINS), "squares": sum(g * g for g in GAINS), "foreign": 1.0, "surer": 1.8 - 3 * 0.5}
    now |= {"samples": 3.0, "level": 3 * 0.7}
    now["likely"] = sum([1.0, -2.0, -4.0][max(range(3), key=row.__getitem__)] for row in PLAIN)
    assert set(now) == set(sums) and all(near(sums[k], now[k] + 0.5 * before[k]) for k in now)
    samples = 3 + 0.5 * before["samples"]
    for name in ("gain", "foreign", "surer", "likely", "level"):
        assert near(seen[name], (now[name] + 0.5 * before[name]) / samples), name
    assert near(seen["flips"], 2 / 3)
    nan = torch.tensor(math.nan)
    unknown = guarding.weighed(sums, torch.tensor(PLAIN), torch.tensor(ADAPTED), {**ref, "confidence": nan}, 0.0)
    assert float(unknown[1]["surer"]) == 0.0  # without kept examples nobody is surer than there

    def away(rows):
        mean = [sum(column) / 3 for column in zip(*rows, strict=True)]
        return sum(m * math.log(m / p) for m, p in zip(mean, prior, strict=True))

    assert near(seen["nearer"], away(PLAIN) - away(ADAPTED))


def test_divergence_and_entropy_are_in_nats():
    p, q = [0.5, 0.5, 0.0], [0.25, 0.5, 0.25]
    assert near(guarding.divergence(torch.tensor(p), torch.tensor(q)), 0.5 * math.log(2))
    assert near(estimates.entropy(torch.tensor([p, q])), [math.log(2), 1.5 * math.log(2)])


@pytest.mark.parametrize("wrap", [lambda p: {"params": p}, lambda p: {"vars": {"params": p}}, lambda p: {"teacher": p}])
def test_distance_is_relative_to_the_fresh_parameters(wrap):
    fresh = wrap({"a": torch.tensor([3.0, 0.0]), "b": torch.tensor(4.0)})
    state = wrap({"a": torch.tensor([3.0, 1.5]), "b": torch.tensor(2.0)})
    assert near(guarding.moved(state, fresh), math.hypot(1.5, 2.0) / 5.0)
    short, near_it = (wrap({"a": torch.tensor([0.3, v])}) for v in (0.4, 0.0))
    assert near(guarding.moved(near_it, short), 0.4 / 0.5)
    assert float(guarding.moved({"sum": torch.ones(2)}, {"sum": torch.zeros(2)})) == 0.0


def test_nan_is_found_and_removed_and_infinity_stays():
    bad = {"a": torch.tensor([1.0, math.nan]), "b": {"n": torch.tensor([3, 4])}, "c": torch.tensor(-math.inf)}
    assert not guarding.numbers(bad)
    clean = guarding.without_nan(bad)
    assert clean["a"].tolist() == [1.0, 0.0] and clean["b"]["n"].tolist() == [3, 4] and clean["c"] == -math.inf
    assert guarding.numbers(clean) and guarding.numbers({})


TASK = SimpleNamespace(num_classes=4)
EVEN, SURE = torch.full((2, 4), 0.25), torch.tensor([[1.0, 0.0, 0.0, 0.0]] * 2)


def after(rule, batches, every=None):
    """After which of the batches (plain, adapted, estimate) there was a restart, and what was remembered last."""
    state, when = started(TASK, torch.zeros(())), []
    for i, (plain, adapted, estimate) in enumerate(batches):
        again, state = restart(rule, every, state, plain, adapted, torch.tensor(estimate))
        when += [i + 1] if again else []
    return when, state


def test_no_rule_never_restarts_and_a_period_does():
    assert after("none", [(EVEN, SURE, 0.0)] * 7)[0] == []
    assert after("none", [(EVEN, SURE, 0.0)] * 7, every=3)[0] == [3, 6]


def test_sar_restarts_where_the_smoothed_entropy_is_below_a_share_of_ln_c():
    first = next(k for k in range(1, 100) if 0.9**k < 0.029)  # of answers without any entropy
    assert after("sar", [(EVEN, SURE, 0.9)] * (2 * first))[0] == [first, 2 * first]
    assert after("sar", [(EVEN, EVEN, 0.9)] * 100)[0] == []
    _, state = after("sar", [(EVEN, SURE, 0.9), (EVEN, EVEN, 0.9)])
    assert near(state["loss"], (0.9 * 0.9 + 0.1) * math.log(4))


def test_asr_restarts_where_the_mean_prediction_is_narrower_than_its_running_value():
    two = torch.tensor([[0.5, 0.5, 0.0, 0.0]] * 2)
    start = math.log(2.0)  # half of the classes
    assert after("asr", [(EVEN, two, 0.9)])[0] == []  # as narrow as it is no reason
    when, state = after("asr", [(EVEN, EVEN, 0.9)])
    assert when == [] and near(state["spread"], start + 0.15 * (math.log(4) - start))  # no flips: the full rate
    when, state = after("asr", [(EVEN, EVEN, 0.9), (EVEN, two, 0.9)])
    assert when == [2] and near(state["spread"], start + 0.15 * (math.log(4) - start))  # which goes on as it was
    flipped = torch.tensor([[0.1, 0.4, 0.3, 0.2], [0.3, 0.3, 0.2, 0.2]])
    _, state = after("asr", [(EVEN, flipped, 0.9)])
    mean = [0.2, 0.35, 0.25, 0.2]
    entropy = -sum(m * math.log(m) for m in mean)
    assert near(state["spread"], start + 0.15 * 0.5 * (entropy - start))  # half of the answers flip: half the rate
    _, state = after("asr", [(EVEN, flipped[:1].expand(2, -1), 0.9)])
    assert near(state["spread"], start)  # all flip: it stays


def test_aetta_restarts_where_the_estimate_is_low_or_falls():
    assert after("aetta", [(EVEN, EVEN, e) for e in (0.9, 0.19, 0.9)])[0] == [2]
    assert after("aetta", [(EVEN, EVEN, e) for e in [0.8] * 5 + [0.785] * 5])[0] == []
    falls = [0.8] * 5 + [0.77] * 5
    assert after("aetta", [(EVEN, EVEN, e) for e in falls])[0] == [10]
    assert after("aetta", [(EVEN, EVEN, e) for e in [*falls, *[0.5] * 9]])[0] == [10]  # the window fills anew
    assert after("aetta", [(EVEN, EVEN, math.nan)] * 12)[0] == []
