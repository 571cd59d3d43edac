"""Tables, windows and arrays in memory: what becomes of cells, who trains on what, and what is refused."""

import json
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import acclimate as ac
from acclimate.data import Arrays, ByClient, Cells, Dirichlet, ImageFolder, Noisy, Table, Windows, columns, of
from acclimate.experiment import Experiment, dumps, loads

HEAD = "site,age,colour,kind\n"


pytestmark = pytest.mark.usefixtures("own_machine")


def write(text, name="t.csv"):
    with open(name, "w", encoding="utf-8") as file:
        file.write(text)
    return name


def people(rows=40, sites=2, gone=()):
    """A small table: ages rise by row, colours and kinds take turns; ages of rows in `gone` are missing."""
    lines = [
        f"s{i % sites},{'' if i in gone else i},{('red', 'blue')[i % 3 == 0]},{('cat', 'dog')[i // 2 % 2]}"
        for i in range(rows)
    ]
    return write(HEAD + "\n".join(lines) + "\n")


def table(**settings):
    return Table(**{"file": "t.csv", "label": "kind", "client": "site", **settings})


# --- reading -------------------------------------------------------------------------------------------------------


def test_a_comma_is_a_decimal_one_where_semicolons_stand_between_cells():
    write("age;size;kind\n1,5;2;cat\n-20,25e1;3;dog\n;1,2,3;cat\n")
    found = columns.read(Path("t.csv"), ["age", "size"])
    np.testing.assert_array_equal(found["age"].numbers, [1.5, -202.5, np.nan])
    assert found["size"].words == ("1,2,3", "2", "3")  # that is no number
    write('age,kind\n"1,5",cat\n"2,5",dog\n')
    assert columns.read(Path("t.csv"), ["age"])["age"].words == ("1,5", "2,5")


def test_cells_become_numbers_words_and_marks():
    write("age;colour;kind\n1.5;red;cat\n;blue;dog\n3;NA;cat\n-2e1;red;dog\n")
    e = Table(file="t.csv", label="kind").load()
    assert [f[:3] for f in e.features] == [
        ("age", "number", ""),
        ("age", "missing", ""),
        ("colour", "word", "blue"),
        ("colour", "word", "red"),
    ]
    assert e.x.tolist() == [[1.5, 0, 0, 1], [0, 1, 1, 0], [3, 0, 0, 0], [-20, 0, 0, 1]]
    assert (e.classes, e.y.tolist(), e.users) == (("cat", "dog"), [0, 1, 0, 1], None)


def test_numbers_of_classes_and_clients_are_sorted_as_numbers():
    write("a,who,y\n" + "\n".join(f"{i},{[10, 9, 2][i % 3]},{[10, 2][i % 2]}" for i in range(12)))
    data = Table(file="t.csv", label="y", client="who")
    assert data.load().classes == ("2", "10")
    assert data.load().users[:3].tolist() == [2, 1, 0]
    assert data.clients == 3


def test_columns_are_chosen_and_dropped():
    people()
    assert {f.column for f in table(columns=("age",)).load().features} == {"age"}
    assert {f.column for f in table(drop=("age",)).load().features} == {"colour"}


def test_a_second_reading_comes_from_the_cache_and_a_changed_file_does_not(monkeypatch):
    people()
    first = table().load()
    with monkeypatch.context() as patch:
        patch.setattr(columns, "read", lambda *a: pytest.fail("read again"))
        again = table().load()
    assert torch.equal(first.x, again.x) and first.features == again.features
    people(rows=44)
    assert len(table().load().y) == 44


def test_gz_and_dicts_and_frames_read_alike():
    import gzip

    people(gone=(3, 4))
    with open("t.csv", "rb") as plain, gzip.open("z.csv.gz", "wb") as packed:
        packed.write(plain.read())
    wanted = table().load()
    assert torch.equal(table(file="z.csv.gz").load().x, wanted.x)
    rows = [line.split(",") for line in Path("t.csv").read_text().splitlines()[1:]]
    site, age, colour, kind = zip(*rows, strict=True)
    given = {"site": site, "age": [float(a) if a else None for a in age], "colour": colour, "kind": np.array(kind)}
    held = Table.of(given, label="kind", client="site")
    assert torch.equal(held.load().x, wanted.x) and held.load().features == wanted.features
    assert held.clients == 2
    assert held == Table.of(dict(given), label="kind", client="site") and hash(held) == hash(replace(held))
    assert held != Table.of({**given, "age": [1.0] * 40}, label="kind", client="site")


class Indexed:
    """What is used of a pandas data frame whose index has names: columns, and the levels of the index."""

    def __init__(self, columns, **levels):
        self.cells, self.columns, self.index = columns, list(columns), self
        self.names, self.levels = list(levels), levels

    def __getitem__(self, name):
        return self.cells[name]

    def get_level_values(self, name):
        return SimpleNamespace(to_numpy=lambda: np.array(self.levels[name]))


def test_the_index_of_a_data_frame_names_clients_and_times():
    age, site, day = [float(i % 7) for i in range(40)], ["a", "b"] * 20, [i // 2 for i in range(40)]
    frame = {"age": age, "weight": [float(i % 5) for i in range(40)], "kind": ["x", "y", "y", "x"] * 10}
    roles = {"label": "kind", "client": "site", "time": "day"}
    wanted = Table.of({**frame, "site": site, "day": day}, **roles)
    held = Table.of(Indexed(frame, site=site, day=day), **roles)
    assert held.load().users.tolist() == [0, 1] * 20 and held.load().user_names == ("a", "b")
    assert torch.equal(held.load().x, wanted.load().x) and held.load().features == wanted.load().features
    both = Table.of(Indexed({**frame, "site": site}, site=["c"] * 40), label="kind", client="site")
    assert both.load().user_names == ("a", "b")  # a column wins
    rest = Table.of(Indexed(frame, number=list(range(40))), label="kind")
    assert [f.column for f in rest.load().features] == ["age", "weight"]  # what has no role is left out
    with pytest.raises(ValueError, match="label=.* names several columns"):
        Table.of(Indexed(frame, site=site), label=["kind", "site"])


def test_an_index_of_a_real_data_frame_names_clients():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"age": range(40), "kind": ["x", "y", "y", "x"] * 10, "site": ["a", "b"] * 20})
    held = Table.of(frame.set_index("site"), label="kind", client="site")
    assert torch.equal(held.load().users, Table.of(frame, label="kind", client="site").load().users)


def test_an_array_with_named_fields_is_a_table():
    rows = np.array([(1.5, "x"), (2.5, "y")] * 20, [("age", "f4"), ("kind", "U3")])
    wanted = Table.of({"age": rows["age"], "kind": rows["kind"]}, label="kind").load()
    for given in (rows, rows.view(np.recarray)):
        found = Table.of(given, label="kind").load()
        assert torch.equal(found.x, wanted.x) and found.classes == ("x", "y")


class Dated:
    """What is used of a pandas data frame whose index are dates without a name."""

    def __init__(self, columns, days, name=None):
        self.cells, self.columns, self.index, self.days = columns, list(columns), self, days
        self.name, self.names, self.dtype = name, [name], days.dtype

    def __getitem__(self, name):
        return self.cells[name]

    def rename_axis(self, name):
        return Dated(self.cells, self.days, name)

    def reset_index(self, level):
        return Dated({self.name: self.days, **self.cells}, np.arange(len(self.days)))

    def get_level_values(self, name):
        return SimpleNamespace(to_numpy=lambda: self.days)


@pytest.mark.parametrize("real", [False, True])
@pytest.mark.parametrize("name", [None, "when"])
def test_an_index_of_dates_is_the_time_of_windows(real, name):
    days = np.datetime64("2024-01-01", "s") + np.r_[0:20, 100:120]
    cells = {"x": np.arange(40.0) % 7, "act": ["sit"] * 20 + ["walk"] * 20}

    def made(days):
        if not real and len(days) < 40:
            return Dated({"x": cells["x"][: len(days)]}, days, name)
        if not real:
            return Dated(cells, days, name)
        pandas = pytest.importorskip("pandas")
        frame = pandas.DataFrame({n: v[: len(days)] for n, v in cells.items()}, index=days)
        return frame.rename_axis(name)

    found = Windows.of(made(days), label="act", window=4)
    assert found.time == (name or "time")
    assert f"'{found.time}' leaves more than ten steps out 1 time: windows go on" in " ".join(found.load().notes)
    with pytest.raises(ValueError, match=f"'{found.time}' goes backwards in row 2; sort the rows by time"):
        Windows.of(made(days[::-1]), label="act", window=4).load()
    raw = found.raw(found.world(), None)
    assert raw.of(made(days[:8]), "here").shape == (2, 1, 4)
    with pytest.raises(ValueError, match=f"here: '{found.time}' goes backwards in row 2"):
        raw.of(made(days[7::-1]), "here")
    lasting = Windows.of(made(days - days[0]), label="act", window=4)
    assert lasting.time == found.time and lasting.load().notes == found.load().notes
    cells["time"] = np.arange(40)
    assert Windows.of(made(days), label="act", window=4, time="time").time == "time"
    assert Windows.of(made(days), label="act", window=4).time == (name or "")  # a column of that name is another thing


def test_parquet_files_with_a_column_twice_or_without_rows_are_refused():
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    values = [arrow.array([1.0, 2.0]), arrow.array([1.0, 2.0]), arrow.array(["x", "y"])]
    parquet.write_table(arrow.table(values, names=["a", "a", "kind"]), "t.parquet")
    with pytest.raises(ValueError, match="t.parquet: has the column 'a' twice; rename one of them"):
        Table(file="t.parquet", label="kind").load()
    parquet.write_table(arrow.table([v[:0] for v in values[1:]], names=["a", "kind"]), "t.parquet")
    with pytest.raises(ValueError, match="t.parquet: has no rows; it must have at least one"):
        Table(file="t.parquet", label="kind").load()


def test_parquet_and_data_frames():
    pandas, arrow, parquet = map(pytest.importorskip, ("pandas", "pyarrow", "pyarrow.parquet"))
    people(gone=(3, 4))
    frame = pandas.read_csv("t.csv")
    wanted = table().load()
    assert torch.equal(Table.of(frame, label="kind", client="site").load().x, wanted.x)
    parquet.write_table(arrow.Table.from_pandas(frame), "t.parquet")
    assert torch.equal(table(file="t.parquet").load().x, wanted.x)


def test_columns_of_a_parquet_file_are_its_values_and_marks_are_words(monkeypatch):
    held = {"who": np.array(["007", "7"], object), "age": np.array([1.5, 2.5])}
    stands_in = SimpleNamespace(
        metadata=SimpleNamespace(num_rows=2),
        schema_arrow=SimpleNamespace(names=["who", "age"]),
        read=lambda columns: SimpleNamespace(column=lambda n: SimpleNamespace(to_numpy=lambda: held[n])),
    )
    monkeypatch.setattr(columns, "_parquet", lambda path: stands_in)
    found = columns.read(Path("t.parquet"), ["who", "age"], marks=["who"])
    assert found["who"].words == ("007", "7") and found["age"].numbers.tolist() == [1.5, 2.5]
    assert columns.cells(Path("t.parquet"), ["age"])["age"].tolist() == [1.5, 2.5]


def test_parquet_without_its_package_says_what_to_install(monkeypatch):
    write("x", "t.parquet")
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(ImportError, match=r"reading t.parquet needs a package .*: pip install 'acclimate\[tables\]'"):
        table(file="t.parquet", clients=2).load()


# --- fitted to training rows alone -----------------------------------------------------------------------------------


def test_the_client_column_names_the_clients():
    people(sites=3)
    data = table()
    assert (data.clients, data.partition) == (3, ByClient())
    world = data.world()
    for c in range(3):
        rows = torch.cat([world.train[c], world.val[c], world.test[c]])
        assert set(world.examples.users[rows].tolist()) == {c}
    assert world.client_names == ("s0", "s1", "s2")
    assert len(table(clients=2).world().client_names) == 2
    assert Table(file="t.csv", label="kind", clients=2).world().client_names == ()
    assert table(clients=2).world().clients == 2
    assert table(new_clients=1).clients == 2 and len(table(new_clients=1).world().new) == 1
    assert Table(file="t.csv", label="kind", partition=Dirichlet(1.0)).clients == 2  # of few rows


def test_medians_and_scale_are_those_of_training_rows():
    people(gone=(1, 2, 7, 11))
    raw, world = table().load(), table().world()
    train = torch.cat(world.train)
    age, known = raw.x[:, 0], raw.x[:, 1] == 0
    median = age[train[known[train]]].median()
    filled = torch.where(known, age, median)
    assert torch.equal(world.examples.x[:, 0], filled)
    assert world.mean[0] == pytest.approx(filled[train].mean().item(), rel=1e-6)
    assert world.std[0] == pytest.approx(filled[train].std(correction=0).item(), rel=1e-6)
    assert world.mean[1:] == (0.0,) * (len(world.mean) - 1) and set(world.std[1:]) == {1.0}
    assert any("1 column has missing values (age): filled with the median" in n for n in world.notes)


@pytest.mark.parametrize(("missing", "fill"), [("median", torch.median), ("mean", torch.mean)])
def test_missing_numbers_are_filled_as_the_table_says_and_read_so_by_live_models(missing, fill):
    people(gone=(0, 1, 2, 7, 11, 13, 15))
    data = table(missing=missing)
    raw, world = data.load(), data.world()
    train = torch.cat(world.train)
    age, known = raw.x[:, 0], raw.x[:, 1] == 0
    value = fill(age[train[known[train]]])
    assert [f.kind for f in world.examples.features] == ["number", "word", "word"]
    torch.testing.assert_close(world.examples.x[:, 0], torch.where(known, age, value))
    assert any(n.endswith(f"the {missing} of the training rows, not marked (data.missing)") for n in world.notes)
    other = fill(age[train[known[train]]]) - age[train[known[train]]].median()
    assert (missing == "mean") == (abs(other) > 0.1)  # the two are told apart here
    x = data.raw(world, None).of({"age": [None, 3.0], "colour": ["red", "blue"]}, "rows")
    np.testing.assert_allclose(x[:, 0], [float(value), 3.0], rtol=1e-6)


def test_missing_cells_are_refused_where_the_table_says_so_and_words_are_cells():
    people(gone=(4, 9))
    said = "the column 'age' has no value in 2 rows, the first of them row 5, and data.missing=refuse; fill them"
    table().world()  # what was read before, and is in the cache, is refused all the same
    with pytest.raises(ValueError, match=said):
        table(missing="refuse").world()
    write(HEAD + "s0,1,,cat\ns1,2,red,dog\n")
    with pytest.raises(ValueError, match="the column 'colour' has no value in 1 row, the first of them row 1"):
        table(missing="refuse").load()
    with pytest.raises(ValueError, match="missing='drop' must be one of 'mark', 'median', 'mean', 'refuse'"):
        table(missing="drop")
    people()
    assert len(table(missing="refuse").world().examples.y) == 40


def test_arrays_in_memory_say_what_becomes_of_what_is_missing():
    x, y = np.arange(80.0).reshape(40, 2), np.arange(40) % 2
    x[3:9, 1] = np.nan
    world = of(x, y, missing="mean", clients=2, partition=Dirichlet(10.0)).world()
    train = torch.cat(world.train)
    rows = np.setdiff1d(train.numpy(), np.arange(3, 9))
    assert world.examples.x.shape == (40, 2) and of(x, y, clients=2).world().examples.x.shape == (40, 3)
    assert world.examples.x[5, 1].item() == pytest.approx(x[rows, 1].mean())
    with pytest.raises(ValueError, match="data.of: x: the column '1' has no value in 6 rows, the first of them row 4"):
        of(x, y, missing="refuse", clients=2).world()


def test_files_of_tables_are_as_they_were_where_nothing_is_said_of_missing_cells():
    assert '"missing"' not in dumps(Experiment(data=table()))
    e = Experiment(data=table(missing="mean"))
    assert '"missing": "mean"' in dumps(e) and loads(dumps(e)) == e


def test_other_values_of_test_rows_change_nothing_that_is_fitted():
    people()
    world = table().world()
    row = int(world.test[0][0])
    lines = Path("t.csv").read_text().splitlines()
    site, _, colour, kind = lines[row + 1].split(",")
    lines[row + 1] = f"{site},1e6,{colour},{kind}"
    write("\n".join(lines))
    again = table().world()
    assert (again.mean, again.std) == (world.mean, world.std)
    assert again.examples.x[row, 0] == 1e6


def test_a_word_that_no_training_row_has_is_all_zeros_and_said():
    people()
    row = int(table().world().test[1][0])
    lines = Path("t.csv").read_text().splitlines()
    site, age, _, kind = lines[row + 1].split(",")
    lines[row + 1] = f"{site},{age},mauve,{kind}"
    write("\n".join(lines))
    world = table().world()
    assert [f.word for f in world.examples.features] == ["", "blue", "red"]
    assert world.examples.x[row, 1:].tolist() == [0, 0]
    assert world.notes == (
        "'age' counts the rows, which tells nothing about new ones (data.drop=age)",
        "words that no training row has count as unknown, all zeros: colour=mauve",
    )
    assert world.card()["notes"] == list(world.notes)


def test_scale_by_client_and_none():
    people(sites=2)
    world = table(scale="client", new_clients=0).world()
    for c in range(2):
        own = world.examples.x[world.train[c], 0]
        assert own.mean().item() == pytest.approx(0, abs=1e-6) and own.std(correction=0).item() == pytest.approx(1)
    assert world.mean == ()
    plain = table(scale="none").world()
    assert plain.mean == () and torch.equal(plain.examples.x[:, 0], torch.arange(40.0))
    late = table(scale="client", new_clients=1).world()
    train = torch.cat(late.train)
    ages = torch.arange(40.0)
    wanted = (ages[late.new[0]] - ages[train].mean()) / ages[train].std(correction=0)
    assert torch.allclose(late.examples.x[late.new[0], 0], wanted, atol=1e-5)


def test_constants_that_are_given_stay_and_wrappers_fit_too():
    people(gone=(1,))
    assert table(mean=(5.0,), std=(2.0,)).world().mean[0] == 5.0
    inner = table(clients=1, partition=Dirichlet())
    world = Noisy(data=inner, partition=Dirichlet(10.0), clients=2, s=0.0, p=0.0).world()
    assert len(world.mean) == world.shape[0] and world.notes


def test_time_cuts_rows_in_their_order():
    write(
        "day,site,a,kind\n" + "\n".join(f"2024-01-{i // 2 + 1:02},s{i % 2},{i},{'ab'[i // 2 % 2]}" for i in range(40))
    )
    world = Table(file="t.csv", label="kind", client="site", time="day").world()
    assert world.train[0].tolist() == list(range(0, 24, 2)) and world.test[0].tolist() == list(range(32, 40, 2))
    assert [f.column for f in world.examples.features] == ["a"]


# --- windows -------------------------------------------------------------------------------------------------------


def readings(runs, name="w.csv", series="a"):
    """A series of runs (label, length); sensor u counts readings, sensor v is its negative."""
    labels = [label for label, length in runs for _ in range(length)]
    rows = [f"{t},{series},{t},{-t},{label}" for t, label in enumerate(labels)]
    return "time,who,u,v,kind\n" + "\n".join(rows)


def test_windows_lie_in_one_run_of_one_label():
    write(readings([("walk", 10), ("sit", 7)]), "w.csv")
    e = Windows(file="w.csv", label="kind", client="who", time="time", window=4, stride=3).load()
    assert e.x.shape == (5, 2, 4)
    assert e.x[:, 0, 0].tolist() == [0, 3, 6, 10, 13] and e.x[1].tolist() == [[3, 4, 5, 6], [-3, -4, -5, -6]]
    assert [e.classes[c] for c in e.y.tolist()] == ["walk", "walk", "walk", "sit", "sit"]


def test_no_reading_is_in_two_parts():
    write(
        readings([("walk", 200), ("sit", 200)]) + "\n" + readings([("walk", 150)], series="b").split("\n", 1)[1],
        "w.csv",
    )
    data = Windows(file="w.csv", label="kind", client="who", window=10, stride=4)
    world = data.world()
    assert data.clients == 2
    for c in range(2):
        seen = [
            set(world.examples.x[r][:, 0].flatten().tolist()) for r in (world.train[c], world.val[c], world.test[c])
        ]
        assert all(seen) and not (seen[0] & seen[1] or seen[0] & seen[2] or seen[1] & seen[2])
    assert any("overlap" in note for note in world.notes)
    assert world.mean[0] == pytest.approx(world.examples.x[torch.cat(world.train), 0].mean().item(), rel=1e-6)


def test_missing_readings_are_carried_and_windows_without_clients_do_not_overlap():
    write("u,kind\n,a\n1,a\n,a\n3,a\n" + "5,b\n" * 4, "w.csv")
    data = Windows(file="w.csv", label="kind", window=2)
    assert data.load().x[:2, 0].tolist() == [[1, 1], [1, 3]]
    assert data.step == 2
    with pytest.raises(ValueError, match=r"Windows: stride=1 makes windows of 2 that overlap"):
        replace(data, stride=1)


# --- arrays in memory --------------------------------------------------------------------------------------------


def test_arrays_in_memory_with_clients():
    g = np.random.default_rng(0)
    x, y, who = g.normal(3, 2, (60, 4)), np.array(["no", "yes"])[np.arange(60) % 2], [f"c{i % 3}" for i in range(60)]
    data = of(x, y, client=who)
    world = data.world()
    assert (data.clients, data.inputs(), world.examples.classes) == (3, "vectors", ("no", "yes"))
    train = torch.cat(world.train).numpy()
    assert np.allclose(world.mean, x[train].mean(0), atol=1e-5)
    assert data == of(torch.tensor(x), list(y), client=who) and data != of(x + 1, y, client=who)
    assert of(torch.zeros(4, 3, 8), [0, 1, 0, 1], clients=2).inputs() == "windows"
    assert of(np.zeros((4, 5, 5), np.uint8), [0, 1, 0, 1]).load().x.shape == (4, 1, 5, 5)
    assert of(x, np.arange(60) % 2, classes=("off", "on")).load().classes == ("off", "on")
    holes = x.copy()
    holes[0, 1] = np.nan
    assert of(holes, y).load().x.shape == (60, 5)


def test_a_run_in_memory_says_to_pass_the_data_again():
    data = of(np.eye(4).repeat(10, 0), [0, 1] * 20, clients=2)
    text = dumps(Experiment(data=data))
    with pytest.raises(ValueError, match=r"ac.load\(path, data=...\)"):
        loads(text)
    assert loads(text, data=data) == Experiment(data=data)


@pytest.mark.parametrize(
    ("x", "y", "more", "message"),
    [
        (np.zeros((4, 2)), [0, 1, 0], {}, r"y has shape \(3,\) and x 4 rows"),
        (np.zeros((4, 2)), [0, 0, 0, 0], {}, "'y' has one class, '0'; give a column with two or more"),
        (
            {"input_ids": np.zeros((4, 2))},
            [0, 1, 0, 1],
            {},
            r"data.of: x is a dict; of columns .* give x\['input_ids'\] wi",
        ),
        (np.zeros((4, 2)), None, {}, "data.of: y is None; it must hold the class of every row"),
        (np.zeros((4, 2)), np.ones((4, 4)), {}, "several labels per row are not"),
        (np.zeros((4, 2)), np.eye(4), {}, r"give y.argmax\(1\), as every row has a single 1"),
        (np.zeros((60, 2)), np.linspace(0, 1, 60), {}, "60 different values in 60 rows, as a regression target has"),
        (np.zeros(4), [0, 1, 0, 1], {}, r"x has shape \(4,\); it must be"),
        (np.full((2, 2, 2), np.nan), [0, 1], {}, "x holds values that are not finite"),
        (np.array([["a"], ["b"]]), [0, 1], {}, "it must hold numbers"),
        ([[1, 2], [3]], [0, 1], {}, "x is ragged"),
        (np.zeros((2, 2)), [0, 2], {"classes": ("a", "b")}, "y has '2', which classes="),
        (np.zeros((2, 2)), [0, 1], {"client": ["a", None]}, "client is missing in row 2"),
    ],
)
def test_arrays_in_memory_that_cannot_be(x, y, more, message):
    with pytest.raises(ValueError, match=message):
        of(x, y, **more)


# --- what is refused -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "settings", "message"),
    [
        (
            HEAD + "s,1,red,cat\n" * 3,
            {"label": "kinds"},
            r"has no column 'kinds' \(data.label\); did you mean 'kind'\? Its columns are site, age",
        ),
        (
            HEAD + "s,1,red,cat\n",
            {"client": "clinic"},
            r"no column 'clinic' \(data.client\); its columns are site, age",
        ),
        (HEAD + "s,1,red,cat\n", {"columns": ("agee",)}, r"no column 'agee' \(data.columns\); did you mean 'age'\?"),
        (HEAD + "s,1,red,cat\n", {"label": ""}, "which column says the class\\? Set data.label="),
        (HEAD + "s,1,red,cat\n" * 3, {}, r"the label 'kind' has one class, 'cat'; .*\(data.label\)"),
        (HEAD + "s,1,red,\n", {}, r"the label 'kind' is missing in row 1"),
        (HEAD + "s,1,red,cat\n,1,red,dog\n", {}, r"'site' is missing in row 2; .*\(data.client\)"),
        (
            HEAD + "".join(f"s,1,red,{i / 7}\n" for i in range(30)),
            {},
            "30 different values in 30 rows, as a regression",
        ),
        (HEAD + "s,1,red,cat|dog\ns,1,red,cat\n", {}, r"has 'cat\|dog', several labels in one row"),
        (HEAD + "s,1,red\n", {}, "line 2 has 3 cells, but the first line names 4 columns"),
        ("", {}, "t.csv: is empty; it must have a first line"),
        (HEAD, {}, "t.csv: is empty below its first line"),
        ("1,2,3,4\n5,6,7,8\n", {}, "its first line holds numbers, not names"),
        ("a,a,kind,site\n1,2,x,y\n", {}, "has the column 'a' twice"),
        (
            HEAD + "".join(f"s,1,w{i},{'ab'[i % 2]}\n" for i in range(120)),
            {"columns": ("age", "colour")},
            "'colour' has 120 different words.*data.drop=colour",
        ),
        (HEAD + "s,inf,red,cat\n", {}, "the column 'age' is infinite in row 1"),
        (HEAD + "s,2,red,cat\ns,1,red,dog\n", {"time": "age"}, r"'age' goes backwards in row 2 of client 's'; sort"),
        (HEAD + "s,2,red,cat\ns,1,red,dog\n", {"time": "colour"}, r"'colour' has no numbers, no dates as"),
        (HEAD + "s,2,red,cat\ns,1,red,dog\n", {"columns": ("site",)}, "data.columns has 'site', which is no input"),
    ],
)
def test_tables_that_cannot_be(text, settings, message):
    write(text)
    with pytest.raises(ValueError, match=message):
        table(**settings, clients=2).load()


def test_a_file_that_is_no_text_or_not_there():
    with open("t.csv", "wb") as file:
        file.write(b"a,b\n\xff\xfe\x00,1\n")
    with pytest.raises(ValueError, match="is not text in UTF-8"):
        table(clients=2).load()
    with pytest.raises(FileNotFoundError, match=r"Table: file='gone.csv' is not there \(looked for"):
        table(file="gone.csv").world()
    with pytest.raises(ValueError, match=r"Table: file='' must name your CSV or Parquet file"):
        Table().world()
    with pytest.raises(ValueError, match=r"names several columns; one class per row is supported"):
        Table(label=("a", "b"))
    people()
    with pytest.raises(ValueError, match="cannot be cut in the order of time"):
        table(time="age", split=ac.data.PerClass())


def test_a_table_that_is_too_large_stops_early(monkeypatch):
    people(rows=100)
    monkeypatch.setattr(columns, "MOST", 90)
    seen = []
    inner = columns._rows_of
    monkeypatch.setattr(columns, "_rows_of", lambda p: (seen.append(1) or row for row in inner(p)))
    with pytest.raises(ValueError, match=r"too large to be read at once: over 22 rows of 4 columns.*data.columns="):
        table(clients=2).load()
    assert len(seen) == 23


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"window": 50}, r"the series 'a' has 17 readings, fewer than a window of 50; lower data.window"),
        ({"window": 12}, "no 12 readings in a row have one label"),
        ({"window": 1}, "window=1 must be a whole number of at least 2"),
        ({"window": 4, "drop": ("u", "v", "time")}, "has no column of inputs left"),
        ({"window": 7, "stride": 1}, "leaves no window to test on"),
    ],
)
def test_windows_that_cannot_be(settings, message):
    write(readings([("walk", 10), ("sit", 7)]), "w.csv")
    with pytest.raises(ValueError, match=message):
        Windows(file="w.csv", label="kind", client="who", **settings).world()


def test_readings_in_words_and_none_at_all():
    write("u,v,kind\n" + "a,1,x\n" * 4 + "b,1,y\n" * 4, "w.csv")
    with pytest.raises(ValueError, match=r"the column 'u' holds words, and readings are numbers; .*data.drop=u"):
        Windows(file="w.csv", label="kind", window=2).load()
    write("u,v,kind\n" + ",1,x\n" * 4 + ",1,y\n" * 4, "w.csv")
    with pytest.raises(ValueError, match="the column 'u' has no reading at all"):
        Windows(file="w.csv", label="kind", window=2).load()


def test_arrays_say_that_a_csv_is_a_table():
    people()
    with pytest.raises(ValueError, match=r"Arrays: file='t.csv' is a table; use data=table and name its labels"):
        Arrays(file="t.csv").load()


# --- kinds of data and the embedded table ----------------------------------------------------------------------------


def test_the_default_model_fits_the_inputs():
    people()
    np.savez("v.npz", x=np.zeros((4, 3), np.float32), y=[0, 1, 0, 1])
    np.savez("i.npz", x=np.zeros((4, 8, 8), np.uint8), y=[0, 1, 0, 1])
    perceptron = ac.models.MLP(norm="batch")
    for data in (table(), Arrays(file="v.npz"), Cells()):
        assert Experiment(data=data).model == perceptron
    windows = of(np.zeros((4, 3, 9)), [0, 1, 0, 1])
    assert Experiment(data=windows).model == ac.models.WindowCNN(norm="batch")
    assert Experiment(data=Arrays(file="i.npz")).model == Experiment().model == ac.models.CNN((16, 32), norm="batch")
    assert Experiment(data=table(), model=ac.models.MLP((8,))).model == ac.models.MLP((8,))
    assert loads(dumps(Experiment(data=table()))) == Experiment(data=table())


def test_a_config_of_a_table_is_read_where_the_file_is_not():
    people()
    text = dumps(Experiment(data=table()))
    write("", "t.csv")
    assert loads(text).data.clients == 2


def test_cells_are_the_published_table_dealt_by_radius():
    world = Cells().world()
    e = world.examples
    assert (
        e.x.shape == (569, 30) and torch.bincount(e.y).tolist() == [212, 357] and e.classes == ("malignant", "benign")
    )
    assert e.x[0, :3].tolist() == pytest.approx([17.99, 10.38, 122.8])
    ranges = [e.x[torch.cat([a, b, c]), 0] for a, b, c in zip(world.train, world.val, world.test, strict=True)]
    assert [len(r) for r in ranges] == [114, 114, 114, 114, 113]
    assert all(a.max() <= b.min() for a, b in zip(ranges, ranges[1:], strict=False))
    assert Cells(new_clients=2).world().new[0].numel() > 70
    with pytest.raises(ValueError, match="by='size' must be one of 'mean-radius'"):
        Cells(by="size")


def test_folders_of_sites_are_clients():
    image = pytest.importorskip("PIL.Image")
    for site in ("north", "south", "yard"):
        for kind in ("cat", "dog"):
            folder = Path("photos", site, kind)
            folder.mkdir(parents=True)
            for i in range(5):
                image.new("RGB", (16, 16), (i, 0, 0)).save(folder / f"{i}.png")
    data = ImageFolder(path="photos")
    world = data.world()
    assert (data.clients, data.partition) == (3, ByClient())
    assert [world.examples.domain[r].unique().tolist() for r in world.train] == [[0], [1], [2]]
    assert world.client_names == ("north", "south", "yard")
    assert ImageFolder(path="photos", held_out=("yard",)).world().clients == 2
    assert ImageFolder(path="photos", partition=Dirichlet(1.0), clients=2).world().client_names == ()
    assert ImageFolder(path="photos/north", levels="class").clients == 2  # of ten images
    assert ImageFolder(path="photos", partition=Dirichlet(1.0)).clients == 2
    assert ImageFolder(path="photos", partition=Dirichlet(1.0), split=(1.0, 0.0, 0.0), new_clients=1).clients == 1


def test_the_guide_tells_what_was_measured():
    root = Path(__file__).parents[2]
    stored = json.loads((root / "results" / "tables" / "cells.json").read_text())
    lines = (root / "docs" / "guides" / "tables.md").read_text().splitlines()
    assert stored["10 rounds"]["data"]["hash"] == Cells().world().card()["hash"]
    for name, part in stored.items():
        cells = {}
        for row in part["rows"]:
            cells.setdefault((row["method"], row["adapter"]), {})[row["stream"]] = f"{row['accuracy']:.1f}"
        begin = lines.index(f"{name[0].upper()}{name[1:]}:")
        streams = [s.strip() for s in lines[begin + 2].strip("|").split("|")][2:]
        told = [[c.strip() for c in line.strip("|").split("|")] for line in lines[begin + 4 : begin + 4 + len(cells)]]
        assert {(m, a): dict(zip(streams, v, strict=True)) for m, a, *v in told} == cells


def test_columns_in_the_wrong_place_are_answered_with_the_right_one():
    frame = {"age": [1.0, 2.0], "kind": ["a", "b"]}
    with pytest.raises(ValueError, match=r"^Table: partition is a dict, not a record .* given as Table.of\(...\)$"):
        ac.data.Table(frame, label="kind")
    with pytest.raises(ValueError, match=r"^Digits: partition is a str, not a record such as IID\(\)$"):
        ac.data.Digits(partition="iid")
    for given in (frame, "visits.csv"):
        kind = type(given).__name__
        with pytest.raises(
            ValueError, match=rf"data is a {kind}, .*Table.of\(frame, label=...\), arrays as ac.data.of"
        ):
            ac.Experiment(data=given)


@pytest.mark.parametrize("kind", [Table, Windows])
@pytest.mark.parametrize("pair", [("label", "client"), ("label", "domain"), ("label", "time"), ("client", "time")])
def test_one_column_cannot_be_two_things(kind, pair):
    one, other = pair
    said = f"{kind.__name__}: {one}='a' and {other}='a' are the same column; name another for {other}, or leave it out"
    with pytest.raises(ValueError, match=said):
        kind(**{"file": "t.csv", "label": "b", one: "a", other: "a"})
    assert kind(file="t.csv", label="b", client="a", domain="a").domain == "a"  # sites may be held out


@pytest.mark.parametrize("name", ["Kind", "KIND", "knid"])
def test_a_column_is_found_whatever_its_capitals(name):
    people()
    with pytest.raises(ValueError, match=r"has no column '\w+' \(data.label\); did you mean 'kind'\?"):
        table(label=name).load()
