"""What a run says about columns that may be meant otherwise than they are read."""

import re
import warnings

import numpy as np
import pytest

from acclimate.data import Table, Windows, of, remarks
from acclimate.data.columns import of_values

pytestmark = pytest.mark.usefixtures("own_machine")
ROWS = 60


def column(values, name="v"):
    kind = float if all(isinstance(v, int | float) for v in values) else object
    return of_values(name, np.array(list(values), kind))


def world(values, name="v", **more):
    g = np.random.default_rng(0)
    frame = {name: values, "other": g.normal(size=ROWS), "kind": ["a", "b"] * (ROWS // 2), **more}
    return Table.of(frame, label="kind", clients=2).world()


def notes(values, name="v", **more):
    return [n for n in world(values, name, **more).notes if name in n and "too many different" not in n]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([f"{i}.5" for i in range(59)] + ["<0.5"], "'v' holds '<0.5' among its numbers, so all of them count as words"),
        ([f"{i},5" if i % 3 == 0 else str(i) for i in range(60)], "'0,5' among its numbers, .*; write decimals with a"),
        ([f"{i}.5" for i in range(60)], "'v' holds numbers as text, which count as words; make numbers of them"),
        ([f"${i}.50" for i in range(60)], r"'v' holds '\$0.50' and the like, .*; write the number alone, as 1234.5"),
        ([f"{i}.5 kg" for i in range(60)], "'v' holds '0.5 kg' and the like, .*; write the number alone"),
        ([f"{i % 28 + 1}.5.2024" for i in range(60)], "'v' holds '1.5.2024' and the like, .*write dates as 2024-05-31"),
        ([f"5/{i % 28 + 1}/24" for i in range(60)], "'v' holds '5/1/24' and the like, .*write dates as 2024-05-31"),
        ([f"{i % 28 + 1} May 2024" for i in range(60)], "'v' holds '1 May 2024' and the like.*write dates"),
        ([f"{i % 12}:30 pm" for i in range(60)], "'v' holds '0:30 pm' and the like.* and times as 08:30"),
    ],
)
def test_words_that_look_like_numbers_or_dates_are_named(words, said):
    assert [n for n in notes(words) if re.match(f".*{said}", n)], notes(words)


@pytest.mark.parametrize("words", [["red", "green", "blue"] * 20, ["1st", "2nd", "3rd"] * 20, ["Q1", "Q2"] * 30])
def test_plain_words_get_no_remark(words):
    assert remarks.of_inputs([column(words)]) == []


def test_a_table_without_any_number_says_why():
    frame = {"v": [f"{i}.5 kg" for i in range(30)], "kind": ["a", "b"] * 15}
    with pytest.raises(ValueError, match="all columns of inputs have a word of their own.*: 'v' holds '0.5 kg'"):
        Table.of(frame, label="kind", clients=2).load()


def test_a_table_of_texts_alone_names_the_column_and_the_reader_of_texts():
    frame = {"body": [f"text {'abc'[i % 3]}{i}" for i in range(30)], "kind": ["a", "b"] * 15}
    with pytest.raises(ValueError, match="or over 100 words; texts are read by data=text data.text=body, and"):
        Table.of(frame, label="kind", clients=2).load()


@pytest.mark.parametrize(("count", "said"), [(20, False), (21, True)])
@pytest.mark.parametrize("name", ["{}", "{} years"])
def test_classes_that_may_be_a_quantity_are_named(count, said, name):
    classes = [name.format(i + 20) for i in range(count)]
    notes = remarks.of_classes(np.repeat(np.arange(count), 5), classes)
    many = (
        "the label has 21 different numbers, a class each: if it is a quantity to predict, put the numbers into a few"
    )
    assert [n[: len(many)] for n in notes] == [many] * (said and name == "{}")


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ([-999 if i % 10 == 0 else i / 10 for i in range(60)], "has -999 in 6 rows, and 0.1 to 5.9 in all others"),
        ([9999 if i % 10 == 0 else i for i in range(60)], "has 9999 in 6 rows, and 1 to 59 in all others"),
        ([-1 if i % 10 == 0 else i / 10 for i in range(60)], ""),  # not far from the others
        ([0 if i % 2 else 100 for i in range(60)], ""),
        ([-500 if i % 10 == 0 else i / 10 for i in range(60)], ""),  # no number that is used so
        ([-999] + [i / 10 for i in range(59)], ""),  # once may be measured
        (list(range(60)), ""),
    ],
)
def test_numbers_that_may_stand_for_missing_are_named(values, said):
    found = [n for n in remarks.of_inputs([column([float(v) for v in values])]) if "means missing" in n]
    assert [n.partition(": if")[0] for n in found] == ([f"'v' {said}"] if said else [])


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("patient_id", True),
        ("PatientID", True),
        ("recordId", True),
        ("Case No.", True),
        ("width", False),
        ("idea", False),
    ],
)
def test_ids_are_named_by_name_and_numbers(name, says):
    values = column([float(7 * i * i + 3) for i in range(40)], name)
    assert remarks.of_inputs([values]) == (
        [f"{name!r} has another whole number in every row: if it is an id, leave it out (data.drop={name})"] * says
    )
    assert remarks.of_inputs([column([float(i % 9) for i in range(40)], name)]) == []


def test_numbers_near_zero_or_none_are_not_said_to_be_far_from_it():
    near = [f"'v' is so near 0 that 32 bits tell 1 of its {ROWS - 1} numbers apart; multiply them first"]
    assert remarks.of_inputs([column([i * 1e-60 for i in range(1, ROWS)])]) == near
    assert remarks.of_inputs([column([np.nan] * ROWS)]) == []


def test_numbers_that_are_too_large_are_refused_without_a_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(ValueError, match="'v' has numbers beyond 32 bits"):
            Table.of({"v": [1e60, 1.0], "kind": ["a", "b"]}, label="kind", clients=2).load()


SAID = "the class of every training row follows from v; leave it out if it is known only once the class is (data.drop)"


@pytest.mark.parametrize(
    ("values", "says"),
    [
        (["yes", "no"] * 30, True),
        (["yes", None] * 30, True),
        ([1, 2] * 30, True),
        ([1, 2, 1, 3] * 15, True),
        (["yes", "no"] * 20 + ["no", "yes"] * 10, False),
        (list(range(60)), False),  # every number of its own says nothing
        (["same"] * 60, False),
    ],
)
def test_a_column_that_tells_the_label_is_named(values, says):
    assert (SAID in world(values).notes) is says


def test_a_telling_column_is_found_in_arrays_and_after_many_rows():
    g = np.random.default_rng(0)
    y = g.integers(0, 3, 6000)
    x = np.stack([y * 2.0, g.normal(size=6000), np.where(np.arange(6000) < 5000, y, 0)], 1)
    told = [n for n in of(x, y, clients=2).world().notes if "follows from" in n]
    assert [n.partition(";")[0] for n in told] == ["the class of every training row follows from 0"]


def test_names_that_differ_in_capitals_or_spaces_are_named():
    kinds, sites = ["Yes", "no", "yes ", "No"] * 15, ["north  wing", "North wing"] * 30
    frame = {"v": np.arange(60.0), "kind": kinds, "site": sites}
    found = Table.of(frame, label="kind", client="site").world().notes
    assert (
        "classes that differ in little more than capitals: 'No' and 'no', 'Yes' and 'yes'; are they the same?" in found
    )
    said = "clients that differ in little more than capitals: 'North wing' and 'north  wing'; are they the same?"
    assert said in found
    window = {"u": np.arange(60.0), "kind": ["Sit"] * 30 + ["sit"] * 30}
    assert "'Sit' and 'sit'" in " ".join(Windows.of(window, label="kind", window=5, clients=2).world().notes)


def test_rare_classes_are_named():
    said = "classes of fewer than 5 rows can hardly be learned and tested: c (1)"
    assert said in world(list(range(60)), kind=["a", "b"] * 29 + ["a", "c"]).notes
    assert not [n for n in world(list(range(60))).notes if "hardly" in n]


def test_missing_labels_are_counted_and_a_class_called_none_is_told_apart():
    frame = {"v": np.arange(4.0), "kind": ["none", "a", "", "b"]}
    with pytest.raises(ValueError, match=r"missing in row 1 and 1 more; .*none and the like.*rename a class that is"):
        Table.of(frame, label="kind", clients=2).load()
