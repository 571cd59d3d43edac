"""Periods of pandas, such as a month, count as the times at which they start: as time, as an input, in new rows."""

from types import SimpleNamespace

import numpy as np
import pytest

from acclimate.data import Table, Windows, raw


class Period:
    """What is used of a period of pandas: a quarter of a year."""

    def __init__(self, number):
        self.number = number
        self.start_time = SimpleNamespace(to_datetime64=lambda: np.datetime64(3 * number, "M").astype("datetime64[ns]"))

    def __str__(self):
        return f"{1970 + self.number // 4}Q{self.number % 4 + 1}"


class PeriodDtype:
    kind = "O"


class Frame:
    """What is used of a data frame of pandas whose index are periods."""

    def __init__(self, cells, periods, name=None):
        self.cells, self.columns, self.index, self.periods = cells, list(cells), self, periods
        self.name, self.names, self.dtype = name, [name], PeriodDtype()

    def __getitem__(self, name):
        return self.cells[name]

    def rename_axis(self, name):
        return Frame(self.cells, self.periods, name)

    def reset_index(self, level):
        return {self.name: self.periods, **self.cells}

    def get_level_values(self, name):
        return SimpleNamespace(to_numpy=lambda: self.periods)


@pytest.fixture(params=["stand-in", "pandas"])
def quarters(request):
    """A function from numbers of quarters since 1970, None where one is missing, to a column of periods."""
    if request.param == "stand-in":
        return lambda *numbers: np.array([None if n is None else Period(n) for n in numbers], object)
    pandas = pytest.importorskip("pandas", reason="pip install pandas")
    return lambda *numbers: pandas.Series(
        [pandas.NaT if n is None else pandas.Period("1970Q1") + n for n in numbers], dtype="period[Q]"
    )


def framed(cells, periods, name=None):
    """A data frame whose index are periods."""
    if isinstance(periods, np.ndarray):
        return Frame(cells, periods, name)
    pandas = pytest.importorskip("pandas", reason="pip install pandas")
    return pandas.DataFrame(cells, index=pandas.PeriodIndex(periods, name=name))


def test_a_column_of_periods_is_one_of_dates(quarters):
    when = quarters(*(200 + i if i % 5 else None for i in range(40)))
    data = Table.of({"when": when, "kind": ["a", "b"] * 20}, label="kind", clients=2, scale="none")
    world = data.world()
    date, gone = world.examples.features
    assert (date.kind, gone.kind, gone.column) == ("date", "missing", "when")
    rows = data.raw(world, None)
    new = np.array(["2020-04-01", "NaT", "2021-01-01"], "datetime64[D]")
    wanted = [(d - np.datetime64(date.word)).astype(int) for d in new[::2]]
    for column in (new, quarters(201, None, 204)):
        found = rows.of({"when": column}, "here")
        assert found[[0, 2], 0].tolist() == wanted and found[:, 1].tolist() == [0.0, 1.0, 0.0]


def test_periods_are_the_time_of_a_table(quarters):
    cells = {"x": range(40), "kind": ["a", "b"] * 20}
    for numbers in (range(200, 240), (*range(200, 238), 239, 238)):
        both = {**cells, "when": quarters(*numbers)}, framed(cells, quarters(*numbers), "when")
        for frame in both:
            data = Table.of(frame, label="kind", time="when", clients=2)
            if numbers[-1] == 239:
                assert [f.column for f in data.load().features] == ["x"]
                continue
            with pytest.raises(ValueError, match="'when' goes backwards in row 40"):
                data.load()


def test_clients_are_called_by_their_periods(quarters):
    frame = {"x": range(40), "kind": ["a", "b"] * 20, "when": quarters(*[216, 217] * 20)}
    assert Table.of(frame, label="kind", client="when").load().user_names == ("2024Q1", "2024Q2")
    series = raw.RawWindows(("x",), 30, client="when")
    with pytest.raises(ValueError, match="here: has 20 readings of when '2024Q1', which are fewer"):
        series.of(frame, "here")


@pytest.mark.parametrize("name", [None, "when"])
def test_an_index_of_periods_is_the_time_of_windows(quarters, name):
    cells = {"x": np.arange(40.0) % 7, "act": ["sit"] * 20 + ["walk"] * 20}
    late = [*range(200, 220), *range(300, 320)]
    found = Windows.of(framed(cells, quarters(*late), name), label="act", window=4)
    assert found.time == (name or "time")
    assert f"'{found.time}' leaves more than ten steps out 1 time: windows go on" in " ".join(found.load().notes)
    with pytest.raises(ValueError, match=f"'{found.time}' goes backwards in row 2; sort the rows by time"):
        Windows.of(framed(cells, quarters(*late[::-1]), name), label="act", window=4).load()
    live, new = found.raw(found.world(), None), {"x": cells["x"][:8]}
    assert live.of(framed(new, quarters(*range(8)), name), "here").shape == (2, 1, 4)
    with pytest.raises(ValueError, match=f"here: '{found.time}' goes backwards in row 8"):
        live.of(framed(new, quarters(*range(7), 5), name), "here")


def test_a_column_of_periods_and_other_things_is_one_of_words(quarters):
    values = [*quarters(216), "later"] * 20
    found = Table.of({"x": np.array(values, object), "kind": ["a", "b", "b", "a"] * 10}, label="kind", clients=2).load()
    assert [f.word for f in found.features] == ["2024Q1", "later"]
