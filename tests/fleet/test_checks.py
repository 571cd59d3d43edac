"""Every reason for which a message may not count, and that each names what was got and what was expected."""

import re

import pytest
import torch

from acclimate.backends.flower.checks import examine
from acclimate.core import tree
from acclimate.core.message import Mean, Sum

RULES = {"delta": Mean("n"), "n": Sum()}


def up():
    return {"delta": {"params": {"w": torch.ones(2, 3), "b": torch.zeros(3)}}, "n": torch.tensor(7)}


LIKE = tree.to(up(), "meta")


def look(message, like=LIKE, **given):
    return examine(message, like, **({"client": 4, "round": 9, "sent_round": 9, "rules": RULES} | given))


def test_a_good_message_passes_with_and_without_an_example():
    assert look(up()) is None and look(up(), None) is None
    assert look(up(), seen={1, 2}, limit=tree.nbytes(up())) is None


def changed(**delta):
    message = up()
    message["delta"]["params"] |= delta
    return message


CASES = {
    "stale": (up(), {"sent_round": 8}, "answers round 8, expected round 9"),
    "duplicate": (up(), {"seen": {4}}, "client 4 was already counted in round 9"),
    "oversize": (up(), {"limit": 40}, "44 bytes, expected at most 40"),
    "groups, not a dict": ([1, 2], {}, "is a list, expected a dict"),
    "groups, not tensors": (
        {"delta": {"w": 3.0}, "n": torch.tensor(7)},
        {},
        r"message\['delta'\]\['w'\] must be a tensor",
    ),
    "groups, missing": ({"n": torch.tensor(7)}, {}, r"got \['n'\], expected \['delta', 'n'\]"),
    "groups, extra": (up() | {"spy": torch.ones(1)}, {}, r"got \['delta', 'n', 'spy'\], expected \['delta', 'n'\]"),
    "groups, extra name": (changed(v=torch.ones(1)), {}, "group 'delta': got 'params/v' .* expected none"),
    "groups, lost name": (up() | {"delta": {"params": {"w": torch.ones(2, 3)}}}, {}, "got none .* expected 'params/b'"),
    "shape": (
        changed(w=torch.ones(3, 2)),
        {},
        r"'delta', tensor 'params/w': got float32 \[3, 2\], expected float32 \[2, 3\]",
    ),
    "shape, type": (changed(w=torch.ones(2, 3).double()), {}, r"got float64 \[2, 3\], expected float32"),
    "nonfinite": (
        changed(b=torch.tensor([0.0, torch.nan, torch.inf])),
        {},
        "'params/b': got 2 of 3 values that are not",
    ),
    "error, weight": (
        up() | {"n": torch.tensor(-7)},
        {},
        "group 'n', the weights of 'delta': got -7, expected at least 0",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_each_fault_is_named(name):
    message, given, reason = CASES[name]
    fault = look(message, **given)
    assert fault is not None and (fault.kind, fault.client, fault.round) == (name.partition(",")[0], 4, 9)
    assert re.search(reason, fault.reason), fault.reason


def test_before_there_is_an_example_groups_and_values_are_checked():
    assert look({"n": torch.tensor(7)}, None).kind == "groups"
    assert look(changed(b=torch.full((3,), torch.nan)), None).kind == "nonfinite"
    assert look(changed(w=torch.ones(9)), None) is None


def test_a_long_list_of_names_is_cut():
    extra = {f"x{i}": torch.ones(1) for i in range(9)}
    assert "'params/x0', 'params/x1', 'params/x2' and 6 more" in look(changed(**extra)).reason
