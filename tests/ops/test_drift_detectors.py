"""Drift detectors on traces whose change points are known, and on traces without any."""

import math
import random

import pytest

from acclimate.ops.drift_detectors import ADWIN, PageHinkley, alarms

DETECTORS = [ADWIN, PageHinkley]


def noise(count, middle, seed, width=0.1):
    draw = random.Random(seed)
    return [min(max(draw.gauss(middle, width), 0.0), 1.0) for _ in range(count)]


@pytest.mark.parametrize("make", DETECTORS)
@pytest.mark.parametrize(("old", "new"), [(0.9, 0.5), (0.4, 0.8)])
def test_a_change_is_found_soon_after_it_comes(make, old, new):
    for seed in range(5):
        found = alarms(make(), noise(300, old, seed) + noise(200, new, seed + 100))
        assert found and 300 < found[0] <= 340


@pytest.mark.parametrize("make", DETECTORS)
def test_alarms_are_rare_where_nothing_changes(make):
    assert sum(len(alarms(make(), noise(1000, 0.7, seed, 0.2))) for seed in range(20)) <= 1


@pytest.mark.parametrize("make", DETECTORS)
def test_what_came_before_is_the_reference(make):
    assert alarms(make(), noise(60, 0.3, 1), before=noise(60, 0.9, 2))[0] <= 40
    assert alarms(make(), noise(60, 0.9, 1), before=noise(60, 0.9, 2)) == []
    assert alarms(make(), noise(60, 0.3, 1)) == []  # it knows of nothing else


def test_adwin_forgets_the_past_and_needs_little_memory():
    detector = ADWIN()
    alarms(detector, noise(5000, 0.9, 0) + noise(100, 0.2, 1))
    assert detector.width <= 200
    assert len(detector.buckets) < 60
    window = [0.9] * 37
    steady = ADWIN()
    alarms(steady, window)
    assert steady.width == 37 and sum(b.sum for b in steady.buckets) == pytest.approx(37 * 0.9)
    assert all(a.count >= b.count for a, b in zip(steady.buckets, steady.buckets[1:], strict=False))


def test_adwin_makes_one_of_the_two_oldest_buckets_of_a_size():
    detector = ADWIN(most=2)
    sizes = []
    for _ in range(7):
        alarms(detector, [0.5])
        sizes.append([b.count for b in detector.buckets])
    assert sizes == [[1], [1, 1], [2, 1], [2, 1, 1], [2, 2, 1], [2, 2, 1, 1], [4, 2, 1]]


def test_adwin_cuts_at_the_bound_of_the_paper():
    """16 numbers, 8 at 0 and 8 at 1: variance 1/4, m = 4, of other heights it scales."""
    level = math.log(2 * math.log(16) / 0.5)
    root, rest = math.sqrt(2 / 4 * 0.25 * level), 2 / (3 * 4) * level
    height = rest / (1 - root)  # numbers of that height have a bound as high
    assert alarms(ADWIN(delta=0.5, clock=16, most=16), [0.0] * 8 + [height * 1.01] * 8) == [16]
    assert alarms(ADWIN(delta=0.5, clock=16, most=16), [0.0] * 8 + [height * 0.99] * 8) == []


def test_page_hinkley_by_hand():
    """Ten zeros, then ones: means 1/11, 2/12, ...; up = sum of (1 - mean - 0.1) over the ones, from its least value."""
    detector, up, found = PageHinkley(delta=0.1, threshold=2.0, least=5), 0.0, None
    for k in range(1, 10):
        up += 1 - k / (10 + k) - 0.1
        if up > 2.0:
            found = 10 + k
            break
    assert alarms(detector, [0.0] * 10 + [1.0] * 10)[0] == found == 13
    assert detector.count == 7  # it began afresh after the alarm


def test_page_hinkley_waits_for_so_many_numbers_and_no_longer():
    """The sum has moved by 0.5 with the second number, 0.83 with the third and 1.08 with the fourth."""
    for least, found in ((2, 3), (3, 3), (4, 4), (5, 5)):
        assert alarms(PageHinkley(delta=0.0, threshold=0.6, least=least), [0.0, 1.0, 1.0, 1.0, 1.0])[0] == found


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: ADWIN(delta=0.0), "ADWIN: delta=0.0"),
        (lambda: PageHinkley(threshold=0.0), "threshold=0.0"),
        (lambda: ADWIN().update(math.nan), "x=nan must be a finite number"),
        (lambda: PageHinkley().update(math.inf), "x=inf must be a finite number"),
    ],
)
def test_bad_input_is_refused_by_name(make, says):
    with pytest.raises(ValueError, match=says):
        make()
