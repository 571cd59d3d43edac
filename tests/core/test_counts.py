"""Fields that are declared as whole numbers hold such, whichever check bounds them."""

import re

import pytest

from acclimate.adapters import MEMO
from acclimate.core import Work
from acclimate.core.check import FieldError
from acclimate.personal import Fisher, Memory


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: MEMO(views=2.5), "MEMO: views=2.5 must be a whole number of at least 1"),
        (lambda: Memory(capacity=10.5), "Memory: capacity=10.5 must be a whole number of at least 1"),
        (lambda: Fisher(samples=7.5), "Fisher: samples=7.5 must be a whole number"),
        (lambda: Work(batch=32.5), "Work: batch=32.5 must be a whole number between 1 and"),
        (lambda: Work(epochs=True), "Work: epochs=True must be a whole number between 0 and"),
        (lambda: Work(iterations=2.0), "Work: iterations=2.0 must be a whole number between 0 and"),
    ],
)
def test_a_part_of_one_is_refused_where_things_are_counted(make, said):
    with pytest.raises(FieldError, match=re.escape(said)):
        make()


def test_other_numbers_may_have_parts():
    assert Work(clip=2.5).clip == 2.5 and Work(clip=3).clip == 3 and Work(iterations=None).iterations is None
