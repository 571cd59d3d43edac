"""What a server that hears of clients by a network makes of their messages: bounds of norms, and shares."""

from types import SimpleNamespace

import pytest
import torch

from acclimate.backends.flower.intake import Intake, SumRefused
from acclimate.core import Mean, Sum
from acclimate.core.limits import COMMON, ExampleCount, Level, Whole, Within, pooled

GROUPS = {"delta": Mean("n"), "prototypes": Mean("counts"), "n": Sum(), "counts": Sum()}


def intake(limits=COMMON, uplink=GROUPS, clip=5.0, max_share=0.5):
    method = SimpleNamespace(uplink=uplink)
    return Intake(SimpleNamespace(filters=(), limits=limits, method=method), torch.full((4,), 100), clip, max_share)


def sums(limits, uplink, *filters, clip=0.0):
    """An intake of messages that are hidden, of four clients with 100 examples each."""
    method, hides = SimpleNamespace(uplink=uplink), SimpleNamespace(hides=True, bounds=False)
    worker = SimpleNamespace(filters=(*filters, hides), limits=limits, method=method)
    return Intake(worker, torch.full((4,), 100), clip, 0.5)


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


def test_every_tensor_of_a_hidden_group_is_held_against_its_range():
    judge = sums({"sign": Within(-1.0, 1.0)}, {"sign": Mean()})
    judge.look_at_sum({"sign": {"a": torch.tensor([1.0, -1.0]), "b": torch.tensor(0.5)}}, range(4), {}, 0)
    with pytest.raises(SumRefused, match="group 'sign' of the sum: got values from -1.5 to -1.5, expected -1 to 1"):
        judge.look_at_sum({"sign": {"a": torch.tensor([1.0, -1.0]), "b": torch.tensor(-1.5)}}, range(4), {}, 0)


def test_a_hidden_sum_may_be_as_large_as_all_together_and_a_mean_as_large_as_one():
    for rule, most in ((Sum(), 4.0), (Mean(), 1.0)):
        judge = sums({"part": Within(0.0, 1.0)}, {"part": rule})
        judge.look_at_sum({"part": torch.tensor(most)}, range(4), {}, 0)
        for value in (1.01 * most, -0.01):
            with pytest.raises(SumRefused, match=f"expected 0 to {most:g}"):
                judge.look_at_sum({"part": torch.tensor(value)}, range(4), {}, 0)


def test_counts_beside_noise_are_held_against_their_range_in_a_hidden_sum():
    judge = sums({"n": Whole(ExampleCount()), "part": Whole(Within(0.0, 1.0))}, {"n": Sum(), "part": Sum()})
    judge.look_at_sum({"n": torch.tensor(400), "part": torch.tensor(-3.0)}, range(4), {}, 0)
    with pytest.raises(SumRefused, match="group 'n' of the sum: got values from 100000 to 100000, expected 0 to 400"):
        judge.look_at_sum({"n": torch.tensor(100_000), "part": torch.tensor(-3.0)}, range(4), {}, 0)


def test_noise_of_the_server_on_a_hidden_sum_is_in_no_range():
    noise, total = SimpleNamespace(hides=False, bounds=True), {"part": torch.tensor(-0.1)}
    sums({"part": Within(0.0, 1.0)}, {"part": Sum()}, noise).look_at_sum(total, range(4), {}, 0)
    with pytest.raises(SumRefused, match="expected 0 to 4"):
        sums({"part": Within(0.0, 1.0)}, {"part": Sum()}).look_at_sum(total, range(4), {}, 0)


def test_what_was_sent_says_nothing_of_the_first_hidden_sum_of_what_is_no_update():
    """A bound of the first sum that honest clients break is never got rid of: no later one is remembered."""
    judge, zeros = sums({"fisher": Within(0.0)}, {"fisher": Sum(), "delta": Mean("fisher")}, clip=5.0), torch.zeros(2)
    judge.look_at_sum({"fisher": torch.tensor(900.0), "delta": torch.ones(1)}, range(4), {"vars": zeros}, 0)
    fresh = sums({"fisher": Within(0.0)}, {"fisher": Sum(), "delta": Mean("fisher")}, clip=5.0)
    far, one = {"fisher": torch.tensor(900.0), "delta": torch.tensor([6.0])}, {"vars": torch.ones(1)}
    with pytest.raises(SumRefused, match="group 'delta' of the sum has norm 6, the bound is 5"):
        fresh.look_at_sum(far, [0], one, 0)


def test_features_of_the_first_hidden_sum_say_what_is_usual_in_the_next():
    judge, total = sums(COMMON, {"prototypes": Mean("counts")}, clip=5.0), {"prototypes": torch.ones(2, 2)}
    judge.look_at_sum(total, range(4), {"prototypes": torch.full((2, 2), 1e-3)}, 0)
    judge.look_at_sum({"prototypes": torch.full((2, 2), 9.0)}, range(4), {"prototypes": torch.ones(2, 2)}, 1)
    with pytest.raises(SumRefused, match="group 'prototypes' of the sum has norm 400, the bound is 20"):
        judge.look_at_sum({"prototypes": torch.full((2, 2), 200.0)}, range(4), {"prototypes": torch.ones(2, 2)}, 2)
