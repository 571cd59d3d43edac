"""Estimates of accuracy by values that are worked out by hand."""

import math

import pytest
import torch
from torch import vmap

from acclimate.core import rng
from acclimate.ops import estimates as E

T = torch.tensor


def logits(*confidence, answers=None, classes=2):
    """Rows of two classes whose first class has these probabilities; rows of class 1 where answers say so."""
    p = T(confidence)
    rows = torch.stack((p, 1 - p), -1).log()
    return rows if answers is None else torch.where(T(answers)[:, None] == 1, rows.flip(-1), rows)


def all_real(x):
    return torch.ones(len(x), dtype=torch.bool)


def test_the_reference_of_a_calibrated_model():
    """Of 4 rows at 0.75, three are right: the temperature is 1, and everything is known."""
    x, y = logits(0.75, 0.75, 0.75, 0.75), T([0, 0, 0, 1])
    ref = E.reference(x, y, all_real(x), 2)
    assert float(ref["temperature"]) == pytest.approx(1.0)
    assert float(ref["accuracy"]) == pytest.approx(0.75)
    assert float(ref["confidence"]) == pytest.approx(0.75)
    assert ref["prior"].tolist() == [0.75, 0.25]


def test_the_temperature_is_that_of_the_grid_with_the_least_loss():
    """Log-odds of 2 ln 3 where ln 3 is right: the best temperature is 2."""
    x = T([[2 * math.log(3), 0.0]]).repeat(4, 1)
    assert float(E.temperature(x, T([0, 0, 0, 1]), all_real(x))) == pytest.approx(2.0)
    assert float(E.certainty(x, T(2.0))[0]) == pytest.approx(0.75)
    assert E.TEMPERATURES[0] == 0.25 and E.TEMPERATURES[-1] == 4.0


def test_a_model_that_is_right_and_as_sure_as_can_be_has_the_lowest_temperature():
    """Its cross-entropy is zero at every temperature of the grid."""
    assert float(E.temperature(T([[1e4, 0.0], [0.0, 1e4]]), T([0, 1]), T([True, True]))) == 0.25


def test_rows_that_do_not_count_change_nothing():
    x, y = logits(0.9, 0.8, 0.6, 0.7), T([0, 1, 0, 0])
    more = torch.cat((x, torch.full((3, 2), 50.0)))
    real = T([True] * 4 + [False] * 3)
    a, b = E.reference(x, y, all_real(x), 2), E.reference(more, T([0, 1, 0, 0, 1, 1, 1]), real, 2)
    for name in a:
        torch.testing.assert_close(a[name], b[name])


REF = {"temperature": T(1.0), "accuracy": T(0.75), "confidence": T(0.8), "threshold": T(0.7), "prior": T([0.5, 0.5])}


def test_difference_of_confidences_average_threshold_and_mean_confidence():
    x = logits(0.9, 0.6, 0.65, 0.65)  # mean 0.7: it fell by 0.1
    assert float(E.doc(REF, x, all_real(x))) == pytest.approx(0.65)
    assert float(E.atc(REF, x, all_real(x))) == pytest.approx(0.25)
    assert float(E.cbpe(REF, x, all_real(x))) == pytest.approx(0.7)
    some = T([True, True, False, False])
    assert float(E.doc(REF, x, some)) == pytest.approx(0.75 - 0.05)
    assert float(E.atc(REF, x, some)) == pytest.approx(0.5)
    warm = {**REF, "temperature": T(2.0)}
    odds = 3.0  # sqrt(9)
    assert float(E.cbpe(warm, logits(0.9, 0.9), T([True, True]))) == pytest.approx(odds / (1 + odds))


def test_as_many_rows_lie_below_the_threshold_as_are_wrong():
    x, y = logits(0.9, 0.6, 0.8, 0.7), T([0, 0, 1, 1])  # two wrong: 0.6 and 0.7 lie below 0.8
    ref = E.reference(x, y, all_real(x), 2)
    assert float(E.atc(ref, x, all_real(x))) == 0.5
    assert float(ref["threshold"]) == pytest.approx(float(E.certainty(x, ref["temperature"])[2]))
    wrong = E.reference(x, 1 - y * 0, all_real(x), 2)
    assert math.isinf(float(wrong["threshold"])) and float(E.atc(wrong, x, all_real(x))) == 0.0


def test_agreement_is_the_share_of_equal_answers():
    a, b = logits(0.9, 0.9, 0.9, 0.9), logits(0.6, 0.4, 0.7, 0.3)
    assert float(E.agreement(a, b, all_real(a))) == 0.5
    assert float(E.agreement(a, b, T([True, True, True, False]))) == pytest.approx(2 / 3)


def test_aetta_by_hand():
    """Two rows, two passes: one of four passes answers otherwise, so the error is 1/4 before it is weighed."""
    x = logits(0.9, 0.9)
    passes = torch.stack((logits(0.8, 0.7), logits(0.6, 0.3)))
    differs, mean = E.disagreement(x, passes)
    assert differs.tolist() == [0.0, 0.5]
    torch.testing.assert_close(mean[:, 0], T([0.7, 0.5]))
    entropy = -(0.6 * math.log(0.6) + 0.4 * math.log(0.4))
    published = 1 - 0.25 / (entropy / math.log(2)) ** 3
    assert float(E.aetta(differs, mean, all_real(x))) == pytest.approx(published, abs=1e-5)
    prior = T([0.5, 0.5])
    assert float(E.aetta(differs, mean, all_real(x), prior)) == pytest.approx(published, abs=1e-5)
    skewed = T([0.7, 0.3])
    less = -(0.7 * math.log(0.7) + 0.3 * math.log(0.3))  # below the entropy of the mean prediction: no collapse
    assert less < entropy
    assert float(E.aetta(differs, mean, all_real(x), skewed)) == pytest.approx(0.75)
    square = 1 - 0.25 / (entropy / math.log(2)) ** 2
    assert float(E.aetta(differs, mean, all_real(x), None, 2.0)) == pytest.approx(square, abs=1e-5)


def test_disagreement_is_told_row_by_row():
    """Three rows and two classes; the passes answer otherwise to none, one and two of two."""
    passes = torch.stack((logits(0.8, 0.7, 0.4), logits(0.6, 0.3, 0.2)))
    differs, mean = E.disagreement(logits(0.9, 0.9, 0.9), passes)
    assert differs.tolist() == [0.0, 0.5, 1.0]
    torch.testing.assert_close(mean[:, 0], T([0.7, 0.5, 0.3]))


def test_aetta_takes_the_entropy_of_all_classes_however_many_rows_there_are():
    """Three rows that are spread over two classes alike: nothing has collapsed."""
    even = T([[0.5, 0.5]] * 3)
    assert float(E.aetta(T([0.2, 0.3, 0.4]), even, all_real(even))) == pytest.approx(0.7)


def test_aetta_is_never_below_guessing_by_the_prior():
    sure = T([[1.0, 0.0], [1.0, 0.0]])  # collapsed, and half of the passes disagree
    assert float(E.aetta(T([0.5, 0.5]), sure, all_real(sure))) == pytest.approx(0.5)
    assert float(E.aetta(T([0.5, 0.5]), sure, all_real(sure), T([0.9, 0.1]))) == pytest.approx(0.81 + 0.01)
    one = T([1.0, 0.0])  # a client of one class: its mean prediction has no entropy, and that is as it should be
    assert float(E.aetta(T([0.0, 0.0]), sure, all_real(sure), one)) == 1.0


def test_smoothing_mixes_what_came_before():
    assert E.smoothed(T([1.0, 0.5, 0.0])).tolist() == pytest.approx([1.0, 0.8, 0.48])


def test_dropout_keeps_the_mean_and_a_row_has_its_own_draws():
    x = torch.ones(400, 50)
    dropped = E.dropout(x, 0.4, rng.rows(rng.key(1), len(x)))
    assert sorted(set(dropped.flatten().tolist())) == pytest.approx([0.0, 1 / 0.6])
    assert float(dropped.mean()) == pytest.approx(1.0, abs=0.02)
    assert torch.equal(E.dropout(x[:7], 0.4, rng.rows(rng.key(1), 7)), dropped[:7])


def test_clients_without_labels_or_samples_get_nan_and_all_run_under_vmap():
    x = torch.stack((logits(0.9, 0.6, 0.8), logits(0.9, 0.6, 0.8)))
    y, real = T([[0, 1, 0], [0, 1, 0]]), T([[True, True, True], [False, False, False]])
    ref = vmap(lambda a, b, c: E.reference(a, b, c, 2))(x, y, real)
    seen = torch.ones(2, 3, dtype=torch.bool)
    for estimate in (E.doc, E.atc, E.cbpe):
        known, unknown = vmap(estimate)(ref, x, seen).tolist()
        assert math.isfinite(known) and math.isnan(unknown)
        assert torch.isnan(vmap(estimate)(ref, x, ~seen)).all()
    alone = E.reference(x[0], y[0], real[0], 2)
    torch.testing.assert_close(ref["threshold"][0], alone["threshold"])
    differs, mean = torch.zeros(2, 3), x.softmax(-1)
    got = vmap(E.aetta)(differs, mean, seen, ref["prior"])
    assert math.isfinite(got[0]) and math.isnan(got[1])
