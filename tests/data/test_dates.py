"""Columns that are no plain features: dates and times become numbers, and columns that tell nothing are named."""

import datetime

import numpy as np
import pytest
import torch

from acclimate.data import Table, Windows, dates, of, raw
from acclimate.data.columns import of_values
from acclimate.data.world import Feature

pytestmark = pytest.mark.usefixtures("own_machine")


@pytest.mark.parametrize(
    ("cell", "days"),
    [
        ("1970-01-01", 0.0),
        ("1970-01-03", 2.0),
        ("1969-12-31", -1.0),
        ("2024-05-31", 19874.0),
        ("1970-01-02T06:00", 1.25),
        ("1970-01-02 06:00:00.000", 1.25),
        ("1970-01-02T06:00:00.123456789", 1.25 + 0.123456 / 86400),
        ("1970-01-02T06:00:00Z", 1.25),
        ("1970-01-02 07:30:00+01:30", 1.25),
        ("2024-02-30", None),
        ("31.05.2024", None),
        ("05/31/2024", None),
        ("2024-5-31", None),
        ("2024-05", None),
        ("12:30", None),
        ("20240531", None),
        ("word", None),
    ],
)
def test_days_since_1970_of_iso_dates(cell, days):
    assert dates.days(cell) == (None if days is None else pytest.approx(days, abs=1e-9))


def test_dates_that_may_be_numbers_are_read_when_asked_for():
    assert dates.plain_days("20240531") == dates.plain_days("2024/05/31") == 19874.0
    assert dates.plain_days("2024/0531") is dates.plain_days("20241331") is None
    assert [dates.hours(c) for c in ("00:00", "08:30", "23:59:06", "24:01", "8:30", "x")] == [
        *[0.0, 8.5, pytest.approx(23.985), None, None, None]
    ]
    assert dates.iso(19874) == "2024-05-31"


@pytest.mark.parametrize(
    ("at", "name"),
    [
        ("1970-01-01", "1970-01-01"),
        ("1969-12-31T23:00", "1969-12-31T23:00"),
        ("2024-05-31T00:00:00", "2024-05-31"),
        ("2024-05-31T08:00:00", "2024-05-31T08:00"),
        ("2024-05-31T00:00:10", "2024-05-31T00:00:10"),
        ("2024-05-31T00:30:00.250", "2024-05-31T00:30:00.25"),
        ("2059-09-18T08:30:00.000001", "2059-09-18T08:30:00.000001"),
        ("2059-09-18T08:30:00.999999", "2059-09-18T08:30:00.999999"),
        ("8501-12-31T21:40", "8501-12-31T21:40"),
        ("0001-01-01T00:01", "0001-01-01T00:01"),
    ],
)
def test_a_date_has_a_name_with_its_time_where_it_has_one(at, name):
    found = dates.named(of_values("at", np.array([at, "NaT"], "datetime64[us]")))
    assert found.words == (dates.moment(dates.days(at)),) == (name,) and found.codes.tolist() == [0, -1]


def test_dates_of_one_name_are_one():
    far = np.array(["3000-01-02", "3000-01-01T00:00:00.0001", "3000-01-01T00:00:00.0002"], "datetime64[us]")
    found = dates.named(of_values("at", far))
    assert found.words == ("3000-01-01", "3000-01-02") and found.codes.tolist() == [1, 0, 0]


SOURCES = ["text", "numpy", "Python", "CSV", "Parquet", "pandas", "polars"]


@pytest.mark.parametrize("offset", ["", "+02:00"])
@pytest.mark.parametrize("source", SOURCES)
def test_classes_clients_and_domains_are_named_by_dates_in_every_source_alike(source, offset):
    at = [f"2024-05-31 08:30:00{offset}", f"2024-06-01 00:00:00{offset}", f"2023-01-01 02:00:00.5{offset}"] * 8
    names = ("2023-01-01T02:00:00.5", "2024-05-31T08:30", "2024-06-01")
    names = ("2023-01-01T00:00:00.5", "2024-05-31T06:30", "2024-05-31T22:00") if offset else names
    utc = [datetime.datetime.fromisoformat(a).astimezone(datetime.UTC) for a in at]
    python = utc if offset else [datetime.datetime.fromisoformat(a) for a in at]
    given = {"at": at, "v": list(range(24)), "kind": list("aabb") * 6}

    def made(**settings):
        if source == "CSV":
            return Table(file=written(given), **settings)
        if source == "Parquet":
            arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
            parquet.write_table(arrow.table({**given, "at": python}), "v.parquet")
            return Table(file="v.parquet", **settings)
        if source in ("pandas", "polars"):
            return Table.of(pytest.importorskip(source).DataFrame({**given, "at": python}), **settings)
        utc_values = np.array([p.replace(tzinfo=None) for p in python], "datetime64[ns]")
        return Table.of({**given, "at": {"text": at, "numpy": utc_values, "Python": python}[source]}, **settings)

    classes = made(label="at", drop=("kind",), clients=2).load()
    assert classes.classes == names and classes.y.tolist() == [1, 2, 0] * 8
    clients = made(label="kind", client="at").load()
    assert clients.user_names == names and clients.users.tolist() == [1, 2, 0] * 8
    domains = made(label="kind", domain="at", held_out=names[:1], clients=2).load()
    assert domains.domains == names and domains.domain.tolist() == [1, 2, 0] * 8


def test_arrays_are_named_by_dates_too():
    days = np.array(["2024-05-31", "2024-06-01"] * 20, "datetime64[D]")
    e = of(np.arange(40.0).reshape(40, 1), days, client=days, domain=days + np.timedelta64(30, "m")).load()
    assert e.classes == e.user_names == ("2024-05-31", "2024-06-01")
    assert e.domains == ("2024-05-31T00:30", "2024-06-01T00:30")


def test_a_label_of_many_times_is_no_quantity_in_any_source():
    at = [f"2024-05-31T08:{i % 30:02d}" for i in range(90)]
    for values in (at, np.array(at, "datetime64[s]")):
        assert len(Table.of({"at": values, "v": range(90)}, label="at", clients=2).load().classes) == 30


def test_what_is_no_date_in_every_row_keeps_its_name():
    for values in (["2024-05-31 00:00:00", "later"], ["08:30", "09:30:00"], ["2024-05", "2024-06"]):
        found = Table.of({"at": values * 10, "v": range(20)}, label="at", clients=2).load()
        assert found.classes == tuple(values)


def test_series_of_new_readings_are_named_by_dates():
    found = raw.RawWindows(("u",), 2, client="day")
    days = ["2024-05-31", "2024-05-31", "2024-06-01"]
    for values in (days, np.array(days, "datetime64[ns]"), np.array(days, "datetime64[D]")):
        with pytest.raises(ValueError, match="here: has 1 readings of day '2024-06-01', which are fewer"):
            found.of({"day": values, "u": [1, 2, 3]}, "here")


def visits(rows=40):
    """Rows whose days and times are known: the last in the file is the first in time."""
    start = datetime.datetime(2024, 1, 10)
    at = [start + datetime.timedelta(days=i if i < rows - 1 else -9) for i in range(rows)]
    return {
        "day": [t.date().isoformat() if i != 3 else "" for i, t in enumerate(at)],
        "clock": [f"{i % 24:02d}:30" for i in range(rows)],
        "name": [f"p{i}" for i in range(rows)],
        "row": list(range(7, 7 + rows)),
        "unit": ["kg"] * rows,
        "town": [f"t{i % 22:02d}" for i in range(rows)],
        "kind": ["cat", "dog"] * (rows // 2),
    }


def written(table, name="v.csv"):
    rows = zip(*table.values(), strict=True)
    with open(name, "w") as file:
        file.write("\n".join(",".join(map(str, row)) for row in (table, *rows)) + "\n")
    return name


@pytest.mark.parametrize("form", ["file", "dict", "numpy dates", "Python dates"])
def test_dates_become_days_since_the_first_training_row(form):
    given = visits()
    if form == "numpy dates":
        given["day"] = np.array([d or "NaT" for d in given["day"]], "datetime64[D]")
    if form == "Python dates":
        given["day"] = [datetime.date.fromisoformat(d) if d else None for d in given["day"]]
    settings = {"label": "kind", "columns": ("day", "clock"), "clients": 2, "scale": "none"}
    data = Table(file=written(given), **settings) if form == "file" else Table.of(given, **settings)
    world = data.world(seed=1)
    assert 39 not in torch.cat(world.train)  # the first day of all is none of training
    day, gone, clock = world.examples.features
    assert (day.column, day.kind, gone.kind, clock.kind) == ("day", "date", "missing", "time")
    train = torch.cat(world.train)
    known = train[train != 3]
    true = torch.tensor([float(i if i < 39 else -9) for i in range(40)])
    first = true[known].min()
    assert torch.equal(world.examples.x[known, 0], true[known] - first) and float(world.examples.x[known, 0].min()) == 0
    start = datetime.date(2024, 1, 10) + datetime.timedelta(days=int(first))
    assert day.word == start.isoformat() and day.fill == float((true[known] - first).median())
    assert float(world.examples.x[3, 0]) == day.fill and float(world.examples.x[3, 1]) == 1.0
    assert world.examples.x[:, 2].tolist() == [i % 24 + 0.5 for i in range(40)]
    assert f"'day' holds dates: read as days since {start}" in world.notes
    assert "'clock' holds times: read as hours since midnight" in world.notes


def test_dates_are_scaled_as_numbers_are():
    world = Table.of(visits(), label="kind", columns=("day", "clock"), clients=2).world()
    train = torch.cat(world.train)
    assert world.mean[2] == pytest.approx(float(world.examples.x[train, 2].mean()), rel=1e-5)
    assert world.std[0] > 1 and world.std[2] > 1 and (world.mean[1], world.std[1]) == (0.0, 1.0)


def test_other_dates_are_read_when_asked_for_and_refused_with_the_forms():
    given = {"n": [20240531, 20240601, 20240603, 20240610] * 5, "w": ["2024/05/31"] * 20, "kind": ["a", "b"] * 10}
    plain = Table.of(given, label="kind", clients=2).load()
    assert [f.kind for f in plain.features] == ["number", "word"] and float(plain.x[0, 0]) == 20240532.0  # in 32 bits
    read = Table.of(given, label="kind", clients=2, dates=("n", "w")).load()
    assert [f[:3] for f in read.features] == [("n", "date", "2024-05-31"), ("w", "date", "2024-05-31")]
    assert read.x[:4, 0].tolist() == [0.0, 1.0, 3.0, 10.0]
    given["n"][1] = 31052024
    with pytest.raises(
        ValueError, match="the column 'n' holds '31052024', and is one of dates; allowed are 2024-05-31"
    ):
        Table.of(given, label="kind", clients=2, dates=("n",)).load()
    with pytest.raises(ValueError, match="data.dates has 'kind', which is no column of inputs"):
        Table.of(given, label="kind", clients=2, dates=("kind",)).load()
    with pytest.raises(ValueError, match=r"has no column 'm' \(data.dates\)"):
        Table.of(given, label="kind", clients=2, dates=("m",)).load()


def test_new_rows_are_read_as_the_training_rows_were():
    world = Table(
        file=written(visits()), label="kind", columns=("day", "clock", "town"), clients=2, scale="none"
    ).world()
    found = raw.of_card(raw.RawRows(world.examples.features).card())
    assert isinstance(found, raw.RawRows)
    assert list(found.columns.items())[:3] == [("day", "date"), ("clock", "time"), ("town", "word")]
    assert np.array_equal(found.file(raw.Path("v.csv")), world.examples.x.numpy())
    given = {"day": np.array(["2024-02-01"], "datetime64[D]"), "clock": ["06:15"], "town": ["t00"]}
    later = found.of(given, "here")
    since = datetime.date.fromisoformat(world.examples.features[0].word)
    assert later[0, :3].tolist() == [(datetime.date(2024, 2, 1) - since).days, 0.0, 6.25]
    assert found.of({**given, "day": [None]}, "here")[0, :2].tolist() == [world.examples.features[0].fill, 1.0]
    with pytest.raises(ValueError, match="here: the column 'clock' holds '6 am', and is one of times"):
        found.of({**given, "clock": ["6 am"]}, "here")
    with pytest.raises(ValueError, match="here: the column 'day' holds '06:15', and is one of dates"):
        found.of({**given, "day": ["06:15"]}, "here")


def test_columns_that_tell_nothing_are_named():
    world = Table.of(visits(), label="kind", clients=2).world()
    assert {f.column for f in world.examples.features} == {"day", "clock", "row", "unit", "town"}
    said = "\n".join(world.notes)
    assert "left out, as they have too many different words: name (40 in 40 rows) (data.columns)" in said
    assert "'row' counts the rows, which tells nothing about new ones (data.drop=row)" in said
    assert "the same in all training rows, which tells nothing: unit (data.drop)" in said
    words = len({f.word for f in world.examples.features if f.column == "town"})
    assert (f"'town' has {words} different words, an input each (data.drop)" in said) == (words > 20)
    named = Table.of(visits(), label="kind", clients=2, columns=("name",)).load()
    assert len(named.features) == 40 and named.notes == ()
    with pytest.raises(ValueError, match="all columns of inputs have a word of their own per row, or over 100 words"):
        Table.of({k: visits()[k] for k in ("name", "kind")}, label="kind", clients=2).load()


def test_a_column_without_a_name_is_left_out():
    """As pandas writes the numbers of rows."""
    with open("p.csv", "w") as file:
        file.write(",a,kind\n" + "".join(f"{i},{i * i},{'xy'[i % 2]}\n" for i in range(30)))
    found = Table(file="p.csv", label="kind", clients=2).load()
    assert [f.column for f in found.features] == ["a"] and found.x[:3, 0].tolist() == [0.0, 1.0, 4.0]
    assert found.notes == ("the column without a name, as of a data frame's row numbers, is left out",)


def test_yes_and_no_are_one_and_zero_in_new_rows_too():
    rows = raw.RawRows((Feature("flag"), Feature("age")))
    for flags in (np.array([True, False]), [True, False], ["True", "False"], ["true", " FALSE"], [1, 0], ["1", "0"]):
        assert rows.of({"flag": flags, "age": [2.5, 3]}, "here").tolist() == [[1.0, 2.5], [0.0, 3.0]]
    with pytest.raises(ValueError, match="here: the column 'flag' holds 'yes' in row 1, and is a column of numbers"):
        rows.of({"flag": ["yes", "no"], "age": [2.5, 3]}, "here")


def test_the_cache_keeps_what_was_said():
    data = Table(file=written(visits()), label="kind", clients=2)
    first = data.load()
    assert len(first.notes) == 2 and data.load().notes == first.notes
    assert data.load().features == first.features


@pytest.mark.parametrize(
    ("values", "says"),
    [
        (range(30), True),
        (range(20), False),
        ([*range(29), 31], False),
        ([v + 0.5 for v in range(30)], False),
        (reversed(range(5, 35)), True),
    ],
)
def test_a_column_counts_rows_where_it_has_every_number_once(values, says):
    from acclimate.data.remarks import counts_rows

    assert counts_rows(of_values("n", np.array(list(values), float))) is says


def test_a_column_of_time_among_readings_is_named_as_such():
    table = {"t": ["2024-05-31"] * 40, "a": list(range(40)), "y": ["u", "v"] * 20}
    with pytest.raises(
        ValueError, match="leave it out with data.drop=t, or name it as the column of time, data.time=t"
    ):
        Windows.of(table, label="y", window=2, clients=2).load()
    with pytest.raises(ValueError, match="data.drop=t$"):
        Windows.of({**table, "t": ["w"] * 40}, label="y", window=2, clients=2).load()


def test_features_of_numbers_dates_and_times_are_measured():
    kinds = ("number", "date", "time", "missing", "word")
    assert [Feature("c", kind).measured for kind in kinds] == [True, True, True, False, False]
