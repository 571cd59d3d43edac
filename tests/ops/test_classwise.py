"""The class-wise estimate of accuracy, by hand and against what a mixture was made of."""

import math

import pytest
import torch
from torch import vmap

from acclimate.ops import classwise as K

T = torch.tensor


def logits(*probabilities):
    """Two classes; the first has these probabilities."""
    p = T(probabilities)
    return torch.stack((p, 1 - p), -1).log()


def test_chances_groups_and_cells_by_hand():
    own, plain = logits(0.8, 0.3), logits(0.55, 0.9)
    torch.testing.assert_close(K.chance(own, T(1.0), plain, T(1.0)), T([(0.8 + 0.55) / 2, (0.7 + 0.1) / 2]))
    assert K.group(own, plain).tolist() == [0, 3]  # class 0, agreed; class 1, where the plain model answers 0
    assert K.cell(plain, T(1.0)).tolist() == [0, 2]  # class 0, unsure; class 0, sure
    assert K.cell(logits(0.2, 0.45), T(1.0)).tolist() == [3, 1]
    assert K.cell(logits(0.9), T(4.0)).tolist() == [2] and K.cell(logits(0.9), T(8.0)).tolist() == [0]


def test_offsets_are_drawn_to_those_of_all_clients():
    rows, gap = K.gaps(T([0.5, 0.5, 0.9]), T([1, 1, 2]), T([1.0, 0.0, 0.0]), T([True, True, False]), 4)
    assert rows.tolist() == [0, 2, 0, 0] and gap.tolist() == [0, 0, 0, 0]
    rows, gap = T([[30.0, 0.0], [10.0, 0.0]]), T([[-15.0, 0.0], [5.0, 0.0]])
    own, everyone = K.offsets(rows, gap)
    assert everyone.tolist() == pytest.approx([-10 / 60, 0.0])
    assert own[:, 0].tolist() == pytest.approx([(-15 - 1 / 6) / 31, (5 - 1 / 6) / 11])


def test_profiles_are_of_the_client_and_of_all_others():
    own, others = K.profiles(T([[300.0, 0.0], [0.0, 8.0], [0.0, 0.0]]))
    assert others.tolist() == [pytest.approx(v) for v in ([1 / 10, 9 / 10], [301 / 302, 1 / 302], [301 / 310, 9 / 310])]
    assert own[0].tolist() == pytest.approx([310 / 400, 90 / 400])
    assert own[1].tolist() == pytest.approx([100 * 301 / 302 / 108, (8 + 100 / 302) / 108])
    torch.testing.assert_close(own[2], others[2])  # nothing is known of it


def test_belonging_finds_the_share_that_a_stream_was_mixed_with():
    own, others = T([0.7, 0.2, 0.1]), T([0.1, 0.3, 0.6])
    for share in (0.25, 0.6):
        seen = 500 * (share * own + (1 - share) * others)
        likely = share * own / (share * own + (1 - share) * others)
        torch.testing.assert_close(K.belonging(own, others, seen), likely, atol=2e-3, rtol=0)
    assert K.belonging(own, others, 40 * own).min() > 0.9 and K.belonging(own, others, 40 * others).max() < 0.3
    some = torch.stack((40 * own, 40 * others, torch.zeros(3)))
    many = vmap(K.belonging, in_dims=(None, None, 0))(own, others, some)
    torch.testing.assert_close(many[0], K.belonging(own, others, 40 * own))
    assert many[2].isnan().all()


def test_streams_that_stand_in_rows_are_each_as_alone():
    own, others = T([[0.7, 0.2, 0.1], [0.2, 0.2, 0.6]]), T([[0.1, 0.3, 0.6], [0.5, 0.4, 0.1]])
    seen = T([[30.0, 20.0, 10.0], [5.0, 10.0, 25.0]])
    alone = [K.belonging(*each) for each in zip(own, others, seen, strict=True)]
    torch.testing.assert_close(K.belonging(own, others, seen), torch.stack(alone))


def test_own_offsets_count_as_far_as_a_row_belongs():
    chances, groups, own, everyone = T([0.5, 0.5, 0.9]), T([0, 1, 1]), T([-0.2, 0.4]), T([0.2, 0.0])
    assert K.classwise(chances, groups, own, everyone, T([1.0, 1.0, 1.0])).tolist() == pytest.approx([0.3, 0.9, 1.0])
    assert K.classwise(chances, groups, own, everyone, T([0.0, 0.5, 1.0])).tolist() == pytest.approx([0.7, 0.7, 1.0])


def test_the_share_is_that_of_greatest_likelihood():
    own, others, seen = T([0.7, 0.2, 0.1]), T([0.1, 0.3, 0.6]), T([10.0, 2.0, 5.0])
    found = K.belonging(own, others, seen)
    share = (seen * found).sum() / seen.sum()
    at = torch.linspace(0.001, 0.999, 999)[:, None]
    best = at[((at * own + (1 - at) * others).log() * seen).sum(-1).argmax()]
    assert float(share) == pytest.approx(float(best), abs=2e-3)
    assert math.isclose(float(found[0]), float(share * 0.7 / (share * 0.7 + (1 - share) * 0.1)), abs_tol=1e-4)
