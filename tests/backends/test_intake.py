"""What a server that hears of clients by a network makes of their messages: bounds of norms, and shares."""

from types import SimpleNamespace

import pytest
import torch

from acclimate.backends.flower.intake import Intake
from acclimate.core import Mean, Sum
from acclimate.core.limits import COMMON, ExampleCount, Level, Whole, pooled

GROUPS = {"delta": Mean("n"), "prototypes": Mean("counts"), "n": Sum(), "counts": Sum()}


def intake(limits=COMMON, uplink=GROUPS, clip=5.0, max_share=0.5):
    method = SimpleNamespace(uplink=uplink)
    return Intake(SimpleNamespace(filters=(), limits=limits, method=method), torch.full((4,), 100), clip, max_share)


def message(size, n=10.0):
    each = {g: torch.full((1, 4), size / 2) for g in ("delta", "prototypes")}
    return {**each, "n": torch.tensor([n]), "counts": torch.full((1, 3), n / 3)}


def lengths(found, group):
    return [float(up[group].norm()) for up in found.values()]


def test_features_may_grow_from_round_to_round_and_updates_may_not():
    judge = intake()
    assert lengths(judge.bounded({c: message(1.0) for c in range(4)}), "delta") == pytest.approx([1.0] * 4)
    grown = judge.bounded({c: message(19.0) for c in range(3)})
    assert lengths(grown, "prototypes") == pytest.approx([19.0] * 3)  # the round agrees on 19
    assert lengths(grown, "delta") == pytest.approx([5.0] * 3)  # five times the median of 1, 1, 1, 1, 19, 19, 19
    far = judge.far_off({c: message(1000.0) for c in range(3)})  # of 1000 thrice, 5 thrice and 1 the median is 5
    assert far.keys() == {0, 1, 2} and all("group 'delta'" in reason for reason in far.values())


def test_features_of_one_client_are_bounded_by_those_of_the_others():
    judge = intake()
    found = judge.bounded({0: message(2.0), 1: message(2.0), 2: message(30.0)})
    assert lengths(found, "prototypes") == pytest.approx([2.0, 2.0, 20.0])
    assert lengths(found, "delta") == pytest.approx([2.0, 2.0, 10.0])
    assert list(judge.far_off({0: message(2.0), 1: message(2.0), 2: message(2000.0)})) == [2]


def test_of_two_messages_the_earlier_rounds_say_what_is_usual():
    judge = intake()
    judge.bounded({c: message(1.0) for c in range(4)})
    assert lengths(judge.bounded({0: message(1.0), 1: message(19.0)}), "prototypes") == pytest.approx([1.0, 10.0])


def test_noise_does_not_change_what_a_group_is():
    judge = intake(limits={**COMMON, "prototypes": Whole(Level()), "counts": Whole(ExampleCount(pooled=True))})
    assert judge.levels == {"prototypes"}
    votes = torch.tensor([[6.0, 0.0], [0.0, 2.0], [1.0, 0.0]])
    cut = judge.bounded({c: message(1.0) | {"counts": votes[c : c + 1]} for c in range(3)})
    assert torch.cat([up["counts"] for up in cut.values()]).tolist() == [[3.0, 0.0], [0.0, 2.0], [1.0, 0.0]]


def test_a_share_of_all_places_leaves_choices_of_few_as_they_are():
    votes = torch.tensor([[83, 0], [82, 0], [0, 83], [0, 82]])
    assert torch.equal(pooled(votes, 0.5), votes)
    liar = torch.tensor([[1_000_000, 0], [10, 0], [0, 10], [0, 5]])
    assert pooled(liar, 0.5).tolist() == [[25, 0], [10, 0], [0, 10], [0, 5]]
    assert pooled(torch.zeros(2, 2), 0.5).tolist() == [[0.0, 0.0], [0.0, 0.0]]
